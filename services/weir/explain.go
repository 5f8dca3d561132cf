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

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/insight"
)

// explainSlack is how long before an id was made its request is looked for: gateways' clocks differ from the log's.
const explainSlack = time.Minute

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
	target, err := c.find(ctx, s)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	story, err := c.retell(ctx, s, target)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	if c.JSON {
		return json.NewEncoder(out).Encode(story)
	}
	_, err = io.WriteString(out, story.Text())
	return err
}

// find looks for the request, near the time that its id gives if it gives one.
func (c *explainCommand) find(ctx context.Context, s source) (*insight.Target, error) {
	finder, err := insight.NewFinder(c.ID)
	if err != nil {
		return nil, err
	}
	var from uint64
	if made, ok := insight.MadeAt(c.ID); ok {
		if from, err = s.seqAt(ctx, made-int64(explainSlack)); err != nil {
			return nil, err
		}
	}
	p := newProgress("looking for it")
	defer p.done()
	err = s.read(ctx, from, func(r *events.Record) error {
		p.step(r)
		if !finder.Take(r) {
			return errEnough
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return finder.Target()
}

// retell folds the log up to the end of the request.
func (c *explainCommand) retell(ctx context.Context, s source, target *insight.Target) (*insight.Story, error) {
	fold := admission.New()
	if live, ok := s.(*liveLog); ok {
		newer, err := snapshotBefore(ctx, live, c.DataDir, target.First)
		if err != nil {
			return nil, err
		}
		if newer != nil {
			fold = newer
		}
	}
	e := insight.NewExplainer(fold, target)
	p := newProgress("folding")
	defer p.done()
	err := s.read(ctx, fold.Seq()+1, func(r *events.Record) error {
		p.step(r)
		if e.Done() {
			return errEnough
		}
		return e.Apply(r)
	})
	if err != nil {
		return nil, err
	}
	return e.Story(), nil
}

// snapshotWorth is how many messages must lie before a request for a snapshot to be used: without one the fold also knows who holds
// what was charged long before.
const snapshotWorth = 500_000

// snapshotBefore gives the newest fold that a projector kept in the data directory and that is not past a sequence; nil if there is
// none, or if the log before the sequence is short.
func snapshotBefore(ctx context.Context, l *liveLog, dataDir string, seq uint64) (*admission.Fold, error) {
	info, err := l.log.Info(ctx)
	if err != nil {
		return nil, err
	}
	if seq < info.First+snapshotWorth {
		return nil, nil
	}
	names, err := filepath.Glob(filepath.Join(dataDir, "snapshots", "admission-*.snapshot"))
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
	return nil, nil
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
