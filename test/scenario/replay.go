// Package scenario holds whole logs with what they must lead to, and makes random ones. A scenario is a pair of files in testdata:
// NAME.jsonl, one event a line, and NAME.expected, the verdicts in the order in which they fall and then the meters that are not empty.
package scenario

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/weirhq/weir/events"
)

// maxLine bounds one line of a log, in bytes: a reserve has at most 64 claims.
const maxLine = 1 << 20

// Line is one event of a log file.
type Line struct {
	Seq     uint64          `json:"seq"`
	Time    string          `json:"time"`
	Subject string          `json:"subject"`
	Data    json.RawMessage `json:"data"`
}

// ReadLog reads a log, one event a line. Lines with the same seq are elements of one pack. What may not be folded is in the record's
// Fault; the error is for what is no log at all, and names the line.
func ReadLog(r io.Reader) ([]events.Record, error) {
	var records []events.Record
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line Line
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("read line %d: %w", n, err)
		}
		record, err := line.Record()
		if err != nil {
			return nil, fmt.Errorf("read line %d: %w", n, err)
		}
		if last := len(records) - 1; last >= 0 && records[last].Seq == record.Seq {
			record.Index = records[last].Index + 1
		}
		records = append(records, record)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	return records, nil
}

// Record gives the record that a line stands for, as if alone in its message.
func (l *Line) Record() (events.Record, error) {
	at, err := time.Parse(time.RFC3339Nano, l.Time)
	if err != nil {
		return events.Record{}, fmt.Errorf("read time: %w", err)
	}
	subject, err := events.ParseSubject(l.Subject)
	if err != nil {
		return events.Record{}, err
	}
	r := events.Record{Seq: l.Seq, At: at.UnixNano(), Gateway: subject.Gateway, Event: events.Event{Org: subject.Org}}
	r.Data, err = events.DecodeData("weir."+subject.Type+".v1", l.Data)
	if err != nil {
		r.Data = nil // Check says so
	}
	r.Fault = events.Check(subject, &r.Event)
	return r, nil
}

// WriteLog writes records as ReadLog reads them.
func WriteLog(w io.Writer, records []events.Record) error {
	for i := range records {
		r := &records[i]
		subject := events.Subject{Org: r.Org, Kind: r.Kind(), Gateway: r.Gateway}
		line := Line{Seq: r.Seq, Time: string(events.AppendTime(nil, r.At)), Subject: subject.String(), Data: writeData(r.Data)}
		text, err := json.Marshal(&line)
		if err != nil {
			return fmt.Errorf("write line %d: %w", i+1, err)
		}
		if _, err := w.Write(append(text, '\n')); err != nil {
			return fmt.Errorf("write line %d: %w", i+1, err)
		}
	}
	return nil
}

// writeData gives data that reads back as d does: what could not be read, or not be folded, again cannot.
func writeData(d events.Data) []byte {
	if d == nil {
		return []byte("null")
	}
	text := events.AppendData(nil, d)
	if u, is := d.(*events.TrueUp); is && u.Fault != "" {
		text = append(text[:len(text)-1], `,"cost_nano":-1}`...)
	}
	return text
}
