package auditor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/generation"
)

// Bounds of a rebuild.
const (
	nearBy      = 4096                   // messages behind what serves at which it may take its place
	lookAgain   = 250 * time.Millisecond // how far it has come
	switchFor   = 30 * time.Second       // the writer of what serves may be held up
	switchTries = 10
	carryMore   = 16 // one part of so many of a log is copied beyond what it has forgotten
)

// Beside is where records are built beside those that serve: an *audit.Rebuild.
type Beside interface {
	Store

	// Carry copies the records that a log, from the first sequence that it holds, does not tell whole.
	Carry(ctx context.Context, log generation.Instant, first uint64) (int64, error)

	// Behind gives how far a place is behind what serves.
	Behind(ctx context.Context, at generation.Place) (uint64, error)

	// Switch lets what was built serve, once reach has brought it to where what serves now is.
	Switch(ctx context.Context, reach func(ctx context.Context, to generation.Place) (generation.Place, error)) error
}

// Progress is how far a rebuild has come.
type Progress struct {
	Carried  int64  `json:"carried"`  // records that the log no longer tells
	Position uint64 `json:"position"` // up to where the new records tell
	Last     uint64 `json:"last"`     // the log's last sequence
	Done     bool   `json:"done"`     // they serve
}

// Rebuild folds a log from its beginning into new records while others serve and are written, and then lets the new ones serve. Records that
// the log no longer tells are carried over. told is called now and then. Of cfg it takes Conn, Log, Name, Now and Logger.
func Rebuild(ctx context.Context, cfg Config, beside Beside, told func(Progress)) error {
	var p Progress
	info, err := cfg.Log.Info(ctx)
	if err != nil {
		return fmt.Errorf("rebuild the audit records: %w", err)
	}
	if p.Carried, err = carry(ctx, info, beside); err != nil {
		return fmt.Errorf("rebuild the audit records: %w", err)
	}
	cfg.Store, cfg.Source, cfg.Alone, cfg.NoEstimates = beside, nil, true, true
	log := generation.Instant(info.Created.UnixNano())
	for tries := 0; ; tries++ {
		a, err := New(cfg)
		if err != nil {
			return err
		}
		b := &building{Auditor: a, beside: beside, log: log, cfg: cfg, told: told, progress: p}
		err = b.run(ctx)
		p = b.progress
		if err == nil {
			p.Done, p.Position = true, a.Status().Position
			p.Last = max(p.Last, p.Position)
			told(p)
			return nil
		}
		if ctx.Err() != nil || tries >= switchTries {
			return fmt.Errorf("rebuild the audit records: %w", err)
		}
		a.warn("go on with the rebuild", err)
	}
}

// carry copies what the log no longer tells. While the rest is read a log that forgets goes on forgetting: what it will have forgotten by
// then is copied, too.
func carry(ctx context.Context, info journal.Info, beside Beside) (int64, error) {
	first := info.First
	if first > 1 {
		first += (info.Last - first) / carryMore
	}
	return beside.Carry(ctx, generation.Instant(info.Created.UnixNano()), first)
}

// building is a rebuild's auditor, from its start until the switch.
type building struct {
	*Auditor
	beside   Beside
	log      generation.Instant
	cfg      Config
	told     func(Progress)
	progress Progress
}

// run builds until what is built is near what serves, and then switches.
func (b *building) run(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- b.Run(working) }()
	ended := false
	end := func() (err error) {
		if !ended {
			ended = true
			stop()
			err = <-done
		}
		return err
	}
	err := b.near(ctx, done, &ended)
	if err == nil {
		err = b.beside.Switch(ctx, func(ctx context.Context, to generation.Place) (generation.Place, error) {
			ctx, cancel := context.WithTimeout(ctx, switchFor)
			defer cancel()
			if err := b.reach(ctx, to, done, &ended); err != nil {
				return generation.Place{}, err
			}
			err := end()
			return b.at(), err
		})
	}
	return errors.Join(err, end())
}

func (b *building) at() generation.Place {
	return generation.Place{Log: b.log, Seq: b.Status().Position}
}

// near waits until what is built is near what serves.
func (b *building) near(ctx context.Context, done <-chan error, ended *bool) error {
	return b.wait(ctx, done, ended, func() (bool, error) {
		at := b.at()
		behind, err := b.beside.Behind(ctx, at)
		if info, failed := b.cfg.Log.Info(ctx); failed == nil {
			b.progress.Position, b.progress.Last = at.Seq, info.Last
			b.told(b.progress)
		}
		return b.Status().Active && behind <= nearBy, err
	})
}

// reach waits until what is built tells as much as what serves.
func (b *building) reach(ctx context.Context, to generation.Place, done <-chan error, ended *bool) error {
	if to.Log > b.log {
		return errors.New("what serves is of a newer log")
	}
	return b.wait(ctx, done, ended, func() (bool, error) { return to.Log < b.log || b.Status().Position >= to.Seq, nil })
}

func (b *building) wait(ctx context.Context, done <-chan error, ended *bool, is func() (bool, error)) error {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if ok, err := is(); ok || err != nil {
			return err
		}
		select {
		case err := <-done:
			*ended = true
			return errors.Join(errors.New("the building ended"), err)
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
}
