package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/generation"
)

// Bounds of calls.
const (
	readFor  = 10 * time.Second
	writeFor = 2 * time.Minute // a large write while a server checkpoints

	lockWithin    = 30 * time.Second // while another process makes, switches or drops schemas
	migrateWithin = 10 * time.Minute // a large table is rewritten
)

// DefaultRetention is how long records are kept.
const DefaultRetention = 30 * day

// Config is how a store is written. All fields without a default are required.
type Config struct {
	URL    string        // of the database, whose search path names the base schema
	Pool   *pgxpool.Pool // of the same
	Writer string        // the process's own name

	// Retention is how long records are kept, by when their request came. Whole days go. Defaults to DefaultRetention.
	Retention time.Duration

	// Now is the clock, for partitions. Defaults to time.Now.
	Now func() time.Time

	// Warn takes what failed and is tried again later. Defaults to nothing.
	Warn func(doing string, err error)
}

// Store writes records. It belongs to one goroutine. After any error Open or the same call may be tried again.
type Store struct {
	config Config
	packer *packer
	schema string
	days   days
	writes int64         // the number of the last write that is known
	conn   *pgxpool.Conn // with its staging tables; nil: there is none now
}

// New makes a store; Open opens it.
func New(config Config) *Store {
	if config.Retention == 0 {
		config.Retention = DefaultRetention
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Warn == nil {
		config.Warn = func(string, error) {}
	}
	return &Store{config: config, packer: newPacker()}
}

// movedError says that somebody else has written, or that another schema serves: what this writer knows is out of date, and it must be opened
// anew.
type movedError struct{}

func (movedError) Error() string {
	return "the records were written by another, or another schema serves now"
}

// Moved says so.
func (movedError) Moved() bool { return true }

// Open finds the schema that serves, makes the first one if there is none, and gives the place in the log up to which its records tell.
func (s *Store) Open(ctx context.Context) (generation.Place, error) {
	found, there, err := serving(ctx, s.config.Pool)
	if err == nil && !there {
		found, err = first(ctx, s.config.Pool, s.config.URL)
	}
	if err == nil && there {
		err = migrate(ctx, s.config.URL, found.Name)
	}
	if err != nil {
		return generation.Place{}, err
	}
	return s.openIn(ctx, found.Name)
}

// openIn begins to write in a schema.
func (s *Store) openIn(ctx context.Context, schema string) (at generation.Place, err error) {
	s.Close()
	s.schema = schema
	s.days = days{schema: schema, retention: s.config.Retention, there: map[time.Time]bool{}}
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	err = s.config.Pool.QueryRow(ctx, "SELECT log, seq, writes FROM "+s.position()).Scan(&at.Log, &at.Seq, &s.writes)
	if err != nil {
		return at, fmt.Errorf("read how far the audit records go: %w", err)
	}
	return at, nil
}

func (s *Store) position() string { return pgx.Identifier{s.schema, "position"}.Sanitize() }

// Close gives the connection back.
func (s *Store) Close() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readFor)
	defer cancel()
	_ = s.conn.Conn().Close(ctx) // with its staging tables
	s.conn.Release()
	s.conn = nil
}

// connection gives the connection by which rows are staged.
func (s *Store) connection(ctx context.Context) (*pgxpool.Conn, error) {
	if s.conn != nil {
		return s.conn, nil
	}
	conn, err := s.config.Pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	s.conn = conn
	for _, t := range tables {
		if _, err := conn.Exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE %s (LIKE %s) ON COMMIT DELETE ROWS", t.staging(), t.in(s.schema))); err != nil {
			s.Close()
			return nil, fmt.Errorf("make the staging table of %s: %w", t.name, err)
		}
	}
	return conn, nil
}

// Read gives the records of requests as JSON, nil for those that are not kept.
func (s *Store) Read(ctx context.Context, ids []events.RequestID) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	when, keys, place := make([]time.Time, len(ids)), make([]string, len(ids)), make(map[string]int, len(ids))
	for i, id := range ids {
		when[i], keys[i] = made(id), generation.Key(id)
		place[keys[i]] = i
	}
	rows, err := s.config.Pool.Query(ctx, "SELECT g.id, g.record FROM unnest($1::timestamptz[], $2::text[]) AS w (made, id) JOIN "+
		generations.in(s.schema)+" g ON g.made = w.made AND g.id = w.id", when, keys)
	if err != nil {
		return nil, fmt.Errorf("read back %d records: %w", len(ids), err)
	}
	defer rows.Close()
	records := make([][]byte, len(ids))
	for rows.Next() {
		var key string
		var packed []byte
		if err := rows.Scan(&key, &packed); err != nil {
			return nil, fmt.Errorf("read back records: %w", err)
		}
		if records[place[key]], err = s.packer.unpack(packed); err != nil {
			return nil, fmt.Errorf("read back %s: %w", key, err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read back %d records: %w", len(ids), err)
	}
	return records, nil
}

// Write keeps records, facts and the place in the log up to which all records now tell, in one transaction. If it fails it is tried again with the
// same until it succeeds: a write whose commit was not acknowledged is then known to have been made.
func (s *Store) Write(ctx context.Context, rows []generation.Row, facts []generation.Fact, to generation.Place) error {
	ctx, cancel := context.WithTimeout(ctx, writeFor)
	defer cancel()
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	s.partitions(ctx, conn, rows)
	if err = s.transact(ctx, conn, page{rows, facts, to}, false); taken(err) {
		err = s.transact(ctx, conn, page{rows, facts, to}, true)
	}
	if err != nil {
		s.Close() // whatever state it is in
		return fmt.Errorf("write %d records: %w", len(rows), err)
	}
	s.writes++
	return nil
}

// page is what one write keeps.
type page struct {
	rows  []generation.Row
	facts []generation.Fact
	to    generation.Place
}

// transact makes a write. Rows that are new go straight to their tables, the others, or all, through staging.
func (s *Store) transact(ctx context.Context, conn *pgxpool.Conn, p page, stageAll bool) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		done, err := s.claim(ctx, tx, p.to)
		if err != nil || done {
			return err
		}
		if err := putFacts(ctx, tx, s.schema, p.facts); err != nil {
			return err
		}
		return s.put(ctx, tx, p.rows, stageAll)
	})
}

// taken says whether a row that was thought new is there: a request whose id is of the future may have been kept by another writer.
func taken(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == codeTaken
}

// claim moves the position if nobody has written since this writer did. Done says that this very write has been made.
func (s *Store) claim(ctx context.Context, tx pgx.Tx, to generation.Place) (done bool, err error) {
	tag, err := tx.Exec(ctx, "UPDATE "+s.position()+" SET log = $1, seq = $2, writes = $3 + 1, writer = $4 WHERE writes = $3 AND NOT closed",
		int64(to.Log), int64(to.Seq), s.writes, s.config.Writer)
	if err != nil || tag.RowsAffected() == 1 {
		return false, err
	}
	var writes int64
	var writer string
	if err := tx.QueryRow(ctx, "SELECT writes, writer FROM "+s.position()).Scan(&writes, &writer); err != nil {
		return false, err
	}
	if writes == s.writes+1 && writer == s.config.Writer {
		return true, nil
	}
	return false, movedError{}
}

// put brings rows in, whether they are there or not.
func (s *Store) put(ctx context.Context, tx pgx.Tx, rows []generation.Row, stageAll bool) error {
	var fresh, staged [3][][]any // by table
	for i := range rows {
		r, into := &rows[i], &staged
		if r.New && !stageAll {
			into = &fresh
		}
		into[0] = append(into[0], generationRow(r, s.packer.pack(r.JSON)))
		for k := range r.Attempts {
			into[1] = append(into[1], attemptRow(r, &r.Attempts[k]))
		}
		for n := range r.Events {
			into[2] = append(into[2], eventRow(r, n))
		}
	}
	for i, t := range tables {
		if len(fresh[i]) > 0 {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{s.schema, t.name}, t.columns, pgx.CopyFromRows(fresh[i])); err != nil {
				return fmt.Errorf("copy to %s: %w", t.name, err)
			}
		}
		if len(staged[i]) > 0 {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{t.staging()}, t.columns, pgx.CopyFromRows(staged[i])); err != nil {
				return fmt.Errorf("stage %s: %w", t.name, err)
			}
			if _, err := tx.Exec(ctx, t.merge(s.schema)); err != nil {
				return fmt.Errorf("merge %s: %w", t.name, err)
			}
		}
	}
	return nil
}

// partitions sees to those that rows need, and from time to time to all. What cannot be made now is made later: meanwhile rows go where days
// without partitions go.
func (s *Store) partitions(ctx context.Context, conn *pgxpool.Conn, rows []generation.Row) {
	now := s.config.Now()
	if now.Sub(s.days.tended) >= tendEvery || now.Before(s.days.tended) {
		s.days.tended = now
		if err := s.days.tend(ctx, conn, now); err != nil {
			s.config.Warn("look after the partitions", err)
		}
	}
	asked := map[time.Time]bool{}
	for i := range rows {
		if of := dayOf(made(rows[i].ID)); !s.days.there[of] && !asked[of] {
			asked[of] = true
			if err := s.days.make(ctx, conn, of, now); err != nil {
				s.config.Warn("make partitions", err)
			}
		}
	}
}
