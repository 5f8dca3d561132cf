package kv_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/kv"
)

// clock is virtual time.
type clock struct{ at time.Time }

func newClock() *clock                { return &clock{time.Unix(5_000, 0)} }
func (c *clock) now() time.Time       { return c.at }
func (c *clock) pass(d time.Duration) { c.at = c.at.Add(d) }
func stream(d time.Duration) int64    { return int64(1_700_000_000*time.Second + d) }
func rpm(limit int64) *events.Claim {
	return &events.Claim{Meter: "org/a/rpm", Kind: events.Window, Amount: 1, HasLimit: true, Limit: limit}
}
func used(n int64, in time.Duration) admission.Reading {
	return admission.Reading{Meter: "org/a/rpm", Kind: events.Window, Used: n, Limit: 10, HasLimit: true, Falls: []admission.Fall{{At: stream(in), Amount: n}}}
}

func TestViewAgesByTheGatewaysOwnTime(t *testing.T) {
	c := newClock()
	v := kv.NewView(c.now)
	if _, no := v.Refuses(rpm(10), c.now()); no {
		t.Fatal("an empty view refuses")
	}
	v.Put(used(10, 60*time.Second), 7, stream(0))
	h, no := v.Refuses(rpm(10), c.now())
	if !no || h.RetryMS != 60_000 || h.Seq != 7 || h.Reason != events.OverLimit {
		t.Fatalf("a full window: %+v %v", h, no)
	}
	c.pass(59 * time.Second)
	if h, no := v.Refuses(rpm(10), c.now()); !no || h.RetryMS != 1_000 {
		t.Fatalf("59 s later: %+v %v", h, no)
	}
	if left, known := v.Remaining("org/a/rpm", 12, c.now()); !known || left != (kv.Allowance{Used: 10, Remaining: 2, ResetMS: 1_000}) {
		t.Errorf("remaining: %+v %v", left, known)
	}
	c.pass(time.Second)
	if h, no := v.Refuses(rpm(10), c.now()); no {
		t.Fatalf("a minute later: %+v", h)
	}
	if left, known := v.Remaining("org/a/tpm", 12, c.now()); known || left.Remaining != 12 {
		t.Errorf("of an unknown meter: %+v %v", left, known)
	}
	n := 0
	v.Each(c.now(), func(events.Meter, kv.Entry) bool { n++; return true })
	if n != 0 {
		t.Errorf("%d meters show something", n)
	}
}

// An entry that comes late is as old as it is, when others have shown the fold's time.
func TestViewKnowsThatAnEntryIsLate(t *testing.T) {
	c := newClock()
	v := kv.NewView(c.now)
	v.Put(admission.Reading{Meter: "org/b/rpm", Kind: events.Window}, 9, stream(40*time.Second))
	c.pass(time.Second)
	v.Put(used(10, 41*time.Second), 8, stream(0)) // 41 s old when it comes
	if h, no := v.Refuses(rpm(10), c.now()); no {
		t.Fatalf("what had fallen before it came refuses: %+v", h)
	}
	v.Put(used(10, 42*time.Second), 8, stream(0))
	if h, no := v.Refuses(rpm(10), c.now()); !no || h.RetryMS != 1_000 {
		t.Fatalf("a second before its fall: %+v %v", h, no)
	}
}

func TestViewNamesTheFirstClaim(t *testing.T) {
	c := newClock()
	v := kv.NewView(c.now)
	v.Put(used(10, 60*time.Second), 7, stream(0))
	claims := []events.Claim{{Meter: "org/a/tpm", Kind: events.Window, Amount: 1, HasLimit: true, Limit: 1}, *rpm(11), *rpm(10)}
	if i, h, no := v.RefusesAny(claims, c.now()); !no || i != 2 || h.Meter != "org/a/rpm" {
		t.Errorf("claim %d, %+v, %v", i, h, no)
	}
	if i, _, no := v.RefusesAny(claims[:2], c.now()); no || i != -1 {
		t.Errorf("claim %d refuses", i)
	}
}

// In the projector's own process what does not change is not put again: it stays as long as it shows anything.
func TestViewForgets(t *testing.T) {
	c := newClock()
	v := kv.NewView(c.now)
	day := admission.Reading{Meter: "org/a/daily", Kind: events.Budget, Used: 10, Falls: []admission.Fall{{At: stream(24 * time.Hour), Amount: 10}}}
	v.Put(day, 7, stream(0))
	c.pass(19 * time.Minute)
	v.Put(used(1, 20*time.Minute), 8, stream(19*time.Minute))
	if _, ok := v.Get("org/a/daily", c.now()); !ok {
		t.Fatal("forgotten too soon")
	}
	c.pass(2 * time.Minute)
	v.Put(used(1, 22*time.Minute), 9, stream(21*time.Minute))
	if e, ok := v.Get("org/a/daily", c.now()); !ok || e.Used != 10 {
		t.Fatalf("a budget that still counts was forgotten: %+v", e)
	}
	c.pass(25 * time.Hour)
	v.Put(used(1, 26*time.Hour), 10, stream(25*time.Hour+21*time.Minute))
	if e, ok := v.Get("org/a/daily", c.now()); ok {
		t.Fatalf("not forgotten: %+v", e)
	}
}

// What a gateway has been told itself is shown until it ends, and does not end a longer pause; what the log says later counts.
func TestViewPauses(t *testing.T) {
	c := newClock()
	v := kv.NewView(c.now)
	v.Put(used(0, time.Second), 7, stream(0))
	claim := &events.Claim{Meter: "pool/a/pause", Kind: events.Pause}
	v.Pause(claim.Meter, c.now(), 20*time.Second)
	v.Pause(claim.Meter, c.now(), 5*time.Second)
	c.pass(19 * time.Second)
	if h, no := v.Refuses(claim, c.now()); !no || h.Reason != events.Paused || h.RetryMS != 1_000 {
		t.Fatalf("a second before its end: %+v %v", h, no)
	}
	c.pass(time.Second)
	if h, no := v.Refuses(claim, c.now()); no {
		t.Fatalf("at its end: %+v", h)
	}
	v.Pause(claim.Meter, c.now(), 20*time.Second)
	v.Put(admission.Reading{Meter: claim.Meter, Kind: events.Pause, Used: 30_000, Falls: []admission.Fall{{At: stream(50 * time.Second)}}}, 8, stream(20*time.Second))
	c.pass(25 * time.Second)
	if h, no := v.Refuses(claim, c.now()); !no || h.RetryMS != 5_000 {
		t.Fatalf("the log says longer: %+v %v", h, no)
	}
	empty := kv.NewView(c.now) // the log went away before it was filled
	empty.Pause(claim.Meter, c.now(), 20*time.Second)
	if h, no := empty.Refuses(claim, c.now()); !no || h.RetryMS != 20_000 {
		t.Fatalf("in a view that was never filled: %+v %v", h, no)
	}
}
