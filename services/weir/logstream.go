package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

// logWriteWithin bounds how long an operator's tool may leave what was sent to it unread.
const logWriteWithin = 30 * time.Second

// logLine is a record as `weir replay` reads it.
type logLine struct {
	Seq     uint64          `json:"seq"`
	Time    time.Time       `json:"time"`
	Subject string          `json:"subject"`
	Data    json.RawMessage `json:"data"`
}

// lineOf writes a record as a line. One that could not be read has no data.
func lineOf(r *events.Record) ([]byte, error) {
	l := logLine{Seq: r.Seq, Time: time.Unix(0, r.At).UTC(), Data: json.RawMessage("null")}
	s := events.Subject{Org: r.Org, Kind: r.Kind(), Gateway: r.Gateway}
	if u, ok := r.Data.(*events.Unknown); ok {
		s.Type = "unknown"
		if json.Valid([]byte(u.Raw)) {
			l.Data = json.RawMessage(u.Raw)
		}
	} else if r.Data != nil {
		l.Data = events.AppendData(nil, r.Data)
	}
	l.Subject = s.String()
	return json.Marshal(l)
}

// serveLog gives operators the log as lines: ?from=SEQ from a sequence on to its end as it is now, &follow=1 and what comes after;
// ?at=TIME the first sequence at or after an instant.
func (n *node) serveLog(w http.ResponseWriter, r *http.Request) {
	if !operator(r, n.config.AdminKeys) {
		noKey(w)
		return
	}
	live := &liveLog{log: n.log}
	info, err := n.log.Info(r.Context())
	if err != nil {
		http.Error(w, `{"error":"the log is out of reach"}`, http.StatusServiceUnavailable)
		return
	}
	if text := r.URL.Query().Get("at"); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			http.Error(w, `{"error":"at is not an instant of RFC 3339"}`, http.StatusBadRequest)
			return
		}
		seq, err := live.SeqAt(r.Context(), events.Nanos(at))
		if err != nil {
			http.Error(w, `{"error":"the log could not be read"}`, http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]uint64{"seq": seq, "first": info.First, "last": info.Last}) // who asked is gone, then
		return
	}
	from, err := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
	if err != nil {
		http.Error(w, `{"error":"from is not a sequence"}`, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	n.streamLog(w, r, max(from, info.First, 1), info.Last)
}

func (n *node) streamLog(w http.ResponseWriter, r *http.Request, from, last uint64) {
	control := http.NewResponseController(w)
	out := bufio.NewWriterSize(w, 1<<16)
	write := func(records []events.Record) error {
		_ = control.SetWriteDeadline(time.Now().Add(logWriteWithin)) // where it cannot be set, the connection's own bound holds
		for i := range records {
			line, err := lineOf(&records[i])
			if err != nil {
				return err
			}
			if _, err := out.Write(append(line, '\n')); err != nil {
				return err
			}
		}
		return nil
	}
	if r.URL.Query().Get("follow") == "" {
		if from <= last {
			_ = n.log.Read(r.Context(), from, last, func(rec events.Record) error { return write([]events.Record{rec}) }) // the reader sees where it ends
		}
		_ = out.Flush()
		return
	}
	tap := n.log.Tap(r.Context(), journal.TapConfig{Name: toolName, From: from})
	defer tap.Close()
	for {
		records, err := tap.Next(r.Context())
		if err != nil || write(records) != nil || out.Flush() != nil || control.Flush() != nil {
			return
		}
	}
}

// httpLog is the log of a running process that keeps it for itself, through the process's own port.
type httpLog struct{ url, key string }

func newHTTPLog(listen string) *httpLog {
	return &httpLog{url: "http://" + listen, key: os.Getenv("WEIR_ADMIN_KEY")}
}

func (h *httpLog) close() {}

func (h *httpLog) now() (time.Time, error) { return time.Now(), nil }

// get asks for the log, or for what is beside it at a path below.
func (h *httpLog) get(ctx context.Context, below string, query url.Values) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url+"/log"+below+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+h.key)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the running process for its log: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("ask the running process for its log: %s answered %s (is WEIR_ADMIN_KEY set?)", h.url, answer.Status)
	}
	return answer, nil
}

func (h *httpLog) Read(ctx context.Context, from uint64, each func(*events.Record) error) error {
	return h.lines(ctx, url.Values{"from": {strconv.FormatUint(from, 10)}}, each)
}

func (h *httpLog) lines(ctx context.Context, query url.Values, each func(*events.Record) error) error {
	answer, err := h.get(ctx, "", query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return pipe(ctx, func(_ context.Context, put func(events.Record) error) error {
		return readLines(h.url, answer.Body, 0, put)
	}, each)
}

// extent asks for the log's first and last sequence, and the first at or after an instant.
func (h *httpLog) extent(ctx context.Context, at int64) (seq, first, last uint64, err error) {
	answer, err := h.get(ctx, "", url.Values{"at": {time.Unix(0, at).UTC().Format(time.RFC3339Nano)}})
	if err != nil {
		return 0, 0, 0, err
	}
	defer answer.Body.Close()
	var got struct{ Seq, First, Last uint64 }
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
		return 0, 0, 0, fmt.Errorf("read where the log ends: %w", err)
	}
	return got.Seq, got.First, got.Last, nil
}

// FoldBefore gives none: folds stay with the process that keeps them.
func (h *httpLog) FoldBefore(context.Context, uint64) (*admission.Fold, error) { return nil, nil }

func (h *httpLog) SeqAt(ctx context.Context, at int64) (uint64, error) {
	seq, _, _, err := h.extent(ctx, at)
	return seq, err
}

// following is a log that can be followed.
type following interface {
	source
	// ends gives the log's first and last sequence.
	ends(ctx context.Context) (first, last uint64, err error)
	// follow gives the records from a sequence on, and what comes; idle is called when nothing more is there for the moment.
	follow(ctx context.Context, from uint64, each func(*events.Record) error, idle func() error) error
}

func (h *httpLog) ends(ctx context.Context) (first, last uint64, err error) {
	_, first, last, err = h.extent(ctx, time.Now().UnixNano())
	return first, last, err
}

func (h *httpLog) follow(ctx context.Context, from uint64, each func(*events.Record) error, idle func() error) error {
	answer, err := h.get(ctx, "", url.Values{"from": {strconv.FormatUint(from, 10)}, "follow": {"1"}})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return readLines(h.url, answer.Body, 0, func(r events.Record) error {
		if err := each(&r); err != nil {
			return err
		}
		return idle()
	})
}

func (l *liveLog) ends(ctx context.Context) (first, last uint64, err error) {
	info, err := l.log.Info(ctx)
	return info.First, info.Last, err
}

func (l *liveLog) follow(ctx context.Context, from uint64, each func(*events.Record) error, idle func() error) error {
	tap := l.log.Tap(ctx, journal.TapConfig{Name: toolName, From: from})
	defer tap.Close()
	for {
		records, err := tap.Next(ctx)
		if err != nil {
			return err
		}
		for i := range records {
			if err := each(&records[i]); err != nil {
				return err
			}
		}
		if err := idle(); err != nil {
			return err
		}
	}
}
