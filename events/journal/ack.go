package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Error codes of JetStream that mean something to a writer.
const (
	codeAccountFull     = 10002 // resource limits exceeded for account
	codeStorageFull     = 10047 // insufficient storage resources available
	codeStoreFailed     = 10077 // the store said no; "maximum bytes exceeded" among others
	codeNoMessage       = 10037
	codeWrongLastMsgID  = 10070
	codeWrongLastSeq    = 10071
	codeInProcess       = 10158 // the same id is on its way
	codeWrongLastSeqOff = 10164 // another append to the subject is on its way
)

// apiError is an error as JetStream's API states it.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("jetstream: %s (%d)", e.Description, e.ErrCode)
}

// ack is a stream's answer to a publish.
type ack struct {
	seq       uint64
	duplicate bool
	silent    bool      // nobody listens: no stream, no leader, or JetStream is off
	err       *apiError // the stream said no
}

// readAck reads the answer to a publish.
func readAck(m *nats.Msg) ack {
	if len(m.Data) == 0 {
		return statusAck(m.Header)
	}
	if seq, duplicate, ok := scanAck(m.Data); ok {
		return ack{seq: seq, duplicate: duplicate}
	}
	var full struct {
		Seq       uint64    `json:"seq"`
		Duplicate bool      `json:"duplicate"`
		Error     *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &full); err != nil {
		return ack{err: &apiError{Code: 500, Description: "unreadable acknowledgement: " + err.Error()}}
	}
	if full.Error == nil && full.Seq == 0 {
		return ack{err: &apiError{Code: 500, Description: "an acknowledgement without a sequence"}}
	}
	return ack{seq: full.Seq, duplicate: full.Duplicate, err: full.Error}
}

func statusAck(h nats.Header) ack {
	status := first(h, "Status")
	if status == "503" || status == "" {
		return ack{silent: true}
	}
	code, _ := strconv.Atoi(status)
	return ack{err: &apiError{Code: code, Description: strings.ToLower(first(h, "Description"))}}
}

var ackPrefix = []byte(`{"stream":"`)

// scanAck reads the common acknowledgement {"stream":"X","seq":N[,"duplicate":true]} without a JSON decoder.
func scanAck(b []byte) (seq uint64, duplicate, ok bool) {
	if !bytes.HasPrefix(b, ackPrefix) {
		return 0, false, false
	}
	i := bytes.Index(b, []byte(`"seq":`))
	if i < 0 || bytes.Contains(b[:i], []byte(`"error"`)) {
		return 0, false, false
	}
	i += len(`"seq":`)
	for i < len(b) && b[i] == ' ' {
		i++
	}
	start := i
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		seq = seq*10 + uint64(b[i]-'0')
	}
	rest := b[i:]
	if i == start || i-start > 19 || seq == 0 || bytes.Contains(rest, []byte(`"error"`)) {
		return 0, false, false
	}
	return seq, bytes.Contains(rest, []byte(`"duplicate":true`)) || bytes.Contains(rest, []byte(`"duplicate": true`)), true
}

// full says whether the stream takes no more.
func (e *apiError) full() bool {
	switch e.ErrCode {
	case codeAccountFull, codeStorageFull:
		return true
	case codeStoreFailed:
		return strings.Contains(e.Description, "maximum")
	}
	return false
}

// final says whether the same message would always be refused.
func (e *apiError) final() bool {
	return e.Code == 400 && !e.full() && e.ErrCode != codeWrongLastSeqOff
}

// conflict says whether a fenced append came too late.
func (e *apiError) conflict() bool {
	switch e.ErrCode {
	case codeWrongLastMsgID, codeWrongLastSeq, codeWrongLastSeqOff:
		return true
	}
	return false
}

// refused says whether the message of this answer is surely not in the log.
func (e *apiError) refused() bool {
	return e.full() || e.conflict() || e.Code == 429 || e.final()
}

// failed makes the error of an answer. Maybe says whether an earlier copy may be in the log.
func (a ack) failed(doing string, maybe bool) error {
	if a.silent {
		return &failure{err: fmt.Errorf("%s: nobody answers for the log", doing), unreachable: true, maybe: maybe}
	}
	return &failure{
		err:   fmt.Errorf("%s: %w", doing, a.err),
		full:  a.err.full(),
		maybe: maybe || !a.err.refused(),
	}
}
