package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/projections/generation"
)

// Rebuild is a schema that is built beside the one that serves, and then takes its place.
type Rebuild struct {
	*Store          // writes to the new schema
	From, To Schema // the one that serves, and the new one

	lock *pgxpool.Conn // held while it is built: there is one rebuild at a time
}

// NewRebuild makes a new, empty schema. What a rebuild that did not come to its end has left is dropped. Done gives back what it holds.
func NewRebuild(ctx context.Context, config Config) (r *Rebuild, err error) {
	if _, err := first(ctx, config.Pool, config.URL); err != nil {
		return nil, err
	}
	r = &Rebuild{Store: New(config)}
	if r.lock, err = config.Pool.Acquire(ctx); err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	var free bool
	err = r.lock.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended('weir audit rebuild ' || current_schema(), 0))").Scan(&free)
	if err == nil && !free {
		err = errors.New("rebuild the audit records: another rebuild is under way")
	}
	if err == nil {
		_, err = Drop(ctx, config.Pool, Building)
	}
	if err == nil {
		err = locked(ctx, config.Pool, func(conn *pgxpool.Conn) (err error) {
			if r.From, _, err = serving(ctx, conn); err == nil {
				if err = migrate(ctx, config.URL, r.From.Name); err == nil { // an auditor of before may be the last that wrote it
					r.To, err = build(ctx, conn, config.URL)
				}
			}
			return err
		})
	}
	if err != nil {
		r.Done()
		return nil, err
	}
	return r, nil
}

// Done gives the connections back.
func (r *Rebuild) Done() {
	r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), readFor)
	defer cancel()
	_ = r.lock.Conn().Close(ctx) // and with it the lock
	r.lock.Release()
}

// Open begins to write in the new schema.
func (r *Rebuild) Open(ctx context.Context) (generation.Place, error) {
	return r.openIn(ctx, r.To.Name)
}

// Carry copies the records that a log, from its first sequence that it still holds, does not tell whole. It gives how many there are.
func (r *Rebuild) Carry(ctx context.Context, log generation.Instant, first uint64) (carried int64, err error) {
	conn := r.lock
	rows, err := conn.Query(ctx, "SELECT DISTINCT date_trunc('day', made, 'UTC') FROM "+generations.in(r.From.Name)+" WHERE log <> $1 OR first_seq < $2", int64(log), int64(first))
	if err != nil {
		return 0, fmt.Errorf("look for records that the log no longer tells: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return 0, fmt.Errorf("look for records that the log no longer tells: %w", err)
	}
	if _, err := r.Open(ctx); err != nil {
		return 0, err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf("INSERT INTO %s SELECT * FROM %s WHERE log <> $1 OR seq < $2 ON CONFLICT DO NOTHING",
		pgx.Identifier{r.To.Name, facts}.Sanitize(), pgx.Identifier{r.From.Name, facts}.Sanitize()), int64(log), int64(first)); err != nil {
		return 0, fmt.Errorf("carry over what is kept beside the records: %w", err)
	}
	for _, of := range all {
		n, err := r.carryDay(ctx, conn, dayOf(of), log, first)
		if err != nil {
			return carried, fmt.Errorf("carry the records of %s over: %w", of.UTC().Format(time.DateOnly), err)
		}
		carried += n
	}
	return carried, nil
}

func (r *Rebuild) carryDay(ctx context.Context, conn *pgxpool.Conn, of time.Time, log generation.Instant, first uint64) (carried int64, err error) {
	if err := r.days.make(ctx, conn, of, r.config.Now()); err != nil {
		return 0, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, t := range tables {
			id := "request"
			if t == &generations {
				id = "id"
			}
			tag, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %s (%s) SELECT %s FROM %s g JOIN %s t ON t.made = g.made AND t.%s = g.id
				WHERE g.made >= $1 AND g.made < $2 AND (g.log <> $3 OR g.first_seq < $4) ON CONFLICT DO NOTHING`,
				t.in(r.To.Name), strings.Join(t.columns, ", "), "t."+strings.Join(t.columns, ", t."), generations.in(r.From.Name), t.in(r.From.Name), id),
				of, of.Add(day), int64(log), int64(first))
			if err != nil {
				return err
			}
			if t == &generations {
				carried = tag.RowsAffected()
			}
		}
		return nil
	})
	return carried, err
}

// Behind gives how far the schema that serves is before a place, in sequences; 0 if it is not.
func (r *Rebuild) Behind(ctx context.Context, at generation.Place) (uint64, error) {
	var served generation.Place
	err := r.config.Pool.QueryRow(ctx, "SELECT log, seq FROM "+pgx.Identifier{r.From.Name, "position"}.Sanitize()).Scan(&served.Log, &served.Seq)
	if err != nil {
		return 0, fmt.Errorf("read how far the audit records go: %w", err)
	}
	return behind(at, served), nil
}

// behind gives how far a place is behind another. One in an older log is as far as can be.
func behind(at, served generation.Place) uint64 {
	switch {
	case served.Log > at.Log:
		return ^uint64(0)
	case served.Log < at.Log:
		return 0
	}
	return max(served.Seq, at.Seq) - at.Seq
}

// Switch lets the new schema serve. The writer of the old one is held up while reach has brought the new one to where that is: reach gives
// the place to which the new one then tells, and ends its writing. From then on the old one is written no more, and its writer goes on in
// the new one.
func (r *Rebuild) Switch(ctx context.Context, reach func(ctx context.Context, to generation.Place) (generation.Place, error)) error {
	err := pgx.BeginFunc(ctx, r.lock, func(tx pgx.Tx) error {
		var to generation.Place
		err := tx.QueryRow(ctx, "UPDATE "+pgx.Identifier{r.From.Name, "position"}.Sanitize()+" SET closed = true RETURNING log, seq").Scan(&to.Log, &to.Seq)
		if err != nil {
			return err
		}
		at, err := reach(ctx, to)
		if err != nil {
			return err
		}
		if n := behind(at, to); n > 0 {
			return fmt.Errorf("the new schema is %d messages behind the one that serves", n)
		}
		return serve(ctx, tx, r.To.Name)
	})
	if err != nil {
		return fmt.Errorf("switch from %s to %s: %w", r.From.Name, r.To.Name, err)
	}
	return nil
}
