package biller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/services/follow"
)

// Record is a line as the stream holds it.
type Record struct {
	Seq  uint64 // in the stream USAGE
	ID   string // the CloudEvents id, the same whenever it comes
	Line usage.Line
	Data []byte // the line's JSON

	Written time.Time // when it came into the stream
}

// Exporter hands lines to a system outside. What it was given before, in part or whole, it may be given again.
type Exporter interface {
	// Export returns when all records are taken, or why no more than the first ones are, and how many. An error that is *Rejected means
	// that the rest will never be taken as it is: it is then given in parts, and what is rejected alone becomes a dead letter. After any
	// other error the rest is given again, later.
	Export(ctx context.Context, records []Record) (taken int, err error)
}

// Rejected says that a system outside will not take records as they are.
type Rejected struct {
	Reason string
}

func (e *Rejected) Error() string { return "rejected: " + e.Reason }

// later is an error with the least time after which to try again.
type later struct {
	error
	after time.Duration
}

func (l *later) Unwrap() error { return l.error }

// How an export reads and tries.
const (
	fetchFor    = time.Second            // to wait for lines
	idlePause   = 200 * time.Millisecond // while another biller exports
	firstWait   = 100 * time.Millisecond // before a try again; doubled up to MaxWait
	durableName = "export-"
)

// export is an Export that runs. It belongs to one goroutine.
type export struct {
	Export
	b      *Biller
	stream *stream
}

// run hands on lines until ctx ends, while this biller writes.
func (x *export) run(ctx context.Context) error {
	var consumer jetstream.Consumer
	for ctx.Err() == nil {
		if !x.b.writing.Load() {
			consumer = nil
			x.failing(nil) // whoever writes knows
			_ = follow.Pause(ctx, idlePause)
			continue
		}
		var err error
		if consumer == nil {
			consumer, err = x.open(ctx)
		}
		if err == nil {
			err = x.step(ctx, consumer)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, errLost) {
			x.b.warn("export "+x.Name, err)
			x.failing(err)
			consumer = nil
			_ = follow.Pause(ctx, retryPause)
		}
	}
	return nil
}

// open makes the durable consumer, or finds the one that is there.
func (x *export) open(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	cfg := jetstream.ConsumerConfig{
		Durable: durableName + x.Name, Description: "Weir: lines handed on to " + x.Name, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: x.AckWait, MaxAckPending: x.Batch, MaxDeliver: -1,
	}
	for _, org := range x.Orgs {
		cfg.FilterSubjects = append(cfg.FilterSubjects, SubjectPrefix+string(org))
	}
	if !x.From.IsZero() {
		from := x.From.UTC()
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
	}
	have, err := x.stream.js.Consumer(ctx, Stream, cfg.Durable)
	if err == nil { // where it began cannot be changed
		c := have.CachedInfo().Config
		cfg.DeliverPolicy, cfg.OptStartTime, cfg.OptStartSeq = c.DeliverPolicy, c.OptStartTime, c.OptStartSeq
	}
	return x.stream.js.CreateOrUpdateConsumer(ctx, Stream, cfg)
}

// step hands on one batch.
func (x *export) step(ctx context.Context, consumer jetstream.Consumer) error {
	batch, err := consumer.Fetch(x.Batch, jetstream.FetchMaxWait(fetchFor))
	if err != nil {
		return err
	}
	var msgs []jetstream.Msg
	var records []Record
	behind := uint64(0)
	for m := range batch.Messages() {
		r := Record{ID: m.Headers().Get("ce-id"), Data: m.Data()}
		if meta, err := m.Metadata(); err == nil {
			r.Seq, r.Written, behind = meta.Sequence.Stream, meta.Timestamp, meta.NumPending
		}
		msgs = append(msgs, m)
		if r.Line, err = usage.Decode(r.Data); err != nil {
			if err := x.bury(r, err.Error()); err != nil {
				return err
			}
			continue
		}
		records = append(records, r)
	}
	if len(msgs) == 0 {
		if batch.Error() == nil {
			x.b.noteExport(x.Name, func(s *ExportStatus) { s.Behind, s.Oldest = 0, time.Time{} })
			x.failing(nil)
		}
		return batch.Error()
	}
	x.behind(records, behind)
	stop := x.hold(ctx, msgs)
	err = x.deliver(ctx, records)
	stop()
	if err != nil {
		return err
	}
	for _, m := range msgs[:len(msgs)-1] {
		if err := m.Ack(); err != nil {
			return err
		}
	}
	return msgs[len(msgs)-1].DoubleAck(ctx)
}

// behind notes what is still to be handed on: some records, and so many more in the stream.
func (x *export) behind(records []Record, more uint64) {
	x.b.noteExport(x.Name, func(s *ExportStatus) {
		if s.Behind = more + uint64(len(records)); len(records) > 0 {
			s.Oldest = records[0].Written
		}
	})
}

// took notes that records are handed on, or are dead. The next ones are taken to be as old, until they are read.
func (x *export) took(records []Record) {
	x.b.noteExport(x.Name, func(s *ExportStatus) {
		if s.Behind -= min(s.Behind, uint64(len(records))); s.Behind == 0 {
			s.Oldest = time.Time{}
		}
	})
}

// hold keeps the stream from giving messages again while they are tried.
func (x *export) hold(ctx context.Context, msgs []jetstream.Msg) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for follow.Pause(ctx, x.AckWait/3) == nil {
			for _, m := range msgs {
				_ = m.InProgress() // they are given again, then
			}
		}
	}()
	return func() { cancel(); <-done }
}

// deliver hands records on until all are taken or dead, or ctx ends.
func (x *export) deliver(ctx context.Context, records []Record) error {
	wait := &backoff.ExponentialBackOff{InitialInterval: x.FirstWait, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: x.MaxWait}
	wait.Reset()
	for len(records) > 0 {
		taken, err := x.To.Export(ctx, records)
		if err == nil {
			taken = len(records)
		}
		if taken > 0 {
			x.failing(nil)
			x.b.noteExport(x.Name, func(s *ExportStatus) { s.Exported += uint64(taken) })
			x.took(records[:taken])
			records = records[taken:]
			wait.Reset()
		}
		if err == nil {
			continue
		}
		if rejected, ok := errors.AsType[*Rejected](err); ok {
			return x.divide(ctx, records, rejected)
		}
		if err := x.rest(ctx, err, wait.NextBackOff()); err != nil {
			return err
		}
	}
	return nil
}

// divide finds what is rejected of some records.
func (x *export) divide(ctx context.Context, records []Record, rejected *Rejected) error {
	if len(records) == 1 {
		return x.bury(records[0], rejected.Reason)
	}
	half := len(records) / 2
	if err := x.deliver(ctx, records[:half]); err != nil {
		return err
	}
	return x.deliver(ctx, records[half:])
}

// rest waits before another try.
func (x *export) rest(ctx context.Context, failed error, next time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	x.failing(failed)
	x.b.warn("export "+x.Name+": it is tried again", failed)
	if !x.b.writing.Load() {
		return errLost
	}
	next = min(next, x.MaxWait)
	if l, ok := errors.AsType[*later](failed); ok {
		next = max(next, l.after)
	}
	return follow.Pause(ctx, next)
}

// failing notes that a try failed, or with nil that one did not.
func (x *export) failing(err error) {
	x.b.noteExport(x.Name, func(s *ExportStatus) {
		if err == nil {
			s.Failing = time.Time{}
			return
		}
		now := x.b.cfg.Now()
		if s.Failures, s.FailedAt, s.Failed = s.Failures+1, now, err.Error(); s.Failing.IsZero() {
			s.Failing = now
		}
	})
}

var errLost = errors.New("another biller exports")

// bury keeps a record that will never be taken, with the reason.
func (x *export) bury(r Record, reason string) error {
	path := x.DeadLetters
	if path == "" {
		if x.b.cfg.DataDir == "" {
			return fmt.Errorf("line %s was rejected (%s), and there is no file for dead letters", r.ID, reason)
		}
		path = LetterFile(filepath.Join(x.b.cfg.DataDir, folder), x.Name)
	}
	data := json.RawMessage(r.Data)
	if !json.Valid(data) {
		data, _ = json.Marshal(string(r.Data)) // a string can be written
	}
	text, err := json.Marshal(letter{r.ID, r.Seq, reason, data})
	if err != nil {
		return fmt.Errorf("keep dead letter %s: %w", r.ID, err)
	}
	if err := keep(path, append(text, '\n')); err != nil {
		return fmt.Errorf("keep dead letter %s: %w", r.ID, err)
	}
	x.b.noteExport(x.Name, func(s *ExportStatus) { s.Dead++ })
	x.failing(nil)
	x.took([]Record{r})
	x.b.warn("export "+x.Name+": a line is a dead letter", fmt.Errorf("line %s: %s", r.ID, reason))
	return nil
}

// appendTo appends to a file, and returns when it is on the disk.
func appendTo(path string, text []byte) error {
	file, err := openEnd(path)
	if err != nil {
		return err
	}
	return writeEnd(file, text)
}

// openEnd opens a file to append to; it and its folder are made if they are not there.
func openEnd(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}

// writeEnd writes to a file, and closes it when that is on the disk.
func writeEnd(file *os.File, text []byte) error {
	_, err := file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}
