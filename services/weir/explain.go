package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"syscall"
	"time"

	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/insight"
	"github.com/weirhq/weir/services/biller"
)

// explainCommand retells one request.
type explainCommand struct {
	sourceFlags `embed:""`

	ID   string `arg:"" help:"Request id, or its last 8 characters or more."`
	JSON bool   `help:"JSON."`
}

// Run tells how a request was decided, and what became of it.
func (c *explainCommand) Run(cli *cli, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.run(ctx, cli.Config, out)
}

func (c *explainCommand) run(ctx context.Context, configFile string, out io.Writer) error {
	if c.File == "-" {
		return errors.New("explain: the log is read twice; give a file")
	}
	s, err := c.open(ctx, configFile)
	if err != nil {
		return err
	}
	defer s.close()
	story, err := c.retell(ctx, s)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	if c.JSON {
		return json.NewEncoder(out).Encode(story)
	}
	_, err = io.WriteString(out, story.Text())
	return err
}

// retell finds the request and folds the log up to its end.
func (c *explainCommand) retell(ctx context.Context, s source) (*insight.Story, error) {
	p := newProgress("looking for it")
	target, err := inquiry.Find(ctx, s, c.ID, 0, p.step)
	p.done()
	if err != nil {
		return nil, err
	}
	p = newProgress("folding")
	defer p.done()
	return inquiry.Retell(ctx, s, target, p.step)
}

// snapshotWorth is how many messages must lie before a request for a snapshot to be used: without one the fold also knows who holds
// what was charged long before.
const snapshotWorth = 500_000

// FoldBefore gives the newest fold that a projector kept in the data directory and that is not past a sequence, or of a day that a biller
// kept; nil if there is none, or if the log before the sequence is short.
func (l *liveLog) FoldBefore(ctx context.Context, seq uint64) (*admission.Fold, error) {
	info, err := l.log.Info(ctx)
	if err != nil {
		return nil, err
	}
	if seq < info.First+snapshotWorth {
		return nil, nil
	}
	names, err := filepath.Glob(filepath.Join(l.dataDir, "snapshots", "admission-*.snapshot"))
	if err != nil {
		return nil, err
	}
	sort.Sort(sort.Reverse(sort.StringSlice(names)))
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // a projector has removed it since
		}
		fold := snapshotFold(b, info.Created)
		if fold != nil && fold.Seq() < seq && fold.Seq()+1 >= info.First {
			return fold, nil
		}
	}
	start, found, err := biller.LatestStart(l.dataDir, info.Created, info.First, seq)
	if err != nil || !found {
		return nil, err
	}
	return start.Usage.Fold(), nil
}

// snapshotFold takes the fold out of a projector's snapshot of this log; nil if it is none, or is damaged: the log itself then serves.
func snapshotFold(b []byte, created time.Time) *admission.Fold {
	const magic = "WEIRSNP1"
	const start = len(magic) + 4
	if len(b) < start+sha256.Size || string(b[:len(magic)]) != magic {
		return nil
	}
	body := b[:len(b)-sha256.Size]
	if sum := sha256.Sum256(body); string(sum[:]) != string(b[len(body):]) {
		return nil
	}
	size := int64(binary.BigEndian.Uint32(body[len(magic):start]))
	if int64(start)+size > int64(len(body)) {
		return nil
	}
	var header struct{ Created time.Time }
	if json.Unmarshal(body[start:int64(start)+size], &header) != nil || !header.Created.Equal(created) {
		return nil
	}
	fold, err := admission.Restore(body[int64(start)+size:])
	if err != nil {
		return nil
	}
	return fold
}
