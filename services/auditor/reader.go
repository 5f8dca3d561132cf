package auditor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/generation"
)

// ListedWrites is how many of the newest writes a list looks through: a bucket has no index. A request is written once or twice.
const ListedWrites = 4096

// Reader answers records of requests from the bucket. For one record it needs no more than a gateway's permissions, for a list those of a
// role that reads streams. Its methods may be called at the same time.
type Reader struct {
	nc   *nats.Conn
	list sync.Mutex // one list at a time
}

// NewReader makes a reader through a connection.
func NewReader(nc *nats.Conn) *Reader { return &Reader{nc: nc} }

// Generation gives a request's record as JSON; found is false if there is none, or it is another org's. The error says that the records
// cannot be read now.
func (r *Reader) Generation(ctx context.Context, org events.Org, id events.RequestID) (record json.RawMessage, found bool, err error) {
	if id == "" {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	m, err := r.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+generations+"."+subjectOf(generation.Key(id)), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, false, fmt.Errorf("read the record of %s: there is no bucket %s", id, access.BucketGenerations)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the record of %s: %w", id, err)
	}
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404":
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("read the record of %s: %s %s", id, status, m.Header.Get("Description"))
	}
	var owner struct {
		ID  events.RequestID `json:"id"`
		Org events.Org       `json:"org"`
	}
	if err := json.Unmarshal(m.Data, &owner); err != nil {
		return nil, false, fmt.Errorf("read the record of %s: %w", id, err)
	}
	if owner.Org != org || owner.ID != id || m.Header.Get(jetstream.MarkerReasonHeader) != "" {
		return nil, false, nil
	}
	return json.RawMessage(m.Data), true, nil
}

// List gives the requests that a filter lets through, newest first, among those of the newest ListedWrites writes.
func (r *Reader) List(ctx context.Context, f *generation.Filter) ([]generation.Summary, error) {
	r.list.Lock()
	defer r.list.Unlock()
	last, err := r.last(ctx)
	if err != nil {
		return nil, err
	}
	found := []generation.Summary{}
	err = journal.ReadStream(ctx, r.nc, generations, "", max(last, ListedWrites)-ListedWrites+1, last, func(m *journal.Stored) error {
		if gjson.GetBytes(m.Data, "org").Str != string(f.Org) {
			return nil // another's, or the position
		}
		var rec generation.Record
		if err := json.Unmarshal(m.Data, &rec); err != nil {
			return fmt.Errorf("read %s: %w", m.Subject, err)
		}
		if s := rec.Summary(); f.Matches(&s) {
			found = append(found, s)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list requests: %w", err)
	}
	slices.SortFunc(found, generation.Newest)
	return found[:min(f.Limit, len(found))], nil
}

// last gives the sequence of the bucket's newest write; 0 if there is none.
func (r *Reader) last(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	m, err := r.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+generations, fmt.Appendf(nil, `{"last_by_subj":%q}`, subjectOf(">")))
	if err != nil {
		return 0, fmt.Errorf("list requests: ask for the newest record: %w", err)
	}
	if m.Header.Get("Status") == "404" {
		return 0, nil
	}
	seq, err := strconv.ParseUint(m.Header.Get(nats.JSSequence), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("list requests: ask for the newest record: %s %s", m.Header.Get("Status"), m.Header.Get("Description"))
	}
	return seq, nil
}
