package auditor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/estimator"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/services/follow"
)

// worker is an auditor's work while it is the one that writes. It belongs to one goroutine.
type worker struct {
	a     *Auditor
	store Store
	learn *learnedStore
	gens  *generation.Generations
	est   *estimator.Estimator

	applied uint64           // the last sequence taken
	created time.Time        // when the log was made
	stored  generation.Place // up to where the kept records tell
	came    time.Time        // when something last came
	turned  time.Time        // when complete records were last written
	saved   time.Time        // when all were
	unmade  *unmade          // a write that is still to be made
}

// unmade is a write that is not known to have been made.
type unmade struct {
	rows  []generation.Row
	facts []generation.Fact
	to    generation.Place
}

// begin opens the store and finds the position.
func (w *worker) begin(ctx context.Context) error {
	js, err := jetstream.New(w.a.cfg.Conn)
	if err != nil {
		return err
	}
	w.gens, w.est = generation.New(), estimator.New()
	err = w.surely(ctx, "open what records are kept in", func() (err error) {
		w.stored, err = w.store.Open(ctx)
		return err
	})
	if err != nil {
		return err
	}
	w.learn = openLearned(ctx, js, w.a.cfg, w.a.warn)
	learned, err := w.learn.read(ctx)
	if err != nil {
		w.a.warn("read what was learned of models", err)
	}
	for _, l := range learned {
		w.est.Restore(l)
	}
	w.a.learned(learned)
	w.applied = w.stored.Seq
	if w.stored.Log != 0 {
		w.of(time.Unix(0, int64(w.stored.Log)).UTC())
	}
	now := w.a.cfg.Now()
	w.came, w.turned, w.saved = now, now, now
	w.a.note(func(s *Status) { *s = Status{Position: w.stored.Seq, Applied: w.applied} })
	return nil
}

// surely does something, however long what it takes is away. The error is ctx's, or says that trying again does not help.
func (w *worker) surely(ctx context.Context, doing string, do func() error) error {
	for {
		err := do()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case moved(err), w.a.cfg.Conn.IsClosed():
			return err
		}
		w.a.warn(doing, err)
		if err := follow.Pause(ctx, retryPause); err != nil {
			return err
		}
	}
}

// of says which log is read.
func (w *worker) of(created time.Time) {
	w.created = created
	w.gens.Of(created.UnixNano())
	w.est.Of(created.UnixNano())
}

// run reads the log until ctx ends; where it cannot be read on, it begins anew at what there is.
func (w *worker) run(ctx context.Context) error {
	for {
		from := uint64(0)
		if w.applied > 0 {
			from = w.applied + 1
		}
		source, err := w.a.cfg.Source(ctx, journal.TapConfig{Name: "auditor", From: from, Created: w.created})
		if err == nil {
			err = follow.Loop{Every: turnEvery, Take: w.take, Turn: w.turn}.Run(ctx, source)
		}
		if ctx.Err() != nil {
			return w.finish(ctx)
		}
		if lost, ok := errors.AsType[*journal.Lost](err); ok {
			w.a.warn("part of the log was not audited", err)
			w.gens.Gap(w.applied+1, lost.First-1)
			w.applied = lost.First - 1
			continue
		}
		if _, ok := errors.AsType[*journal.Replaced](err); ok {
			w.a.warn("the audit goes on with what the log holds now", err)
			w.applied, w.created = 0, time.Time{}
			continue
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			w.a.warn("the audit waits for a log", err)
			if follow.Pause(ctx, follow.GoneFor) != nil {
				return w.finish(ctx)
			}
			continue
		}
		return err
	}
}

// finish writes what there is, unless another auditor writes now.
func (w *worker) finish(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), follow.ErrLost) {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishFor)
	defer cancel()
	if err := w.save(last); err != nil {
		w.a.warn("write the last records: they are read from the log again", err)
	}
	return nil
}

// take applies a batch, after what it needs has been read back.
func (w *worker) take(ctx context.Context, b follow.Batch) error {
	if len(b.Records) == 0 {
		return nil
	}
	w.came = w.a.cfg.Now()
	if !b.Created.Equal(w.created) {
		w.of(b.Created)
	}
	if first := b.Records[0].Seq; w.applied == 0 && first > 1 {
		w.gens.Gap(1, first-1)
	}
	restored, err := w.restore(ctx, b.Records)
	if err != nil {
		return err
	}
	for i := range b.Records {
		w.gens.Apply(&b.Records[i])
		w.est.Apply(&b.Records[i])
	}
	w.applied = b.Records[len(b.Records)-1].Seq
	w.a.note(func(s *Status) {
		s.Applied, s.Held, s.Pending = w.applied, w.gens.Held(), b.Behind
		s.Records += uint64(len(b.Records))
		s.Restored += uint64(restored)
		s.Orphans, s.Dropped, s.Foreign = w.gens.Counts.Orphans, w.gens.Counts.Dropped, w.gens.Counts.Foreign
	})
	return nil
}

// restore reads back the records of requests that a batch speaks of and that have left memory.
func (w *worker) restore(ctx context.Context, records []events.Record) (int, error) {
	var missing, ids []events.RequestID
	here := map[events.RequestID]bool{} // read back, or begun in this batch
	for i := range records {
		missing = w.gens.Missing(missing[:0], &records[i])
		if len(missing) == 0 {
			if d, ok := records[i].Data.(*events.Reserve); ok {
				here[d.Request] = true
			}
		}
		for _, id := range missing {
			if !here[id] {
				here[id] = true
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	var texts [][]byte
	err := w.surely(ctx, "read records back", func() (err error) {
		texts, err = w.store.Read(ctx, ids)
		return err
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for i, text := range texts {
		if text == nil {
			continue
		}
		rec, err := w.gens.Restore(text)
		if err != nil {
			w.a.warn("read back "+string(ids[i]), err)
			continue
		}
		n++
		w.expect(rec)
	}
	return n, nil
}

// expect tells the estimator of attempts whose reserve it may not have seen.
func (w *worker) expect(rec *generation.Record) {
	for i := range rec.Attempts {
		if a := &rec.Attempts[i]; !a.Final && a.Estimate.Images == 0 {
			w.est.Expect(rec.ID, a.Attempt, rec.Model, a.Estimate.TextBytes)
		}
	}
}

// turn writes what is due.
func (w *worker) turn(ctx context.Context) error {
	now := w.a.cfg.Now()
	changed := w.gens.Changed()
	switch {
	case now.Sub(w.saved) >= storeEvery && (changed > 0 || w.applied != w.stored.Seq), w.gens.Full():
		return w.save(ctx)
	case w.a.cfg.Store != nil: // in one transaction with the position, so not all too often
		if changed >= pageSize || changed > 0 && now.Sub(w.saved) >= pageEvery {
			return w.save(ctx)
		}
	case changed > 0 && now.Sub(w.came) >= restAfter:
		return w.save(ctx)
	case changed >= manyChange, changed > 0 && now.Sub(w.turned) >= turnEvery:
		w.turned = now
		return w.write(ctx, w.drain(false), nil, w.stored)
	}
	return nil
}

// drain gives changed records as they are to be kept, up to so many that a write can hold.
func (w *worker) drain(all bool) []generation.Row {
	var rows []generation.Row
	for len(rows) < pageMost {
		records := w.gens.Drain(all)
		for _, rec := range records {
			rows = append(rows, rec.Row())
		}
		if !all || len(records) == 0 {
			break
		}
	}
	return rows
}

// write writes records, and the position if it moves.
func (w *worker) write(ctx context.Context, rows []generation.Row, facts []generation.Fact, to generation.Place) error {
	if len(rows) == 0 && len(facts) == 0 && to == w.stored {
		return nil
	}
	w.unmade = &unmade{rows, facts, to}
	return w.make(ctx)
}

// make makes the write that is still to be made: also one that was broken off, exactly as it was. What was drained for it is nowhere else.
func (w *worker) make(ctx context.Context) error {
	u := w.unmade
	if u == nil {
		return nil
	}
	err := w.surely(ctx, fmt.Sprintf("write %d records", len(u.rows)), func() error { return w.store.Write(ctx, u.rows, u.facts, u.to) })
	if err != nil {
		return err
	}
	w.stored, w.unmade = u.to, nil
	w.a.note(func(s *Status) { s.Written += uint64(len(u.rows)) })
	return nil
}

// save writes all changed records and the position, and keeps what was learned.
func (w *worker) save(ctx context.Context) error {
	if err := w.make(ctx); err != nil {
		return err
	}
	rows := w.drain(true)
	for w.gens.Changed() > 0 { // more than one write holds: the position moves with the last
		if err := w.write(ctx, rows, nil, w.stored); err != nil {
			return err
		}
		rows = w.drain(true)
	}
	if learned := w.est.Drain(); len(learned) > 0 {
		w.learn.put(ctx, learned)
		w.a.learned(learned)
	}
	to := w.stored
	if to.Seq = w.applied; !w.created.IsZero() {
		to.Log = generation.Instant(w.created.UnixNano())
	}
	if err := w.write(ctx, rows, w.gens.Facts(), to); err != nil {
		return err
	}
	w.saved = w.a.cfg.Now()
	w.turned = w.saved
	w.a.note(func(s *Status) { s.Position, s.Held = to.Seq, w.gens.Held() })
	return nil
}

func (a *Auditor) learned(all []estimator.Learned) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range all {
		a.ratios[l.Model] = l.Ratio
	}
}
