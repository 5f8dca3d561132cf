package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"syscall"

	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/insight"
	"github.com/weirhq/weir/projections/projector"
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

// FoldBefore gives a fold that is not past the sequence: the newest that a projector kept in the data directory, of a day that a biller kept
// there, or that is shared in the log's broker. It is nil if there is none, or if the log is whole and short before the sequence.
func (l *liveLog) FoldBefore(ctx context.Context, seq uint64) (*admission.Fold, error) {
	info, err := l.log.Info(ctx)
	if err != nil {
		return nil, err
	}
	if info.First <= 1 && seq < snapshotWorth {
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
		created, fold, err := projector.ReadSnapshot(b)
		if err == nil && created.Equal(info.Created) && fold.Seq() < seq && fold.Seq()+1 >= info.First {
			return fold, nil
		}
	}
	start, found, err := biller.LatestStart(l.dataDir, info.Created, info.First, seq)
	if err != nil {
		return nil, err
	}
	if found {
		return start.Usage.Fold(), nil
	}
	return projector.SharedFold(ctx, l.conn, l.log, seq)
}
