package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/postgres"
)

// Bounds of what is asked of PostgreSQL.
const (
	// askFor bounds one question when the caller's context does not end earlier: at a server that takes 2 s for each answer a new
	// connection and a question are a few of them.
	askFor = 10 * time.Second

	// batchRows is how many records one statement writes.
	batchRows = 5_000

	// keptFor is how long changes are kept to be followed, and marks of what was taken away with them. A follower that was away for longer
	// reads everything again.
	keptFor = time.Hour

	// undoFor bounds the undoing of a change whose context has ended.
	undoFor = 3 * time.Second
)

// channel is where followers are told that there is a change.
const channel = "weir_authority"

// PostgresConfig says what of a database is used.
type PostgresConfig struct {
	// Users says that the process manages, so that Follow also gives it what people sign in with. Defaults to false.
	Users bool
}

// Postgres is a Backend and Sessions in PostgreSQL. A change is one transaction that holds the row of the newest change from its
// beginning, so that changes are made one after another; what a follower lacks are the records whose change is newer than its own.
type Postgres struct {
	pool   *pgxpool.Pool
	config PostgresConfig
}

var (
	_ Backend  = (*Postgres)(nil)
	_ Sessions = (*Postgres)(nil)
)

// OpenPostgres keeps authority in the schema that the pool's search path names first. Nothing is asked yet.
func OpenPostgres(pool *pgxpool.Pool, config PostgresConfig) *Postgres {
	return &Postgres{pool, config}
}

// Head is the newest change.
func (s *Postgres) Head(ctx context.Context) (m Mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if m, err = headOf(ctx, s.pool, ""); err != nil {
		return Mark{}, fmt.Errorf("read the newest change: %w", away(err))
	}
	return m, nil
}

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func headOf(ctx context.Context, q querier, lock string) (m Mark, err error) {
	err = q.QueryRow(ctx, "SELECT n, id FROM authority_head"+lock, pgx.QueryExecModeExec).Scan(&m.N, &m.ID)
	return m, err
}

// Commit makes a change after base.
func (s *Postgres) Commit(ctx context.Context, base Mark, id string, writes []Write, last func(context.Context) error) (Mark, error) {
	mark := Mark{N: base.N + 1, ID: id}
	doing := fmt.Sprintf("commit change %d", mark.N)
	if err := fit(writes); err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, err)
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, away(err))
	}
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoFor)
		defer cancel()
		_ = tx.Rollback(undo) // after a commit there is nothing to undo, and without a connection the server does it
	}()
	if err := prepare(ctx, tx, base, mark, writes); err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, away(err))
	}
	if last != nil {
		if err := last(ctx); err != nil {
			return Mark{}, err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, uncertain(err))
	}
	return mark, nil
}

// fit says whether writes are within what one change may write.
func fit(writes []Write) error {
	if len(writes) > MaxWrites {
		return &failure{err: fmt.Errorf("it writes %d records, more than %d", len(writes), MaxWrites), tooLarge: true}
	}
	for _, w := range writes {
		if len(w.Value) > MaxRecord {
			return &failure{err: fmt.Errorf("record %s is %d bytes long: at most %d", w.Ref, len(w.Value), MaxRecord), tooLarge: true}
		}
	}
	return nil
}

// prepare writes a change in a transaction, which then holds the newest change's row.
func prepare(ctx context.Context, tx pgx.Tx, base, mark Mark, writes []Write) error {
	head, err := headOf(ctx, tx, " FOR UPDATE")
	if err != nil {
		return err
	}
	if head.N != base.N || head.ID != base.ID {
		return &failure{err: fmt.Errorf("change %d is there already", head.N), conflict: true}
	}
	var all pgx.Batch
	for begin := 0; begin < len(writes); begin += batchRows {
		put(&all, mark.N, writes[begin:min(begin+batchRows, len(writes))])
	}
	n := int64(mark.N)
	all.Queue("INSERT INTO authority_changes (n, id) VALUES ($1, $2)", n, mark.ID)
	all.Queue("UPDATE authority_head SET n = $1, id = $2", n, mark.ID)
	all.Queue("DELETE FROM authority_changes WHERE at < now() - $1::interval AND n < $2", keptFor, n)
	all.Queue("DELETE FROM authority_records WHERE value IS NULL AND n < (SELECT min(n) FROM authority_changes)")
	all.Queue("SELECT pg_notify($1, $2)", channel, fmt.Sprint(n))
	return tx.SendBatch(ctx, &all).Close()
}

// put adds the writing of some records to a batch.
func put(all *pgx.Batch, n uint64, writes []Write) {
	names, values := make([]string, len(writes)), make([]*string, len(writes))
	for i, w := range writes {
		names[i] = nameOf(w.Ref)
		if w.Value != nil {
			text := string(w.Value)
			values[i] = &text
		}
	}
	all.Queue(`INSERT INTO authority_records (record, n, value) SELECT record, $1, value::json FROM unnest($2::text[], $3::text[]) AS w (record, value)
		ON CONFLICT (record) DO UPDATE SET n = excluded.n, value = excluded.value`, int64(n), names, values)
}

// Follow gives all that is kept and then each change. It is told of changes by the server, and looks by itself too: where the
// connection passes through a pool of others it may never be told.
func (s *Postgres) Follow(ctx context.Context, to func(Update)) error {
	f := &listener{s: s, to: to}
	return follow(ctx, func() (read bool, err error) { return f.run(ctx), nil })
}

// listener follows over one connection after the other.
type listener struct {
	s      *Postgres
	to     func(Update)
	mark   Mark
	loaded bool
}

// run follows over one connection until it fails, and says whether anything could be read.
func (f *listener) run(ctx context.Context) (read bool) {
	conn, err := pgx.ConnectConfig(ctx, f.s.pool.Config().ConnConfig)
	if err != nil {
		return false
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoFor)
		defer cancel()
		_ = conn.Close(end) // who waits for the server to say goodbye gains nothing
	}()
	listening, cancel := context.WithTimeout(ctx, askFor)
	_, err = conn.Exec(listening, "LISTEN "+channel)
	if cancel(); err != nil {
		return false
	}
	for {
		if err := f.look(ctx, conn); err != nil {
			return read
		}
		read = true
		wait, cancel := context.WithTimeout(ctx, lookEvery)
		_, err := conn.WaitForNotification(wait)
		cancel()
		if err != nil && (ctx.Err() != nil || !pgconn.Timeout(err)) {
			return read
		}
	}
}

// look reads what is new, if anything is. What it does not have, it has after two questions.
func (f *listener) look(ctx context.Context, conn *pgx.Conn) error {
	asking, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	var head Mark
	var follows bool // what is known is a change of the history that is kept
	err := conn.QueryRow(asking, "SELECT n, id, EXISTS (SELECT FROM authority_changes WHERE n = $1 AND id = $2) FROM authority_head",
		pgx.QueryExecModeExec, int64(f.mark.N), f.mark.ID).
		Scan(&head.N, &head.ID, &follows)
	if err != nil || f.loaded && head == f.mark {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, largeWithin)
	defer cancel()
	u, err := f.update(ctx, conn, !f.loaded || !follows)
	if err != nil {
		return err
	}
	f.mark, f.loaded = u.Mark, true
	f.to(u)
	return nil
}

// update reads what the follower lacks, or everything, in one statement and so as of one moment.
func (f *listener) update(ctx context.Context, conn *pgx.Conn, everything bool) (u Update, err error) {
	query, after := "SELECT h.n, h.id, r.record, r.value::text FROM authority_head h LEFT JOIN authority_records r ON r.n > $1", int64(f.mark.N)
	if everything {
		query, after = query+" AND r.value IS NOT NULL", -1
	}
	rows, err := conn.Query(ctx, query+" ORDER BY r.record", pgx.QueryExecModeExec, after)
	if err != nil {
		return u, err
	}
	defer rows.Close()
	u.Reset = everything
	for rows.Next() {
		var name, value *string
		if err := rows.Scan(&u.Mark.N, &u.Mark.ID, &name, &value); err != nil {
			return u, err
		}
		if name == nil { // no record, but the newest change
			continue
		}
		ref, ok := named(*name)
		if !ok || ref.Kind == authority.KindUser && !f.s.config.Users {
			continue
		}
		w := Write{Ref: ref}
		if value != nil {
			w.Value = json.RawMessage(*value)
		}
		u.Writes = append(u.Writes, w)
	}
	return u, rows.Err()
}

// PutSession keeps a session for a while, and forgets those that have expired.
func (s *Postgres) PutSession(ctx context.Context, hash authority.Hash, session []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if session == nil {
		session = []byte{}
	}
	_, err := s.pool.Exec(ctx, `WITH expired AS (DELETE FROM authority_sessions WHERE until < now() AND hash <> $1)
		INSERT INTO authority_sessions (hash, session, until) VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (hash) DO UPDATE SET session = excluded.session, until = excluded.until`, hash[:], session, max(ttl, time.Second))
	if err != nil {
		return fmt.Errorf("keep a session: %w", uncertain(err))
	}
	return nil
}

// Session gives a session.
func (s *Postgres) Session(ctx context.Context, hash authority.Hash) (session []byte, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	err = s.pool.QueryRow(ctx, "SELECT session FROM authority_sessions WHERE hash = $1 AND until > now()", hash[:]).Scan(&session)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read a session: %w", away(err))
	}
	return session, true, nil
}

// DropSession forgets a session.
func (s *Postgres) DropSession(ctx context.Context, hash authority.Hash) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if _, err := s.pool.Exec(ctx, "DELETE FROM authority_sessions WHERE hash = $1", hash[:]); err != nil {
		return fmt.Errorf("forget a session: %w", uncertain(err))
	}
	return nil
}

// away marks err as the database's absence, if it is.
func away(err error) error {
	if _, own := errors.AsType[*failure](err); own {
		return err
	}
	if postgres.Refuses(err) {
		return err
	}
	return &failure{err: err, unavailable: true}
}

// uncertain marks the error of a commit. What the server refused was not made, unless it was about to go away itself.
func uncertain(err error) error {
	word, refused := errors.AsType[*pgconn.PgError](err)
	if errors.Is(err, pgx.ErrTxCommitRollback) || refused && word.Severity == "ERROR" && word.Code != "40003" && word.Code != "08007" {
		return away(err)
	}
	return &failure{err: err, unavailable: true, unsure: true}
}
