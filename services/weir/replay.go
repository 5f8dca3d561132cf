package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// maxReplayLine bounds a line of a recorded log: a reserve of 64 claims is far smaller.
const maxReplayLine = 16 << 20

// replayCommand folds a recorded log and prints the verdicts.
type replayCommand struct {
	File   string `arg:"" help:"Log of one JSON line a record: {seq, time, subject, data}. - reads standard input."`
	Meters bool   `help:"Then print the meters that are not empty, by name."`
}

// Run prints a line a verdict, in the order in which verdicts fall.
func (c *replayCommand) Run(out io.Writer) error {
	in := io.Reader(os.Stdin)
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		defer file.Close()
		in = file
	}
	buffered := bufio.NewWriter(out)
	defer buffered.Flush()
	return replay(c.File, in, buffered, c.Meters)
}

func replay(name string, in io.Reader, out io.Writer, meters bool) error {
	f := admission.New()
	lines := bufio.NewReaderSize(in, 1<<20)
	var text []byte
	for number := 1; ; number++ {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("replay %s, line %d: %w", name, number, err)
		}
		if len(line) == 0 {
			continue
		}
		r, err := replayRecord(line)
		if err != nil {
			return fmt.Errorf("replay %s, line %d: %w", name, number, err)
		}
		for _, v := range f.Apply(&r) {
			text = append(events.AppendVerdict(text[:0], &v), '\n')
			if _, err := out.Write(text); err != nil {
				return err
			}
		}
		if !f.Supported() {
			return fmt.Errorf("replay %s, line %d: the log asks for rules version %d, this binary knows %d", name, number, f.Rules(), admission.RulesVersion)
		}
	}
	if !meters {
		return nil
	}
	for _, m := range f.Meters() {
		line := map[string]any{"meter": m.Meter, "kind": m.Kind.String(), "used": m.Used}
		if m.Kind == events.Balance {
			line["available"] = m.Available
		}
		if err := json.NewEncoder(out).Encode(line); err != nil {
			return err
		}
	}
	return nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxReplayLine {
			return nil, fmt.Errorf("longer than %d bytes", maxReplayLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r') {
			line = line[:len(line)-1]
		}
		return line, err
	}
}

// replayRecord reads a line. Data that cannot be read is a record with a fault, as it would be in the log.
func replayRecord(line []byte) (events.Record, error) {
	var l struct {
		Seq     *uint64
		Time    *time.Time
		Subject *string
		Data    json.RawMessage
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return events.Record{}, fmt.Errorf("not a record in JSON (cut off?): %w", err)
	}
	switch {
	case l.Seq == nil:
		return events.Record{}, errors.New("seq is missing")
	case l.Time == nil:
		return events.Record{}, errors.New("time is missing")
	case l.Subject == nil:
		return events.Record{}, errors.New("subject is missing")
	}
	s, err := events.ParseSubject(*l.Subject)
	r := events.Record{Seq: *l.Seq, At: events.Nanos(*l.Time), Gateway: s.Gateway, Event: events.Event{Org: s.Org}}
	if err != nil {
		r.Fault = err.Error()
		return r, nil
	}
	if r.Data, err = events.DecodeData("weir."+s.Type+".v1", l.Data); err != nil {
		r.Fault = err.Error()
		return r, nil
	}
	r.Fault = events.Check(s, &r.Event)
	return r, nil
}
