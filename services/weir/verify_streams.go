package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/biller"
)

// stateWithin bounds a question to a stream.
const stateWithin = 5 * time.Second

// streams are what a verification reads: the log, and what is kept beside it.
type streams interface {
	// state gives a stream's state; nil if there is none.
	state(ctx context.Context, stream string) (*jetstream.StreamInfo, error)

	// read gives the messages of a stream from one sequence to another, of a subject if one is given.
	read(ctx context.Context, stream, subject string, from, to uint64, each func(*journal.Stored) error) error
}

func (l *liveLog) state(ctx context.Context, stream string) (*jetstream.StreamInfo, error) {
	js, err := jetstream.New(l.conn)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, stateWithin)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its state: %w", stream, err)
	}
	return s.CachedInfo(), nil
}

func (l *liveLog) read(ctx context.Context, stream, subject string, from, to uint64, each func(*journal.Stored) error) error {
	return journal.ReadStream(ctx, l.conn, stream, subject, from, to, each)
}

// openStreams are the streams that a process shows operators: none of them holds a secret.
var openStreams = map[string]bool{journal.DefaultStream: true, biller.Stream: true, access.BucketStream(access.BucketGenerations): true}

// serveStream gives operators a stream: its state, null if there is none; with ?from=SEQ&to=SEQ its messages as they are, a line of JSON
// each, of &subject= if one is given. An answer that is broken off is not whole.
func (n *node) serveStream(w http.ResponseWriter, r *http.Request) {
	if !operator(r, n.config.AdminKeys) {
		noKey(w)
		return
	}
	name, q := r.PathValue("stream"), r.URL.Query()
	if !openStreams[name] {
		http.Error(w, `{"error":"there is no such stream to be shown"}`, http.StatusNotFound)
		return
	}
	l := &liveLog{log: n.log, conn: n.conn}
	if !q.Has("from") {
		state, err := l.state(r.Context(), name)
		if err != nil {
			http.Error(w, `{"error":"the stream is out of reach"}`, http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state) // who asked is gone, then
		return
	}
	from, err := strconv.ParseUint(q.Get("from"), 10, 64)
	to, err2 := strconv.ParseUint(q.Get("to"), 10, 64)
	if err != nil || err2 != nil {
		http.Error(w, `{"error":"from or to is not a sequence"}`, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, control := bufio.NewWriterSize(w, 1<<16), http.NewResponseController(w)
	lines := json.NewEncoder(out)
	err = l.read(r.Context(), name, q.Get("subject"), from, to, func(m *journal.Stored) error {
		_ = control.SetWriteDeadline(time.Now().Add(logWriteWithin)) // where it cannot be set, the connection's own bound holds
		return lines.Encode(m)
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // so that nobody takes it for the whole
	}
}

func (h *httpLog) state(ctx context.Context, stream string) (*jetstream.StreamInfo, error) {
	answer, err := h.get(ctx, "/"+stream, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var state *jetstream.StreamInfo
	if err := json.NewDecoder(answer.Body).Decode(&state); err != nil {
		return nil, fmt.Errorf("read the state of %s: %w", stream, err)
	}
	return state, nil
}

func (h *httpLog) read(ctx context.Context, stream, subject string, from, to uint64, each func(*journal.Stored) error) error {
	query := url.Values{"from": {strconv.FormatUint(from, 10)}, "to": {strconv.FormatUint(to, 10)}}
	if subject != "" {
		query.Set("subject", subject)
	}
	answer, err := h.get(ctx, "/"+stream, query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	for lines := json.NewDecoder(answer.Body); ; {
		var m journal.Stored
		if err := lines.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read %s: %w", stream, err)
		}
		if err := each(&m); err != nil {
			return err
		}
	}
}
