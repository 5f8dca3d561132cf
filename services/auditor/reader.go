package auditor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
)

// Reader answers records of requests. It needs no more than a gateway's permissions. Its methods may be called at the same time.
type Reader struct {
	nc *nats.Conn
}

// NewReader makes a reader through a connection.
func NewReader(nc *nats.Conn) *Reader { return &Reader{nc} }

// Generation gives a request's record as JSON; found is false if there is none, or it is another org's. The error says that the records
// cannot be read now.
func (r *Reader) Generation(ctx context.Context, org events.Org, id events.RequestID) (record json.RawMessage, found bool, err error) {
	if id == "" {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	m, err := r.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+generations+"."+subjectOf(KeyOf(id)), nil)
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
