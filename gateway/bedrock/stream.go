package bedrock

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/gateway/wire/scan"
)

// ContentType is that of a stream of frames.
const ContentType = "application/vnd.amazon.eventstream"

// Bounds of a frame, in bytes: its length, the length of its headers and a checksum of the two; headers and payload; a checksum of all.
const (
	prelude  = 12
	trailer  = 4
	maxFrame = 16 << 20
)

// Stream reads frames and gives what they carry as the server-sent events of Anthropic's format. A frame that is not whole or not right ends
// it with an error.
type Stream struct {
	in    io.ReadCloser
	frame []byte // read anew for each
	out   []byte // events that were not taken yet
}

// NewStream makes one that reads in.
func NewStream(in io.ReadCloser) *Stream { return &Stream{in: in} }

// Close closes what is read.
func (s *Stream) Close() error { return s.in.Close() }

// Read gives the next bytes of the events.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// next reads one frame.
func (s *Stream) next() error {
	s.frame = append(s.frame[:0], make([]byte, prelude)...)
	if _, err := io.ReadFull(s.in, s.frame); err != nil {
		return err // io.EOF between two frames: the end
	}
	size, headers := binary.BigEndian.Uint32(s.frame), binary.BigEndian.Uint32(s.frame[4:])
	switch {
	case crc32.ChecksumIEEE(s.frame[:8]) != binary.BigEndian.Uint32(s.frame[8:]):
		return errors.New("read a frame: the checksum of its lengths is wrong")
	case size > maxFrame || size < prelude+trailer || headers > size-prelude-trailer:
		return fmt.Errorf("read a frame: it has %d bytes, %d of them headers: at most %d may be", size, headers, maxFrame)
	}
	s.frame = append(s.frame, make([]byte, size-prelude)...)
	if _, err := io.ReadFull(s.in, s.frame[prelude:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	end := len(s.frame) - trailer
	if crc32.ChecksumIEEE(s.frame[:end]) != binary.BigEndian.Uint32(s.frame[end:]) {
		return errors.New("read a frame: its checksum is wrong")
	}
	said, err := readHeaders(s.frame[prelude : prelude+headers])
	if err != nil {
		return err
	}
	return s.event(said, s.frame[prelude+headers:end])
}

// headers are those that tell what a frame is.
type headers struct{ message, exception, code, text string }

// sizes are the lengths of header values by their type; those of the types 6 and 7 stand before them.
var sizes = map[byte]int{0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}

func readHeaders(b []byte) (h headers, err error) {
	cut := func(n int) []byte {
		if n > len(b) {
			err, n = errors.New("read a frame: its headers are cut short"), len(b)
		}
		part := b[:n]
		b = b[n:]
		return part
	}
	for len(b) > 0 && err == nil {
		name := string(cut(int(cut(1)[0])))
		if len(b) == 0 {
			return h, errors.New("read a frame: its headers are cut short")
		}
		kind := cut(1)[0]
		n, fixed := sizes[kind]
		if !fixed {
			if n = 0; len(b) >= 2 {
				n = int(binary.BigEndian.Uint16(cut(2)))
			}
		}
		value := string(cut(n))
		switch name {
		case ":message-type":
			h.message = value
		case ":exception-type":
			h.exception = value
		case ":error-code":
			h.code = value
		case ":error-message":
			h.text = value
		}
	}
	return h, err
}

// event turns a frame into an event.
func (s *Stream) event(h headers, payload []byte) error {
	switch h.message {
	case "event":
		text := gjson.GetBytes(payload, "bytes")
		if text.Type != gjson.String {
			return nil // of a kind that there was not yet
		}
		data, err := base64.StdEncoding.DecodeString(text.Str)
		if err != nil {
			return fmt.Errorf("read a frame: %w", err)
		}
		s.add(gjson.GetBytes(data, "type").Str, data)
	case "exception":
		_, message := Fault(h.exception, payload)
		s.fail(h.exception, message)
	case "error":
		s.fail(h.code, h.text)
	}
	return nil
}

func (s *Stream) add(kind string, data []byte) {
	s.out = append(append(append(s.out[:0], "event: "...), kind...), "\ndata: "...)
	for _, c := range data {
		if c != '\n' && c != '\r' { // JSON needs neither
			s.out = append(s.out, c)
		}
	}
	s.out = append(s.out, "\n\n"...)
}

// types are Anthropic's words for AWS's exceptions.
var types = map[string]string{
	"throttlingException": "rate_limit_error", "validationException": "invalid_request_error", "serviceUnavailableException": "overloaded_error",
	"modelTimeoutException": "timeout_error",
}

func (s *Stream) fail(code, message string) {
	kind := types[code]
	if kind == "" {
		kind = "api_error"
	}
	data := scan.AppendString([]byte(`{"type":"error","error":{"type":`), kind)
	data = scan.AppendString(append(data, `,"message":`...), message)
	data = scan.AppendString(append(data, `,"code":`...), code)
	s.add("error", append(data, "}}"...))
}
