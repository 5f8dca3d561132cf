package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

const (
	doorName    = "door"
	doorTimeout = 5 * time.Second // JetStream's own default for a request
	doorAtOnce  = 8               // requests in hand at one doorway
	doorWaiting = 4096            // requests that wait there; more are dropped and asked again
	maxConsumer = 64 << 10        // bytes of a request to create a consumer
	// A consumer whose watcher has gone is dropped after this at the latest.
	maxIdleConsumer = 5 * time.Minute
)

// Door creates and removes consumers for identities outside WEIR. JetStream would let them deliver to any subject there; the
// door lets them deliver to an inbox of the caller's account alone, and only for as long as somebody listens.
type Door struct {
	auth    *Authenticator
	connect func(opts ...nats.Option) (*nats.Conn, error)
	ready   chan struct{}
}

// NewDoor takes the authenticator that knows the identities, and how to reach the broker.
func NewDoor(auth *Authenticator, connect func(opts ...nats.Option) (*nats.Conn, error)) *Door {
	return &Door{auth: auth, connect: connect, ready: make(chan struct{})}
}

// Ready is closed when the door is open.
func (d *Door) Ready() <-chan struct{} { return d.ready }

// Run keeps the door open until ctx ends. Several doors share the work.
func (d *Door) Run(ctx context.Context) error {
	core, err := d.open(doorCore)
	if err != nil {
		return err
	}
	defer core.Close()
	group, ctx := errgroup.WithContext(ctx)
	for role, where := range map[Role]string{doorGates: AccountGates, doorReaders: AccountReaders, doorBilling: AccountBilling} {
		outer, err := d.open(role)
		if err != nil {
			return err
		}
		defer outer.Close()
		requests, err := listen(outer, role)
		if err != nil {
			return err
		}
		for range doorAtOnce {
			group.Go(func() error { d.serve(ctx, core, requests, where); return nil })
		}
	}
	close(d.ready)
	return group.Wait()
}

func (d *Door) open(role Role) (*nats.Conn, error) {
	opts := append(d.auth.Own(Identity{Name: doorName, Roles: []Role{role}}), nats.MaxReconnects(-1),
		// A caller may ask for its answer where the door may not write; that is the caller's loss and no news.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := d.connect(opts...)
	if err != nil {
		return nil, fmt.Errorf("opening the door as %s: %w", role, err)
	}
	return nc, nil
}

// listen takes requests at one doorway.
func listen(outer *nats.Conn, role Role) (<-chan *nats.Msg, error) {
	p, err := PermissionsOf(Identity{Name: doorName, Roles: []Role{role}})
	if err != nil {
		return nil, err
	}
	requests := make(chan *nats.Msg, doorWaiting)
	for _, subject := range p.Subscribe {
		if strings.HasPrefix(subject, inboxPrefix) {
			continue
		}
		if _, err := outer.ChanQueueSubscribe(subject, doorName, requests); err != nil {
			return nil, fmt.Errorf("opening the door on %s: %w", subject, err)
		}
	}
	if err := outer.FlushTimeout(doorTimeout); err != nil {
		return nil, fmt.Errorf("opening the door as %s: %w", role, err)
	}
	return requests, nil
}

func (d *Door) serve(ctx context.Context, core *nats.Conn, requests <-chan *nats.Msg, where string) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-requests:
			_ = m.Respond(d.answer(ctx, core, m, where)) // a caller without an answer asks again
		}
	}
}

func (d *Door) answer(ctx context.Context, core *nats.Conn, m *nats.Msg, where string) []byte {
	var body []byte
	var err error
	if rest, ok := strings.CutPrefix(m.Subject, apiCreate); ok {
		if where == AccountBilling {
			body, err = d.durable(rest, m.Data)
		} else {
			body, err = d.consumer(rest, m.Data, where)
		}
	} else {
		path := strings.TrimPrefix(m.Subject, apiRemove)
		if where == AccountBilling {
			_, name, _ := strings.Cut(path, ".")
			err = d.owned(name)
		} else {
			err = d.removable(ctx, core, path, where)
		}
	}
	if err != nil {
		return apiError(400, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
	defer cancel()
	answer, err := core.RequestWithContext(ctx, m.Subject, body)
	if err != nil {
		return apiError(503, "no answer from JetStream")
	}
	return answer.Data
}

// request is what a watcher may ask for. What is not here is not for those outside.
type request struct {
	Stream string   `json:"stream_name"`
	Config consumer `json:"config"`
	Action string   `json:"action,omitempty"`
}

type consumer struct {
	Name           string        `json:"name,omitempty"`
	DeliverPolicy  string        `json:"deliver_policy"`
	StartSeq       uint64        `json:"opt_start_seq,omitempty"`
	StartTime      *time.Time    `json:"opt_start_time,omitempty"`
	AckPolicy      string        `json:"ack_policy"`
	AckWait        time.Duration `json:"ack_wait,omitempty"`
	MaxDeliver     int           `json:"max_deliver,omitempty"`
	FilterSubject  string        `json:"filter_subject,omitempty"`
	FilterSubjects []string      `json:"filter_subjects,omitempty"`
	ReplayPolicy   string        `json:"replay_policy"`
	FlowControl    bool          `json:"flow_control,omitempty"`
	Heartbeat      time.Duration `json:"idle_heartbeat,omitempty"`
	HeadersOnly    bool          `json:"headers_only,omitempty"`
	DeliverSubject string        `json:"deliver_subject"`
	Inactive       time.Duration `json:"inactive_threshold,omitempty"`
	Replicas       int           `json:"num_replicas"`
	Memory         bool          `json:"mem_storage,omitempty"`
}

// durable is what a consumer of billing lines may ask for: a durable pull consumer, which delivers to whoever asks it for messages, and so
// to nobody that could not.
type durable struct {
	Name           string          `json:"name,omitempty"`
	Durable        string          `json:"durable_name"`
	Description    string          `json:"description,omitempty"`
	DeliverPolicy  string          `json:"deliver_policy"`
	StartSeq       uint64          `json:"opt_start_seq,omitempty"`
	StartTime      *time.Time      `json:"opt_start_time,omitempty"`
	AckPolicy      string          `json:"ack_policy"`
	AckWait        time.Duration   `json:"ack_wait,omitempty"`
	MaxDeliver     int             `json:"max_deliver,omitempty"`
	BackOff        []time.Duration `json:"backoff,omitempty"`
	FilterSubject  string          `json:"filter_subject,omitempty"`
	FilterSubjects []string        `json:"filter_subjects,omitempty"`
	ReplayPolicy   string          `json:"replay_policy"`
	MaxWaiting     int             `json:"max_waiting,omitempty"`
	MaxAckPending  int             `json:"max_ack_pending,omitempty"`
	HeadersOnly    bool            `json:"headers_only,omitempty"`
	MaxBatch       int             `json:"max_batch,omitempty"`
	MaxExpires     time.Duration   `json:"max_expires,omitempty"`
	MaxBytes       int             `json:"max_bytes,omitempty"`
	Inactive       time.Duration   `json:"inactive_threshold,omitempty"`
	Replicas       int             `json:"num_replicas"`
}

// Bounds of a durable consumer.
const (
	maxPending  = 10_000 // messages that may wait for their acknowledgement
	maxPulls    = 512    // requests for messages that may wait
	maxDurables = 64     // filters, and pauses
)

// durable checks a request to create or change one and writes it anew. Path is USAGE.<consumer>[.<filter>].
func (d *Door) durable(path string, data []byte) ([]byte, error) {
	if len(data) > maxConsumer {
		return nil, fmt.Errorf("consumer of %d bytes, at most %d are taken", len(data), maxConsumer)
	}
	stream, rest, _ := strings.Cut(path, ".")
	name, _, _ := strings.Cut(rest, ".")
	var r struct {
		Stream string  `json:"stream_name"`
		Config durable `json:"config"`
		Action string  `json:"action,omitempty"`
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("consumer: more than one request")
	}
	if err := d.owned(name); err != nil {
		return nil, err
	}
	c := &r.Config
	switch {
	case r.Stream != stream:
		return nil, fmt.Errorf("consumer: stream %q under the subject of %q", r.Stream, stream)
	case c.Durable != name || c.Name != "" && c.Name != name:
		return nil, fmt.Errorf("consumer: durable name %q under the subject of %q", c.Durable, name)
	case c.AckPolicy != "explicit" && c.AckPolicy != "all":
		return nil, fmt.Errorf("consumer: ack policy %q, must be explicit or all", c.AckPolicy)
	case c.MaxAckPending > maxPending || c.MaxWaiting > maxPulls || len(c.FilterSubjects) > maxDurables || len(c.BackOff) > maxDurables:
		return nil, fmt.Errorf("consumer: at most %d pending, %d pulls, %d filters and pauses", maxPending, maxPulls, maxDurables)
	case r.Action != "" && r.Action != "create" && r.Action != "update":
		return nil, fmt.Errorf("consumer: action %q", r.Action)
	}
	if c.MaxAckPending <= 0 {
		c.MaxAckPending = maxPending
	}
	c.Replicas = 0 // as the stream's
	return json.Marshal(r)
}

// owned says whether a consumer of billing lines is that of an identity with that role; only that identity may name it.
func (d *Door) owned(name string) error {
	if c, ok := (*d.auth.known.Load())[name]; ok && account(c.Roles) == AccountBilling {
		return nil
	}
	return fmt.Errorf("consumer %q: is nobody's", name)
}

// consumer checks a request to create one and writes it anew, so that only what was checked is passed on. Path is
// <stream>.<consumer>[.<filter>].
func (d *Door) consumer(path string, data []byte, where string) ([]byte, error) {
	if len(data) > maxConsumer {
		return nil, fmt.Errorf("consumer of %d bytes, at most %d are taken", len(data), maxConsumer)
	}
	stream, rest, _ := strings.Cut(path, ".")
	name, _, _ := strings.Cut(rest, ".")
	var r request
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("consumer: more than one request")
	}
	c := &r.Config
	switch {
	case r.Stream != stream:
		return nil, fmt.Errorf("consumer: stream %q under the subject of %q", r.Stream, stream)
	case c.Name != "" && c.Name != name:
		return nil, fmt.Errorf("consumer: name %q under the subject of %q", c.Name, name)
	case c.AckPolicy != "none":
		return nil, fmt.Errorf("consumer: ack policy %q, must be none", c.AckPolicy)
	case where == AccountGates && stream == BucketStream(BucketAuthority) && !c.open():
		return nil, errors.New("consumer: must filter by keys of the authority that are open to gateways")
	case !d.auth.outside(c.DeliverSubject, where):
		return nil, fmt.Errorf("consumer: deliver subject %q is no inbox of yours", c.DeliverSubject)
	case c.Inactive < 0 || c.Inactive > maxIdleConsumer:
		return nil, fmt.Errorf("consumer: inactive threshold %v, at most %v", c.Inactive, maxIdleConsumer)
	}
	c.Name, c.Replicas, c.Memory = name, 1, true
	r.Action = "create"
	return json.Marshal(r)
}

// open says whether the consumer asks for what gateways may read of the authority alone.
func (c *consumer) open() bool {
	filters := c.FilterSubjects
	if c.FilterSubject != "" || len(filters) == 0 {
		filters = append([]string{c.FilterSubject}, filters...)
	}
	return !slices.ContainsFunc(filters, func(f string) bool { return !isOpen(f) })
}

// removable refuses to remove a consumer that was not made for the caller's account. Path is <stream>.<consumer>.
func (d *Door) removable(ctx context.Context, core *nats.Conn, path, where string) error {
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
	defer cancel()
	m, err := core.RequestWithContext(ctx, apiLook+path, nil)
	if err != nil {
		return errors.New("no answer from JetStream")
	}
	var info struct {
		Config struct {
			DeliverSubject string `json:"deliver_subject"`
		} `json:"config"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil || !d.auth.outside(info.Config.DeliverSubject, where) {
		return fmt.Errorf("consumer %q: is not yours", path)
	}
	return nil
}

func apiError(code int, text string) []byte {
	var r struct {
		Error struct {
			Code        int    `json:"code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	r.Error.Code, r.Error.Description = code, "door: "+text
	b, _ := json.Marshal(r)
	return b
}
