package projector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/kv"
)

const (
	shareFor     = 2 * time.Minute  // to share a snapshot
	shareLastFor = 10 * time.Second // the same when the projector stops
	shareAgain   = 30 * time.Second // after it could not be shared
	fetchAgain   = 5 * time.Second  // while no snapshot reaches back to what the log still holds
)

// sharer says when the writer shares the next snapshot. It belongs to the fold's goroutine.
type sharer struct {
	known bool      // at is known, since the lease was won
	at    time.Time // own clock
	seq   uint64    // of the last one
	stop  context.CancelFunc
}

// shareSoon finds out when the next snapshot is to be shared: by what is shared already.
func (l *loop) shareSoon() {
	term := l.writer.term
	l.async(func(ctx context.Context) func() {
		all, err := l.snapshots().List(ctx)
		return func() {
			if l.writer.term != term {
				return
			}
			s := &l.sharer
			s.known, s.at = true, l.now
			if err == nil && len(all) > 0 && all[0].Created.Equal(l.created) && all[0].Ledger == l.p.cfg.Ledger {
				s.at = l.now.Add(min(l.p.cfg.ShareEvery, all[0].At.Add(l.p.cfg.ShareEvery).Sub(l.now)))
			}
		}
	})
}

// shareDue says whether the next snapshot is to be shared.
func (l *loop) shareDue() bool {
	return l.writer.active() && l.sharer.known && !l.now.Before(l.sharer.at) && l.fold.Seq() != l.sharer.seq
}

// unshare ends a sharing that is under way: another projector writes now.
func (l *loop) unshare() {
	l.sharer.known = false
	if l.sharer.stop != nil {
		l.sharer.stop()
	}
}

// shared takes in what became of a sharing.
func (l *loop) shared(m *image, err error) {
	l.sharer.at = l.now.Add(l.p.cfg.ShareEvery)
	if err != nil && !l.sharer.known {
		return // another projector shares now
	}
	if err != nil {
		l.sharer.at = l.now.Add(min(shareAgain, l.p.cfg.ShareEvery))
		l.stats.SharesFailed++
		l.p.cfg.Logger.Error("projector: a snapshot could not be shared", "error", err)
		return
	}
	l.sharer.seq = m.header.Seq
	l.stats.Shares++
	l.stats.SharedSeq, l.stats.SharedAt = m.header.Seq, l.now
}

// share puts a snapshot where other projectors can fetch it.
func (l *loop) share(ctx context.Context, m *image, b []byte) error {
	link, held, err := l.p.cfg.Log.Link(ctx, m.header.Seq)
	if err != nil {
		return fmt.Errorf("share a snapshot: %w", err)
	}
	s := kv.Snapshot{Seq: m.header.Seq, Created: m.header.Created, Ledger: l.p.cfg.Ledger, At: l.p.cfg.Now(), By: l.p.cfg.Name}
	if held {
		s.Link = link.String()
	}
	return l.snapshots().Share(ctx, s, b)
}

// snapshots are the shared ones.
func (l *loop) snapshots() *kv.Snapshots {
	return kv.NewSnapshots(kv.SnapshotsConfig{JetStream: l.js, Role: access.Projector, Replicas: l.p.cfg.Replicas})
}

// reach makes the fold reach to what the log still holds, if need be by a shared snapshot. Why says what is missing; empty: nothing.
func (l *loop) reach(ctx context.Context, info journal.Info) (why string) {
	another := !l.created.IsZero() && !l.created.Equal(info.Created)
	if l.fold.Seq()+1 >= info.First || another { // of another log the source says more
		return ""
	}
	missing := []string{"none is kept here"}
	if at := l.fold.Seq(); at > 0 {
		missing[0] = fmt.Sprintf("the one kept here ends at sequence %d", at)
	}
	shared := l.snapshots()
	all, err := shared.List(ctx)
	switch {
	case err != nil:
		missing = append(missing, err.Error())
	case len(all) == 0:
		missing = append(missing, "none is shared")
	}
	for i := range all {
		err := l.borrow(ctx, shared, info, all[i])
		if err == nil {
			return ""
		}
		missing = append(missing, fmt.Sprintf("the one shared of sequence %d %s", all[i].Seq, err))
	}
	return fmt.Sprintf("the log begins at sequence %d, and no snapshot reaches back to it: %s", info.First, strings.Join(missing, "; "))
}

// borrow takes up a shared snapshot. The error says why it cannot be.
func (l *loop) borrow(ctx context.Context, shared *kv.Snapshots, info journal.Info, s kv.Snapshot) error {
	h, fold, err := fetch(ctx, shared, l.p.cfg.Log, info, l.p.cfg.Ledger, s)
	if err == nil {
		err = l.takeUp(h, fold)
	}
	if err != nil {
		return err
	}
	l.borrowed = true
	l.p.cfg.Logger.Info("projector: begins from a shared snapshot", "seq", s.Seq, "by", s.By, "at", s.At)
	return nil
}

// fetch gets a shared snapshot from which a log can be folded on. The error says why it cannot be had, or is none.
func fetch(ctx context.Context, from *kv.Snapshots, log *journal.Log, info journal.Info, ledger string, s kv.Snapshot) (h header, fold *admission.Fold, err error) {
	if err := s.Connects(ctx, log, info, ledger); err != nil {
		return h, nil, err
	}
	b, err := from.Fetch(ctx, s)
	if err == nil {
		h, fold, err = decodeSnapshot(b)
	}
	if err == nil && (h.Seq != s.Seq || !h.Created.Equal(s.Created)) {
		err = errors.New("it is not the one that it is said to be")
	}
	if err != nil {
		return h, nil, fmt.Errorf("cannot be used: %w", err)
	}
	return h, fold, nil
}

// SharedFold gives the newest shared fold that is before a sequence and from which a log can be folded on; nil if there is none. It needs
// no more than to read streams.
func SharedFold(ctx context.Context, conn *nats.Conn, log *journal.Log, before uint64) (*admission.Fold, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	info, err := log.Info(ctx)
	if err != nil {
		return nil, err
	}
	shared := kv.NewSnapshots(kv.SnapshotsConfig{JetStream: js, Role: access.Projector})
	all, err := shared.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Seq >= before {
			continue
		}
		if _, fold, err := fetch(ctx, shared, log, info, "", s); err == nil { // damaged, or of before: the other may do
			return fold, nil
		}
	}
	return nil, ctx.Err()
}
