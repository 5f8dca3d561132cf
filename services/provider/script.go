package provider

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxScript bounds every number in a script: enough for any test, too little to fill the memory.
const maxScript = 1_000_000

// Script is what one answer does. Its text form is a list of names, or name=value, joined by semicolons.
type Script struct {
	Delay      time.Duration // delay=50ms: before the first byte
	Gap        time.Duration // gap=10ms: between events of a stream; each is then flushed by itself
	Tokens     int           // tokens=20: visible output tokens of each choice. Defaults to 16
	Reasoning  int           // reasoning=10: tokens of reasoning before them, part of the output
	Apart      bool          // apart: usage counts reasoning beside the output, as some providers do
	Input      int           // input=100: reported input tokens. Defaults to a quarter of the body's bytes
	Cached     int           // cached=100: of the input, read from a cache
	CacheWrite int           // cache-write=100: of the input, written to a cache
	Tool       bool          // tool: the answer is a tool call
	NoUsage    bool          // no-usage: usage is never reported
	EachUsage  bool          // each-usage: every chunk carries the usage so far
	Dims       int           // dims=8: the length of embedding vectors. Defaults to 8
	CRLF       bool          // crlf: lines of a stream end with CR LF
	Comments   bool          // comments: a stream also has comment lines

	Status     int           // status=429: answer with this error
	RetryAfter time.Duration // retry-after=3: seconds, or a duration; sent with the status
	Hang       bool          // hang: answer nothing until the client leaves; hang=3: after three events
	HangAfter  int
	Cut        bool // cut=5: break the connection inside the sixth event, or after five bytes of an answer that is no stream
	CutAfter   int
	Error      bool // error-event=3: an error inside the stream after three events
	ErrorAfter int
	Abort      bool // abort: close the connection without any answer
	Times      int  // times=2: the faults happen only in the first two requests with this very script
}

// heal takes the faults out.
func (s *Script) heal() {
	s.Status, s.Hang, s.Cut, s.Error, s.Abort = 0, false, false, false, false
}

// ParseScript reads a script. The error names the part and what is wrong with it.
func ParseScript(text string) (Script, error) {
	s := Script{Tokens: 16, Dims: 8}
	for len(text) > 0 {
		var part string
		part, text, _ = strings.Cut(text, ";")
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, given := strings.Cut(part, "=")
		if err := s.set(name, value, given); err != nil {
			return s, fmt.Errorf("reading the script: %s: %w", part, err)
		}
	}
	return s, nil
}

func (s *Script) set(name, value string, given bool) (err error) {
	switch name {
	case "delay":
		s.Delay, err = duration(value)
	case "gap":
		s.Gap, err = duration(value)
	case "retry-after":
		s.RetryAfter, err = duration(value)
	case "tokens":
		s.Tokens, err = number(value)
	case "reasoning":
		s.Reasoning, err = number(value)
	case "input":
		s.Input, err = number(value)
	case "cached":
		s.Cached, err = number(value)
	case "cache-write":
		s.CacheWrite, err = number(value)
	case "dims":
		s.Dims, err = number(value)
	case "status":
		if s.Status, err = number(value); err == nil && (s.Status < 400 || s.Status > 599) {
			err = fmt.Errorf("a status must be between 400 and 599")
		}
	case "times":
		s.Times, err = number(value)
	case "cut":
		s.Cut = true
		s.CutAfter, err = number(value)
	case "error-event":
		s.Error = true
		s.ErrorAfter, err = number(value)
	case "hang":
		s.Hang = true
		if given {
			s.HangAfter, err = number(value)
		}
	default:
		return s.flag(name, given)
	}
	return err
}

func (s *Script) flag(name string, given bool) error {
	flag, known := map[string]*bool{"apart": &s.Apart, "tool": &s.Tool, "no-usage": &s.NoUsage, "each-usage": &s.EachUsage,
		"crlf": &s.CRLF, "comments": &s.Comments, "abort": &s.Abort}[name]
	switch {
	case !known:
		return fmt.Errorf("there is no such name")
	case given:
		return fmt.Errorf("it takes no value")
	}
	*flag = true
	return nil
}

func number(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxScript {
		return 0, fmt.Errorf("the value must be a whole number from 0 to %d", maxScript)
	}
	return n, nil
}

// duration reads a Go duration, or whole seconds.
func duration(value string) (time.Duration, error) {
	if n, err := strconv.Atoi(value); err == nil && n >= 0 && n <= 86_400 {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > 24*time.Hour {
		return 0, fmt.Errorf("the value must be a duration such as 50ms, at most 24h")
	}
	return d, nil
}
