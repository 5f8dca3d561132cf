package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/generation"
)

// maxLists bounds the lists that are read at once, so that they leave connections for what cannot wait; listFor bounds one, and listSlack
// what it takes beside, or a server that does not answer at all.
const (
	maxLists  = 2
	listFor   = 5 * time.Second
	listSlack = 5 * time.Second
)

// The codes of PostgreSQL's errors that mean something here.
const (
	codeNoTable   = "42P01"
	codeTaken     = "23505"
	codeCancelled = "57014" // by the statement's time-out
)

// Reader answers records. Its methods may be called at the same time.
type Reader struct {
	pool   *pgxpool.Pool
	packer *packer
	lists  chan struct{}
}

// NewReader makes a reader of what serves.
func NewReader(pool *pgxpool.Pool) *Reader {
	return &Reader{pool, newPacker(), make(chan struct{}, maxLists)}
}

// Generation gives a request's record as JSON; found is false if there is none, or it is another org's. The error says that the records
// cannot be read now.
func (r *Reader) Generation(ctx context.Context, org events.Org, id events.RequestID) (record json.RawMessage, found bool, err error) {
	if id == "" {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	var packed []byte
	err = r.pool.QueryRow(ctx, "SELECT record FROM generations WHERE made = $1 AND id = $2 AND org = $3", made(id), generation.Key(id), string(org)).Scan(&packed)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err == nil {
		record, err = r.packer.unpack(packed)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the record of %s: %w", id, reason(err))
	}
	return record, true, nil
}

// reason says what a person can do about an error.
func reason(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == codeNoTable {
		return fmt.Errorf("no auditor has written to this database yet: %w", err)
	}
	return err
}

// tooMuchError says that a list would take too long.
type tooMuchError struct{}

func (tooMuchError) Error() string {
	return fmt.Sprintf("finding these requests took more than %s: narrow from and to", listFor)
}

// TooMuch says so.
func (tooMuchError) TooMuch() bool { return true }

// listed are the columns of a summary, as Scan takes them.
var listed = []string{"id", "org", "created", "ended", "workspace", "principal", "key", "model", "operation", "provider", "gateway", "state", "outcome",
	"status", "error_code", "error_origin", "limit_scope", "limit_kind", "limit_id", "parked_ms", "latency_ms", "usage_quality", "input_tokens",
	"cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "cost_nano", "price_version", "settled", "attempts"}

// List gives the requests that a filter lets through, newest first. The error has a method TooMuch() if it would take too long.
func (r *Reader) List(ctx context.Context, f *generation.Filter) ([]generation.Summary, error) {
	select {
	case r.lists <- struct{}{}:
		defer func() { <-r.lists }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, listFor+listSlack)
	defer cancel()
	query, args := selection(f)
	var all []generation.Summary
	err := pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", listFor.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, query, args...)
		if err == nil {
			all, err = pgx.CollectRows(rows, summary)
		}
		return err
	})
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == codeCancelled {
		return nil, tooMuchError{}
	}
	if err != nil {
		return nil, fmt.Errorf("list requests: %w", reason(err))
	}
	return all, nil
}

// selection makes a filter's query.
func selection(f *generation.Filter) (query string, args []any) {
	var where []string
	and := func(condition string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			condition = strings.Replace(condition, "?", fmt.Sprintf("$%d", len(args)), 1)
		}
		where = append(where, condition)
	}
	and("org = ?", string(f.Org))
	for column, value := range map[string]string{"key": f.Key, "model": f.Model, "outcome": string(f.Outcome)} {
		if value != "" {
			and(column+" = ?", clean(value))
		}
	}
	if f.From != 0 {
		and("made >= ?", instant(f.From))
	}
	if f.To != 0 {
		and("made < ?", instant(f.To))
	}
	if f.After != "" {
		and("(made, id) < (?, ?)", made(f.After), generation.Key(f.After))
	}
	return fmt.Sprintf("SELECT %s FROM generations WHERE %s ORDER BY made DESC, id DESC LIMIT %d",
		strings.Join(listed, ", "), strings.Join(where, " AND "), f.Limit), args
}

// summary reads a row of a list.
func summary(row pgx.CollectableRow) (s generation.Summary, err error) {
	var workspace, principal, key, model, operation, provider, gateway, code, origin, scope, kind, limit, quality, price *string
	var created time.Time
	var ended *time.Time
	t := &s.Tokens
	err = row.Scan(&s.ID, &s.Org, &created, &ended, &workspace, &principal, &key, &model, &operation, &provider, &gateway, &s.State, &s.Outcome,
		&s.Status, &code, &origin, &scope, &kind, &limit, &s.ParkedMS, &s.Latency, &quality, &t.InputTokens, &t.CachedTokens, &t.CacheWriteTokens,
		&t.OutputTokens, &t.ReasoningTokens, &s.CostNano, &price, &s.Settled, &s.Attempts)
	for column, into := range map[*string]*string{&s.Workspace: workspace, &s.Principal: principal, &s.Key: key, &s.Model: model, &s.Operation: operation,
		&s.Provider: provider, (*string)(&s.Gateway): gateway, &s.ErrorCode: code, &s.ErrorOrigin: origin, &s.LimitScope: scope, &s.LimitKind: kind,
		&s.LimitID: limit, &s.UsageQuality: quality, &s.PriceVersion: price} {
		if into != nil {
			*column = *into
		}
	}
	if s.CreatedAt = generation.Instant(created.UnixNano()); ended != nil {
		s.EndedAt = generation.Instant(ended.UnixNano())
	}
	if s.Outcome == generation.Running {
		s.Outcome = ""
	}
	return s, err
}
