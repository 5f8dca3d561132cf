package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/ledger"
)

// recovery is one run of the command on a log that nobody else writes.
type recovery struct {
	n       *node
	order   order
	unknown bool // nothing need tell what was before
	out     io.Writer
	log     *journal.Log
	info    journal.Info
	id      string // of the ledger that begins
	now     time.Time
	passed  lost            // what a recovery that did not end has passed over
	kept    reach           // the last that is of the log before, if that was cut and written on since; else the log's end
	since   []events.Record // finals and releases that came after it

	snapshots []snapshot
	clock     bool // the newest says that the log's clock is why nothing was answered
}

func (r *recovery) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// run writes to the log what it lacks of what was known before, then that it was recovered, and then the new mark. One that does not come to
// its end can be run again.
func (r *recovery) run(ctx context.Context) (err error) {
	n := r.n
	if r.log, err = journal.Open(ctx, n.conn, journal.Config{Create: true, Replicas: n.config.Log.Replicas, MaxAge: n.config.Log.MaxAge, MaxBytes: n.maxBytes()}); err != nil {
		return err
	}
	if r.info, err = r.log.Info(ctx); err != nil {
		return err
	}
	r.id, r.now = uuid.NewString(), time.Now()
	old, found, err := r.marked(ctx)
	if err != nil {
		return err
	}
	r.say("the log is: made %s, sequences %d to %d", at(r.info.Created), r.info.First, r.info.Last)
	if err := r.readSnapshots(); err != nil {
		return err
	}
	if err := r.compare(ctx); err != nil {
		return err
	}
	end, err := r.ended(ctx, old, found)
	if err != nil {
		return err
	}
	present, err := r.fold(ctx, end)
	if err != nil {
		return err
	}
	past, err := r.past(ctx, old, found, present)
	if err != nil {
		return err
	}
	gone, err := r.skip(ctx, past.used)
	if err != nil {
		return err
	}
	if err := r.restore(ctx, past, present); err != nil {
		return err
	}
	seq, err := r.log.Publish(ctx, recoverEvent(r.order, gone))
	if err != nil {
		return err
	}
	if err := r.mark(ctx, seq); err != nil {
		return err
	}
	if err := r.setAside(); err != nil {
		return err
	}
	r.say("recovered at sequence %d with windows %s: ledger %s. Start the processes that hold the log; gateways go on by themselves.", seq, r.order.Windows, r.id)
	return nil
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// marked reads the marks, and gives the newest.
func (r *recovery) marked(ctx context.Context) (m ledger.Mark, found bool, err error) {
	if m, found, err = ledger.Read(r.n.ledgerDir()); err != nil {
		r.say("the mark of the log before cannot be read, and is replaced: %v", err)
	}
	shared, _, err := r.n.sharedMark(ctx, true)
	if err != nil {
		return m, found, err
	}
	other, known, err := shared.Mark(ctx)
	if err != nil {
		r.say("the mark beside the authority cannot be read, and is replaced: %v", err)
	}
	if err == nil && known && (!found || other.Recovered.After(m.Recovered) || other.Recovered.Equal(m.Recovered) && other.Seq > m.Seq) {
		m, found = other, true
	}
	if found {
		r.say("the mark says: ledger %s, made %s, sequence %d", m.ID, at(m.Created), m.Seq)
	} else {
		r.say("no mark of a log before is found")
	}
	return m, found, nil
}

// mark begins the new ledger.
func (r *recovery) mark(ctx context.Context, seq uint64) error {
	m := ledger.Mark{ID: r.id, Created: r.info.Created, Seq: seq, At: time.Now(), Recovered: time.Now(), Reason: r.order.Reason}
	if err := r.log.Read(ctx, seq, seq, func(rec events.Record) error { m.Tail = ledger.Tail(&rec); return nil }); err != nil {
		return err
	}
	shared, _, err := r.n.sharedMark(ctx, true)
	if err != nil {
		return err
	}
	if err := shared.Keep(ctx, m); err != nil {
		return err
	}
	return ledger.Replace(r.n.ledgerDir(), m)
}

// snapshot is the fold as a projector kept it.
type snapshot struct {
	path    string
	created time.Time // of its log
	seq     uint64
	fold    *admission.Fold
	other   bool // the log has something else at its sequence
}

func (r *recovery) snapshotDir() string { return filepath.Join(r.n.config.DataDir, "snapshots") }

// readSnapshots reads those that can be read, the newest first.
func (r *recovery) readSnapshots() error {
	paths, err := filepath.Glob(filepath.Join(r.snapshotDir(), "admission-*.snapshot"))
	if err != nil {
		return err
	}
	sort.Sort(sort.Reverse(sort.StringSlice(paths)))
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		created, f, err := projector.ReadSnapshot(b)
		if err != nil {
			r.say("%s cannot be used: %v", path, err)
			continue
		}
		r.clock = r.clock || len(r.snapshots) == 0 && projector.ClockStopped(b)
		r.snapshots = append(r.snapshots, snapshot{path: path, created: created, seq: f.Seq(), fold: f})
	}
	return nil
}

// compare finds the snapshots at whose sequence the log has what came later: it was cut before, and gateways wrote on.
func (r *recovery) compare(ctx context.Context) error {
	for i := range r.snapshots {
		s := &r.snapshots[i]
		if !r.fits(s) || s.seq < r.info.First {
			continue
		}
		if err := r.log.Read(ctx, s.seq, s.seq, func(rec events.Record) error {
			s.other = rec.At > s.fold.Now()
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// fits says whether a projector can go on in the log from a snapshot.
func (r *recovery) fits(s *snapshot) bool {
	return s.created.Equal(r.info.Created) && s.seq <= r.info.Last && !s.other
}

// setAside takes the snapshots of another log away, or of what is lost of this one: a projector would find that they do not fit.
func (r *recovery) setAside() error {
	aside := r.snapshotDir() + ".before-" + r.id[:8]
	for i := range r.snapshots {
		s := &r.snapshots[i]
		if r.fits(s) {
			continue
		}
		if err := os.MkdirAll(aside, 0o700); err != nil {
			return err
		}
		if err := os.Rename(s.path, filepath.Join(aside, filepath.Base(s.path))); err != nil {
			return err
		}
		r.say("%s does not fit, and is set aside in %s", filepath.Base(s.path), aside)
	}
	return nil
}

// reach is a sequence and its time, ns since 1970.
type reach struct {
	seq uint64
	at  int64
}

// ended is the time of the last that is known of a log that was cut, ns since 1970: what is in the log and came later is of gateways that
// had not noticed, and stands where something else stood. It is the largest number for a log of which nothing tells that it went further.
func (r *recovery) ended(ctx context.Context, old ledger.Mark, found bool) (end int64, err error) {
	for i := range r.snapshots {
		if s := &r.snapshots[i]; s.created.Equal(r.info.Created) && (s.seq > r.info.Last || s.other) {
			end = max(end, s.fold.Now())
		}
	}
	marked, since := found && old.Created.Equal(r.info.Created), generation.Instant(0)
	if marked {
		since = generation.Instant(old.At.UnixNano())
	}
	kept, err := r.audit().After(ctx, generation.Instant(r.info.Created.UnixNano()), r.info.Last, since, func(text []byte) error {
		var rec struct {
			AsOf generation.Place `json:"as_of"`
		}
		if err := json.Unmarshal(text, &rec); err != nil {
			return fmt.Errorf("read an audit record: %w", err)
		}
		if rec.AsOf.Seq > r.info.Last {
			end = max(end, int64(rec.AsOf.Time))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for i := range kept.Facts {
		end = max(end, int64(kept.Facts[i].At.Time))
	}
	switch {
	case end != 0:
		return end, nil
	case marked && old.Seq > r.info.Last: // by the clock of who wrote it, which the log's may differ from a little
		return old.At.UnixNano(), nil
	}
	return math.MaxInt64, nil
}

// fold folds the log as it is: from its beginning, or where that was forgotten by age from a snapshot. It notes the last sequence up to an
// instant, and what finals and releases came after it.
func (r *recovery) fold(ctx context.Context, end int64) (*admission.Fold, error) {
	f, from := admission.New(), uint64(0)
	for i := range r.snapshots {
		if s := &r.snapshots[i]; r.info.First > 1 && r.fits(s) && s.seq+1 >= r.info.First {
			f, from = cloned(s.fold), s.seq+1
			break
		}
	}
	if r.info.First > 1 && r.info.Last >= r.info.First && from == 0 {
		return nil, fmt.Errorf("the log begins at sequence %d, and no snapshot reaches back to it: what is left of it says too little; move the broker's directory away, and recover an empty log", r.info.First)
	}
	cut := false
	r.kept, r.since = reach{f.Seq(), f.Now()}, nil
	if from > r.info.Last {
		return f, nil
	}
	err := r.log.Read(ctx, from, 0, func(rec events.Record) error {
		f.Apply(&rec)
		r.note(&rec)
		if cut = cut || rec.At > end; !cut {
			r.kept = reach{f.Seq(), f.Now()}
		} else if kind := rec.Kind(); rec.Fault == "" && (kind == events.KindTrueUp || kind == events.KindRelease) {
			r.since = append(r.since, rec)
		}
		return nil
	})
	if hole, ok := errors.AsType[*journal.Lost](err); ok {
		return nil, fmt.Errorf("%w: what is left of it says too little; move the broker's directory away, and recover an empty log", hole)
	}
	return f, err
}

// note notes what a recovery that did not end has passed over.
func (r *recovery) note(rec *events.Record) {
	if _, ended := rec.Data.(*events.Recover); ended {
		r.passed = lost{}
	}
	if strings.HasPrefix(rec.ID, "recover/") && strings.Contains(rec.ID, skipMark) {
		if r.passed.to = rec.Seq; r.passed.from == 0 {
			r.passed.from = rec.Seq
		}
	}
}

// cloned gives a fold of the same state.
func cloned(f *admission.Fold) *admission.Fold {
	same, err := admission.Restore(f.Snapshot(nil))
	if err != nil { // cannot be: it was written here
		panic("recover: " + err.Error())
	}
	return same
}
