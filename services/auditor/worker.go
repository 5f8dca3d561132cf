package auditor

import (
	"context"
	"errors"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/estimator"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/services/follow"
)

// worker is an auditor's work while it is the one that writes. It belongs to one goroutine.
type worker struct {
	a     *Auditor
	store *store
	gens  *generation.Generations
	est   *estimator.Estimator

	applied uint64    // the last sequence taken
	created time.Time // when the log was made
	stored  position  // what is in the bucket
	came    time.Time // when something last came
	turned  time.Time // when complete records were last written
	saved   time.Time // when all were
}

// begin opens the buckets and finds the position.
func (w *worker) begin(ctx context.Context) error {
	for {
		err := w.store.make(ctx, w.a.cfg)
		if err == nil {
			break
		}
		w.a.warn("open the buckets", err)
		if w.a.cfg.Conn.IsClosed() {
			return err
		}
		if err := follow.Pause(ctx, retryPause); err != nil {
			return err
		}
	}
	w.gens, w.est = generation.New(), estimator.New()
	var err error
	if w.stored, err = w.store.position(ctx); err != nil {
		return err
	}
	learned, err := w.store.learned(ctx)
	if err != nil {
		w.a.warn("read what was learned of models", err)
	}
	for _, l := range learned {
		w.est.Restore(l)
	}
	w.a.learned(learned)
	w.applied, w.created = w.stored.Seq, w.stored.Created
	if !w.created.IsZero() {
		w.of(w.created)
	}
	now := w.a.cfg.Now()
	w.came, w.turned, w.saved = now, now, now
	w.a.note(func(s *Status) { *s = Status{Position: w.stored.Seq, Applied: w.applied} })
	return nil
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
			w.applied = lost.First - 1
			continue
		}
		if _, ok := errors.AsType[*journal.Replaced](err); ok {
			w.a.warn("the audit goes on with what the log holds now", err)
			w.applied, w.created = 0, time.Time{}
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
	texts, err := w.store.getAll(ctx, ids)
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
	case now.Sub(w.saved) >= storeEvery && (changed > 0 || w.applied != w.stored.Seq), // once a second
		changed > 0 && now.Sub(w.came) >= restAfter,
		w.gens.Full():
		return w.save(ctx)
	case changed >= manyChange, changed > 0 && now.Sub(w.turned) >= turnEvery:
		w.turned = now
		_, err := w.write(ctx, false)
		return err
	}
	return nil
}

// write writes changed records, and says how many.
func (w *worker) write(ctx context.Context, all bool) (int, error) {
	records := w.gens.Drain(all)
	puts := make([]put, len(records))
	for i, rec := range records {
		puts[i] = put{KeyOf(rec.ID), encode(rec)}
	}
	if err := w.store.putAll(ctx, puts); err != nil {
		return 0, err
	}
	w.a.note(func(s *Status) { s.Written += uint64(len(puts)) })
	return len(puts), nil
}

// save writes all changed records, what was learned, and then the position.
func (w *worker) save(ctx context.Context) error {
	for {
		n, err := w.write(ctx, true)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	if learned := w.est.Drain(); len(learned) > 0 {
		w.store.putLearned(ctx, learned)
		w.a.learned(learned)
	}
	p := position{Seq: w.applied, Created: w.created, By: w.a.cfg.Name}
	if p.Seq != w.stored.Seq || !p.Created.Equal(w.stored.Created) {
		if err := w.store.putPosition(ctx, p); err != nil {
			return err
		}
		w.stored = p
	}
	w.saved = w.a.cfg.Now()
	w.turned = w.saved
	w.a.note(func(s *Status) { s.Position, s.Held = p.Seq, w.gens.Held() })
	return nil
}

func (a *Auditor) learned(all []estimator.Learned) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range all {
		a.ratios[l.Model] = l.Ratio
	}
}
