package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/projections/generation"
)

// facts is the table of what the log says beside its requests.
const facts = "facts"

// putFacts keeps facts; those that are kept already stay.
func putFacts(ctx context.Context, tx pgx.Tx, schema string, all []generation.Fact) error {
	if len(all) == 0 {
		return nil
	}
	var batch pgx.Batch
	insert := "INSERT INTO " + pgx.Identifier{schema, facts}.Sanitize() + ` (log, seq, n, at, kind, org, amount_nano, reference, version, from_seq, to_seq)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING`
	for i := range all {
		f := &all[i]
		batch.Queue(insert, int64(f.At.Log), int64(f.At.Seq), f.At.Index, instant(f.At.Time), f.Kind, clean(string(f.Org)), f.AmountNano, clean(f.Reference),
			f.Version, int64(f.From), int64(f.To))
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("keep facts: %w", err)
	}
	return nil
}

// longest is how long a request may run, and so for how long before something came of it its id may say that it was made.
const longest = 25 * time.Hour

// After gives what is kept of a log and hangs on what came after a sequence, at one instant: each record, as JSON, that tells of something
// beyond it or of a request that has not ended, and the facts. at is when that sequence was written; 0: all records are looked through.
func (r *Reader) After(ctx context.Context, log generation.Instant, seq uint64, at generation.Instant, each func(record []byte) error) (kept generation.Kept, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		s, found, err := serving(ctx, tx)
		if err != nil || !found {
			return err
		}
		var to generation.Place
		if err := tx.QueryRow(ctx, "SELECT log, seq FROM "+pgx.Identifier{s.Name, "position"}.Sanitize()).Scan(&to.Log, &to.Seq); err != nil {
			return fmt.Errorf("read how far the audit records go: %w", err)
		}
		if kept.To = to.Seq; to.Log != log {
			err := tx.QueryRow(ctx, "SELECT coalesce(max(last_seq), 0) FROM "+generations.in(s.Name)+" WHERE log = $1", int64(log)).Scan(&kept.To)
			if err != nil {
				return fmt.Errorf("read how far the audit records of that log go: %w", err)
			}
		}
		if kept.Facts, err = factsAfter(ctx, tx, s.Name, log, seq); err != nil {
			return err
		}
		since := time.Unix(0, 0)
		if at != 0 {
			since = instant(at).Add(-longest)
		}
		rows, err := tx.Query(ctx, "SELECT record FROM "+generations.in(s.Name)+
			" WHERE log = $1 AND (last_seq > $2 OR state = $3) AND (made >= $4 OR made <= 'epoch')", int64(log), int64(seq), generation.InProgress, since)
		if err != nil {
			return fmt.Errorf("read the audit records: %w", err)
		}
		return r.unpackEach(rows, each)
	})
	return kept, err
}

func (r *Reader) unpackEach(rows pgx.Rows, each func(record []byte) error) error {
	var packed []byte
	_, err := pgx.ForEachRow(rows, []any{&packed}, func() error {
		record, err := r.packer.unpack(packed)
		if err != nil {
			return err
		}
		return each(record)
	})
	return err
}

func factsAfter(ctx context.Context, tx pgx.Tx, schema string, log generation.Instant, seq uint64) (all []generation.Fact, err error) {
	rows, err := tx.Query(ctx, "SELECT seq, n, at, kind, org, amount_nano, reference, version, from_seq, to_seq FROM "+pgx.Identifier{schema, facts}.Sanitize()+
		" WHERE log = $1 AND seq > $2 ORDER BY seq, n", int64(log), int64(seq))
	if err == nil {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f generation.Fact, err error) {
			var at time.Time
			f.At.Log = log
			err = row.Scan(&f.At.Seq, &f.At.Index, &at, &f.Kind, &f.Org, &f.AmountNano, &f.Reference, &f.Version, &f.From, &f.To)
			f.At.Time = generation.Instant(at.UnixNano())
			return f, err
		})
	}
	if err != nil {
		err = fmt.Errorf("read what is kept beside the audit records: %w", reason(err))
	}
	return all, err
}
