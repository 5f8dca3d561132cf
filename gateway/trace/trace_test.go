package trace

import (
	"net/http"
	"testing"
	"time"
)

// TestOffIsFree: without a tracer nothing is allocated, and headers stay the client's very own.
func TestOffIsFree(t *testing.T) {
	var off *Tracer
	h := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	n := testing.AllocsPerRun(100, func() {
		s := off.Request(h, "request")
		child := s.Child("child")
		call, out := s.Call("call", h)
		call.Str("k", "v")
		call.Int("n", 1)
		call.Fail("why")
		call.End()
		child.End()
		off.Remote("", "fold", time.Time{}, time.Time{}, nil)
		if s.Parent() != "" || len(out) != 1 {
			t.Error("something is traced")
		}
		s.End()
	})
	if n != 0 {
		t.Errorf("%g allocations", n)
	}
	if err := off.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
