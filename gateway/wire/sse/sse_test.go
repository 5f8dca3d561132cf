package sse

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// recorder notes what it is shown, drops events whose data is "drop", and cuts "cut" out of others.
type recorder struct{ seen []string }

func (r *recorder) Event(name, data []byte) Edit {
	r.seen = append(r.seen, string(name)+"|"+string(data))
	if string(data) == "drop" {
		return Edit{Drop: true}
	}
	if i := bytes.Index(data, []byte("cut")); i >= 0 {
		return Edit{From: i, To: i + 3}
	}
	return Edit{Bad: bytes.HasPrefix(data, []byte("bad"))}
}

// feed returns everything passed on, by pieces of the given sizes (the last repeats).
func feed(t *testing.T, in string, sizes []byte) (out string, seen []string, cut bool) {
	t.Helper()
	var s Stream
	var r recorder
	var b bytes.Buffer
	rest := []byte(in)
	for i := 0; len(rest) > 0; i++ {
		n := len(rest)
		if len(sizes) > 0 {
			n = min(n, int(sizes[i%len(sizes)])+1)
		}
		got, err := s.Write(bytes.Clone(rest[:n]), &r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(got)
		rest = rest[n:]
	}
	got, cut := s.Finish(&r)
	b.Write(got)
	return b.String(), r.seen, cut
}

func TestStream(t *testing.T) {
	cases := []struct {
		name, in, out, seen string
		cut                 bool
	}{
		{"plain", "data: a\n\ndata: b\n\n", "data: a\n\ndata: b\n\n", "|a,|b", false},
		{"crlf", "event: e\r\ndata: a\r\n\r\ndata:b\r\n\r\n", "event: e\r\ndata: a\r\n\r\ndata:b\r\n\r\n", "e|a,|b", false},
		{"comments and other fields", ": hi\n\nid: 1\nretry: 5\ndata: a\n\n", ": hi\n\nid: 1\nretry: 5\ndata: a\n\n", "|a", false},
		{"lines of data", "data: a\ndata: b\n\n", "data: a\ndata: b\n\n", "|a\nb", false},
		{"empty lines", "\n\r\n\ndata: a\n\n\n", "\n\r\n\ndata: a\n\n\n", "|a", false},
		{"empty data", "data:\n\n", "data:\n\n", "|", false},
		{"drop", "data: a\n\ndata: drop\n\ndata: b\n\n", "data: a\n\ndata: b\n\n", "|a,|drop,|b", false},
		{"cut out", "data: acutb\n\ndata: c\n\n", "data: ab\n\ndata: c\n\n", "|acutb,|c", false},
		{"end without empty line", "data: a\n\ndata: b\n", "data: a\n\ndata: b\n\n", "|a,|b", false},
		{"end without line end", "data: a\n\ndata: xcut", "data: a\n\ndata: x\n\n", "|a,|xcut", false},
		{"cut short", "data: a\n\ndata: bad", "data: a\n\n", "|a,|bad", true},
		{"cut in a field name", "data: a\n\nda", "data: a\n\n", "|a", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, sizes := range [][]byte{nil, {0}, {1}, {2}, {0, 6}, {4, 0, 1}} {
				out, seen, cut := feed(t, c.in, sizes)
				if out != c.out || strings.Join(seen, ",") != c.seen || cut != c.cut {
					t.Errorf("in pieces %v:\n got %q, seen %q, cut %v\nwant %q, seen %q, cut %v", sizes, out, seen, cut, c.out, c.seen, c.cut)
				}
			}
		})
	}
}

// Whole events are passed on as soon as their last byte is there, and nothing before.
func TestStreamPassesEventsAtOnce(t *testing.T) {
	var s Stream
	var r recorder
	for _, step := range []struct{ in, out string }{
		{"data: a\n", ""}, {"\n", "data: a\n\n"}, {"data: b\n\ndata", "data: b\n\n"}, {": c\n\n", "data: c\n\n"}, {"data: d\n\n", "data: d\n\n"},
	} {
		out, err := s.Write([]byte(step.in), &r)
		if err != nil || string(out) != step.out {
			t.Fatalf("after %q: got %q, %v; want %q", step.in, out, err, step.out)
		}
	}
}

func TestStreamBound(t *testing.T) {
	var s Stream
	var r recorder
	out, err := s.Write([]byte("data: a\n\ndata: "), &r)
	if err != nil || string(out) != "data: a\n\n" {
		t.Fatalf("got %q, %v", out, err)
	}
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for range MaxEvent >> 20 {
		if _, err = s.Write(bytes.Clone(piece), &r); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

// FuzzStream: fed in any pieces is the same as fed whole.
func FuzzStream(f *testing.F) {
	f.Add("data: a\n\ndata: xcuty\r\n\r\n: c\n\ndata: drop\n\ndata: b\ndata: c\n\nda", []byte{0, 3, 1})
	f.Add("\n\n\r\n\r\rdata:\n\r\n\n", []byte{0})
	f.Fuzz(func(t *testing.T, in string, sizes []byte) {
		whole, wholeSeen, wholeCut := feed(t, in, nil)
		out, seen, cut := feed(t, in, sizes)
		if whole != out || strings.Join(wholeSeen, "\x00") != strings.Join(seen, "\x00") || wholeCut != cut {
			t.Fatalf("in pieces %v of %q:\n got %q %q %v\nwant %q %q %v", sizes, in, out, seen, cut, whole, wholeSeen, wholeCut)
		}
		if !strings.Contains(in, "cut") && !strings.Contains(in, "drop") && !cut && !strings.HasPrefix(out, in) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}
