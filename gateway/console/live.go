package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Bounds of what is live.
const (
	liveEvery   = time.Second      // between two readings of one stream
	liveFor     = 15 * time.Minute // then the browser comes again, and is asked again who it is
	liveUser    = 6                // streams of one user at once: a browser opens no more than six connections
	liveAll     = 64               // streams in all
	writeWithin = 10 * time.Second // a browser that does not read is let go
)

// meter is one limit with what is left of it, as the API has it.
type meter struct {
	Kind      string `json:"kind"`
	Limit     int64  `json:"limit"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_ms"`
	Waiting   int    `json:"waiting"`
}

// Level says how a meter should look.
func (m *meter) Level() string {
	switch f := full(m.Used, m.Limit); {
	case f >= 100 || m.Remaining == 0:
		return "over"
	case f >= 80:
		return "near"
	}
	return "ok"
}

// room is one scope with what is left of its limits.
type room struct {
	Scope    string  `json:"scope"`
	Subject  string  `json:"subject"`
	Name     string  `json:"name"`
	PausedMS int64   `json:"paused_ms"`
	Meters   []meter `json:"meters"`
}

// Title names the scope for reading.
func (r *room) Title() string {
	switch {
	case r.Scope == "pool":
		return r.Name + " " + short(r.Subject)
	case r.Name != "":
		return r.Name
	}
	return r.Subject
}

// roomPage is the answer of /api/headroom.
type roomPage struct {
	At        time.Time `json:"at"`
	Known     bool      `json:"known"`
	Available *int64    `json:"available_nano"`
	LeftOff   int       `json:"left_off"`
	Scopes    []room    `json:"scopes"`
}

// headroom registers what is left, as a page and live.
func (h *Handler) headroom() {
	h.page("GET /headroom", func(w http.ResponseWriter, r *http.Request, who *me) error {
		var p roomPage
		if err := h.get(r, "/api/headroom", &p); err != nil {
			return err
		}
		return h.show(w, http.StatusOK, "headroom", &page{Title: "Headroom", Section: "headroom", Me: who, Script: true, Data: &p})
	})
	h.mux.HandleFunc("GET "+root+"/live", h.stream)
}

// streams counts what is live, so that it stays bounded, and ends it all.
type streams struct {
	mu    sync.Mutex
	all   int
	of    map[string]int // by user
	ended chan struct{}
	once  sync.Once
}

func newStreams() *streams { return &streams{of: map[string]int{}, ended: make(chan struct{})} }

func (s *streams) close() { s.once.Do(func() { close(s.ended) }) }

// enter takes a place for a stream of a user. leave gives it back.
func (s *streams) enter(user string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= liveAll || s.of[user] >= liveUser {
		return nil, false
	}
	s.all++
	s.of[user]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.of[user]--; s.of[user] == 0 {
			delete(s.of, user)
		}
	}, true
}

// Why a stream ends for good, as its last event says.
const (
	endSignedOut = "signed-out"
	endTooMany   = "too-many"
)

// stream sends what is left of every limit, again and again, as server-sent events, until the session, the browser or the server ends. What
// cannot be read is said and tried again.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // or a proxy would keep it
	say := func(event string, data []byte) bool {
		_ = out.SetWriteDeadline(h.config.Now().Add(writeWithin)) // a writer without deadlines has none
		_, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data)
		return err == nil && out.Flush() == nil
	}
	end := func(why string) { say("end", []byte(why)) }
	var who me
	if err := h.get(r, "/api/me", &who); err != nil {
		end(endSignedOut)
		return
	}
	leave, ok := h.live.enter(who.ID)
	if !ok {
		end(endTooMany)
		return
	}
	defer leave()
	next := time.NewTicker(liveEvery)
	defer next.Stop()
	until := time.NewTimer(liveFor)
	defer until.Stop()
	for {
		answer, err := h.call(r, http.MethodGet, "/api/headroom", nil)
		no, refused := errors.AsType[*failure](err)
		switch {
		case refused && no.Status == http.StatusUnauthorized:
			end(endSignedOut)
			return
		case err != nil:
			text, _ := json.Marshal(sentence(err.Error())) // a text always can be
			if !say("away", text) {
				return
			}
		case !say("headroom", trimmed(answer)):
			return
		}
		select {
		case <-next.C:
		case <-until.C:
			return
		case <-h.live.ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// trimmed is an answer on one line, as an event's data must be.
func trimmed(r *reply) []byte {
	b := r.body.Bytes()
	for len(b) > 0 && b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
	}
	return b
}
