package biller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
)

const (
	shareFor     = 2 * time.Minute  // to share a state
	shareLastFor = 10 * time.Second // the same when the biller stops
)

// sharer is what a worker has shared of its state, as the projector that writes does of its own.
type sharer struct {
	at   time.Time  // not shared again before
	seq  uint64     // that the last one is of
	done chan error // of the sharing that is under way; nil if none is
	stop context.CancelFunc
}

// share puts the state where other billers can fetch it, if it is time and this biller is the one that writes.
func (w *worker) share(ctx context.Context) {
	if w.sharer.done != nil {
		select {
		case err := <-w.sharer.done:
			w.shared(err)
		default:
		}
		return
	}
	if now := w.b.cfg.Now(); w.shareable() && !now.Before(w.sharer.at) {
		w.sharer.at = now.Add(w.b.cfg.ShareEvery)
		w.beginShare(ctx, shareFor)
	}
}

// shareable says whether the state may be shared, and there is something new in it.
func (w *worker) shareable() bool {
	return w.b.writing.Load() && w.applied > 0 && w.applied != w.sharer.seq
}

func (w *worker) beginShare(ctx context.Context, within time.Duration) {
	ctx, w.sharer.stop = context.WithTimeout(ctx, within)
	done, text := make(chan error, 1), w.encode()
	s := kv.Snapshot{Seq: w.applied, Created: w.created, At: w.b.cfg.Now(), By: w.b.cfg.Name}
	w.sharer.done, w.sharer.seq = done, w.applied
	go func() { done <- w.b.share(ctx, s, text) }()
}

func (w *worker) shared(err error) {
	w.sharer.stop()
	w.sharer.done = nil
	if err != nil {
		w.sharer.seq = 0
		w.b.warn("share the state", err)
		return
	}
	w.b.note(func(s *Status) { s.Shared = w.sharer.seq })
}

// unshare waits for the sharing that is under way, which it breaks off.
func (w *worker) unshare() {
	if w.sharer.done != nil {
		w.sharer.stop()
		<-w.sharer.done
		w.sharer = sharer{}
	}
}

// shareLast shares the state of a biller that stops.
func (w *worker) shareLast(ctx context.Context) {
	w.unshare()
	if w.shareable() {
		w.beginShare(ctx, shareLastFor)
		w.shared(<-w.sharer.done)
	}
}

func (b *Biller) share(ctx context.Context, s kv.Snapshot, text []byte) error {
	link, held, err := b.cfg.Log.Link(ctx, s.Seq)
	if err != nil {
		return err
	}
	if held {
		s.Link = link.String()
	}
	shared, err := b.snapshots()
	if err != nil {
		return err
	}
	return shared.Share(ctx, s, text)
}

// snapshots are the states that are shared.
func (b *Biller) snapshots() (*kv.Snapshots, error) {
	js, err := jetstream.New(b.cfg.Conn)
	if err != nil {
		return nil, err
	}
	return kv.NewSnapshots(kv.SnapshotsConfig{JetStream: js, Role: access.Biller, Replicas: b.cfg.Replicas}), nil
}

// forgotten says that the log no longer holds what the state lacks.
type forgotten struct{ first uint64 }

func (f *forgotten) Error() string {
	return fmt.Sprintf("the log begins at sequence %d: who was admitted before cannot be known", f.first)
}

// borrow takes up a shared state that reaches to what the log still holds. The error says what is missing.
func (w *worker) borrow(ctx context.Context, gone *forgotten) error {
	shared, err := w.b.snapshots()
	if err != nil {
		return err
	}
	info, err := w.b.cfg.Log.Info(ctx)
	if err != nil {
		return fmt.Errorf("%w; %w", gone, err)
	}
	missing := []string{"no state is kept here"}
	if w.applied > 0 {
		missing[0] = fmt.Sprintf("the state kept here ends at sequence %d", w.applied)
	}
	all, err := shared.List(ctx)
	switch {
	case err != nil:
		missing = append(missing, err.Error())
	case len(all) == 0:
		missing = append(missing, "none is shared")
	}
	for i := range all {
		s, err := w.fetch(ctx, shared, info, &all[i])
		if err == nil {
			w.takeUp(s)
			w.b.cfg.Logger.Info("biller: begins from a shared state", "seq", all[i].Seq, "by", all[i].By, "at", all[i].At)
			return nil
		}
		missing = append(missing, fmt.Sprintf("the one shared of sequence %d %s", all[i].Seq, err))
	}
	return fmt.Errorf("%w: %s; put the %s of another biller in %s/%s", gone, strings.Join(missing, "; "), snapshotName, w.b.cfg.DataDir, folder)
}

// fetch gets a shared state from which the log can be folded on and the stream written on.
func (w *worker) fetch(ctx context.Context, shared *kv.Snapshots, info journal.Info, from *kv.Snapshot) (*state, error) {
	if err := from.Connects(ctx, w.b.cfg.Log, info, ""); err != nil {
		return nil, err
	}
	var s *state
	text, err := shared.Fetch(ctx, *from)
	if err == nil {
		s, err = decodeState(text)
	}
	if err == nil && (s.applied != from.Seq || !s.created.Equal(from.Created)) {
		err = errors.New("it is not the one that it is said to be")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be used: %w", err)
	}
	end, at, known, err := w.stream.end(ctx)
	if err == nil && s.lost(end, at, known) {
		err = errors.New("has lines that the stream has lost")
	}
	return s, err
}

// takeUp goes on from another's state. Lines that are still to be written, as of a log before this one, stay.
func (w *worker) takeUp(s *state) {
	all := append(slices.Clone(w.pending), s.pending...)
	slices.SortStableFunc(all, func(a, b line) int {
		switch {
		case a.At.before(b.At):
			return -1
		case b.At.before(a.At):
			return 1
		}
		return 0
	})
	s.pending = slices.CompactFunc(all, func(a, b line) bool { return !a.At.before(b.At) && !b.At.before(a.At) })
	w.state, w.synced = s, false
}
