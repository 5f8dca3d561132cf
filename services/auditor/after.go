package auditor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/generation"
)

// After gives what the bucket keeps of a log and hangs on what came after a sequence: each record, as JSON, that tells of something beyond
// it or of a request that has not ended, and the facts. It needs the permissions of a role that reads streams.
func (r *Reader) After(ctx context.Context, log generation.Instant, seq uint64, _ generation.Instant, each func(record []byte) error) (kept generation.Kept, err error) {
	js, err := jetstream.New(r.nc)
	if err != nil {
		return kept, err
	}
	asking, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	stream, err := js.Stream(asking, generations)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return kept, nil
	}
	if err != nil {
		return kept, fmt.Errorf("read the audit records: %w", err)
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return kept, nil
	}
	prefix, told := subjectOf(""), uint64(0)
	err = journal.ReadStream(ctx, r.nc, generations, "", state.FirstSeq, state.LastSeq, func(m *journal.Stored) error {
		key := strings.TrimPrefix(m.Subject, prefix)
		if key == positionKey {
			var p position
			if err := json.Unmarshal(m.Data, &p); err != nil {
				return fmt.Errorf("read the position of the records: %w", err)
			}
			if generation.Instant(p.Created.UnixNano()) == log {
				told = max(told, p.Seq)
			}
			return nil
		}
		if strings.HasPrefix(key, factPrefix) {
			var f fact
			if err := json.Unmarshal(m.Data, &f); err != nil {
				return fmt.Errorf("read %s: %w", key, err)
			}
			if f.Fact != nil && f.Fact.At.Log == log && f.Fact.At.Seq > seq {
				kept.Facts = append(kept.Facts, *f.Fact)
			}
			return nil
		}
		return beyond(m.Data, log, seq, &kept, each)
	})
	if told > 0 { // records may be ahead of it, some of them
		kept.To = told
	}
	slices.SortFunc(kept.Facts, func(a, b generation.Fact) int {
		return cmp.Or(cmp.Compare(a.At.Seq, b.At.Seq), cmp.Compare(a.At.Index, b.At.Index))
	})
	return kept, err
}

// beyond hands a record on if it tells of something beyond a sequence.
func beyond(record []byte, log generation.Instant, seq uint64, kept *generation.Kept, each func([]byte) error) error {
	var head struct {
		State string           `json:"state"`
		AsOf  generation.Place `json:"as_of"`
	}
	if json.Unmarshal(record, &head) != nil || head.AsOf.Log != log {
		return nil // a mark of something deleted, or another log's
	}
	kept.To = max(kept.To, head.AsOf.Seq)
	if head.AsOf.Seq <= seq && head.State != generation.InProgress {
		return nil
	}
	return each(record)
}
