package outage

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

// step is one thing that happens, and what must come of it.
type step struct {
	at   time.Duration
	fail bool     // the log was out of reach
	stop string   // projectors say that they may not answer; "no": they answer
	ask  *Request // nil: nothing is asked
	done int      // index of the step whose request ends; 0: none does
	want Reason   // "" is an admission
	wait time.Duration
}

func one(s Scope) *Request { return &Request{Gateways: 1, Scopes: []Scope{s}} }

func TestAllowance(t *testing.T) {
	org := Scope{Name: "org/a", Tokens: 100}
	key := Scope{Name: "key/k", Tokens: 100}
	both := &Request{Scopes: []Scope{org, key}}
	s := time.Second
	for name, steps := range map[string][]step{
		"nothing before the first failure": {{ask: both, want: Over}},
		"five a minute, then the first leaves": {
			{fail: true},
			{at: 1 * s, ask: both}, {at: 1 * s, done: 1}, {at: 2 * s, ask: both}, {at: 2 * s, done: 3}, {at: 3 * s, ask: both}, {at: 3 * s, done: 5},
			{at: 4 * s, ask: both}, {at: 4 * s, done: 7}, {at: 5 * s, ask: both}, {at: 5 * s, done: 9}, {at: 6 * s, ask: both, want: TooMany},
			{at: 29 * s, ask: both, want: TooMany},
		},
		"two at once": {{fail: true}, {ask: both}, {ask: both}, {ask: both, want: AtLimit}, {at: s, done: 1}, {at: s, ask: both}},
		"25,000 tokens": {
			{fail: true}, {ask: one(Scope{Name: "o", Tokens: 24_000})}, {ask: one(Scope{Name: "o", Tokens: 1_001}), want: TooLarge},
			{ask: one(Scope{Name: "o", Tokens: 1_000})}, {ask: one(Scope{Name: "p", Tokens: 25_001}), want: TooLarge},
		},
		"the scope's own limit is lower": {
			{fail: true}, {ask: one(Scope{Name: "a", RPM: 1})}, {ask: one(Scope{Name: "a", RPM: 1}), want: TooMany},
			{ask: one(Scope{Name: "b", Concurrency: 1})}, {ask: one(Scope{Name: "b", Concurrency: 1}), want: AtLimit},
			{ask: one(Scope{Name: "c", TPM: 10, Tokens: 11}), want: TooLarge},
			{ask: one(Scope{Name: "d", RPS: 1})}, {at: s / 2, ask: one(Scope{Name: "d", RPS: 1}), want: TooMany}, {at: s, ask: one(Scope{Name: "d", RPS: 1})},
		},
		"the scope's own limit is higher": {
			{fail: true}, {ask: one(Scope{Name: "a", Concurrency: 100})}, {ask: one(Scope{Name: "a", Concurrency: 100})}, {ask: one(Scope{Name: "a", Concurrency: 100}), want: AtLimit},
		},
		"30 seconds from the first failure, however many follow": {
			{fail: true}, {at: 10 * s, fail: true}, {at: 20 * s, fail: true}, {at: 29 * s, fail: true}, {at: 29*s + 999*time.Millisecond, ask: both},
			{at: 30 * s, ask: both, want: Over}, {at: 30 * s, fail: true}, {at: 31 * s, ask: both, want: Over},
			{at: 80 * s, fail: true}, {at: 81 * s, ask: both, want: Over},
			{at: 139 * s, fail: true}, {at: 139 * s, ask: both, want: Over},
			{at: 199 * s, fail: true}, {at: 199 * s, ask: both},
		},
		"closed wins": {{fail: true}, {ask: &Request{Closed: true, Scopes: []Scope{org}}, want: Closed}},
		"nothing while projectors may not answer, also when they are gone then": {
			{stop: "the clock"}, {ask: both, want: Stopped}, {fail: true}, {at: s, ask: both, want: Stopped},
			{at: 100 * s, fail: true}, {at: 101 * s, ask: both, want: Stopped}, {at: 101 * s, ask: dedicated(1, Scope{}), want: Stopped},
			{at: 102 * s, stop: "no"}, {at: 102 * s, ask: both}, {at: 130 * s, ask: both, want: Over},
		},
		"what stops them stops what is granted already": {
			{fail: true}, {ask: both}, {at: s, stop: "the clock"}, {at: s, ask: both, want: Stopped}, {at: s, done: 1}, {at: 2 * s, ask: both, want: Stopped},
			{at: 3 * s, stop: "no"}, {at: 3 * s, ask: both}, {at: 30 * s, stop: "the clock"}, {at: 30 * s, ask: both, want: Stopped},
		},
		"all or nothing": {
			{fail: true}, {ask: one(key)}, {ask: one(key)}, {ask: both, want: AtLimit}, {ask: one(org)}, {ask: one(org)}, {ask: one(org), want: AtLimit},
		},
		"what was left": {
			{fail: true}, {ask: &Request{Sums: []Sum{{"balance", 40, 40, 100}}}}, {ask: &Request{Sums: []Sum{{"balance", 40, 40, 100}}}},
			{ask: &Request{Sums: []Sum{{"balance", 40, 40, 100}}}, want: Used}, {ask: &Request{Sums: []Sum{{"empty", 0, 1, 0}}}, want: Used},
		},
		"occupancy": {
			{fail: true}, {ask: &Request{Gauges: []Gauge{{"m", 60, 100}}}}, {ask: &Request{Gauges: []Gauge{{"m", 60, 100}}}, want: Full},
			{done: 1}, {ask: &Request{Gauges: []Gauge{{"m", 60, 100}}}}, {ask: &Request{Gauges: []Gauge{{"n", 101, 100}}}, want: Full},
		},
		"a dedicated endpoint has its own limits, divided, for ten minutes": {
			{fail: true},
			{ask: dedicated(2, Scope{Concurrency: 4})}, {ask: dedicated(2, Scope{Concurrency: 4})}, {ask: dedicated(2, Scope{Concurrency: 4}), want: AtLimit},
			{at: 599 * s, ask: dedicated(2, Scope{RPM: 2})}, {at: 599 * s, ask: dedicated(2, Scope{RPM: 2}), want: TooMany},
			{at: 600 * s, ask: dedicated(2, Scope{}), want: Over},
		},
		"and is paced at its share": {
			{fail: true},
			{ask: dedicated(2, Scope{PaceRPS: 4, Queue: s})}, {ask: dedicated(2, Scope{PaceRPS: 4, Queue: s}), wait: s / 2},
			{ask: dedicated(2, Scope{PaceRPS: 4, Queue: s}), wait: s}, {ask: dedicated(2, Scope{PaceRPS: 4, Queue: s}), want: Queue},
		},
		"a limit that cannot be divided is nobody's": {{fail: true}, {ask: dedicated(3, Scope{RPM: 2}), want: TooMany}},
	} {
		t.Run(name, func(t *testing.T) {
			a := New()
			tickets := make([]Ticket, len(steps))
			for i, st := range steps {
				if st.fail {
					a.Failed(at(st.at))
				}
				switch st.stop {
				case "":
				case "no":
					a.Stop("")
				default:
					a.Stop(st.stop)
				}
				if st.done > 0 {
					a.Done(tickets[st.done])
				}
				if st.ask == nil {
					continue
				}
				d := a.Admit(at(st.at), st.ask)
				if d.Reason != st.want || d.Admitted != (st.want == "") || d.Wait != st.wait {
					t.Fatalf("step %d: %+v, want reason %q and wait %s", i, d, st.want, st.wait)
				}
				tickets[i] = d.Ticket
			}
		})
	}
}

func dedicated(gateways int64, s Scope) *Request {
	s.Name, s.Endpoint = "endpoint/m", true
	return &Request{Dedicated: true, Gateways: gateways, Scopes: []Scope{s}}
}

// granted is what a property test remembers of one admission.
type granted struct {
	at      time.Duration
	tokens  int64
	running bool
}

func TestBoundsHoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New()
		own := Scope{Name: "s", RPM: rapid.Int64Range(0, 8).Draw(t, "rpm"), TPM: rapid.Int64Range(0, 40_000).Draw(t, "tpm"), Concurrency: rapid.Int64Range(0, 4).Draw(t, "concurrency")}
		lesser := func(bound, own int64) int64 {
			if own > 0 {
				return min(bound, own)
			}
			return bound
		}
		var now, first, last time.Duration
		failed := false
		var all []granted
		var tickets []Ticket
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, 5_000).Draw(t, "ms")) * time.Millisecond
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if !failed || now-last >= RearmAfter {
					first = now
				}
				failed, last = true, now
				a.Failed(at(now))
			case 1:
				for i := range all {
					if all[i].running {
						all[i].running = false
						a.Done(tickets[i])
						break
					}
				}
			default:
				own.Tokens = rapid.Int64Range(0, 12_000).Draw(t, "tokens")
				d := a.Admit(at(now), one(own))
				if !d.Admitted {
					continue
				}
				if !failed || now-first >= For {
					t.Fatalf("admitted %s after the first failure", now-first)
				}
				all, tickets = append(all, granted{now, own.Tokens, true}), append(tickets, d.Ticket)
			}
			live, requests, tokens := int64(0), int64(0), int64(0)
			for _, g := range all {
				if g.running {
					live++
				}
				if now-g.at < time.Minute {
					requests, tokens = requests+1, tokens+g.tokens
				}
			}
			if live > lesser(AtOnce, own.Concurrency) || requests > lesser(Requests, own.RPM) || tokens > lesser(Tokens, own.TPM) {
				t.Fatalf("%d at once, %d requests and %d tokens of the last minute", live, requests, tokens)
			}
		}
	})
}

func TestScopesAreBounded(t *testing.T) {
	a := New()
	a.Failed(start)
	name := func(i int) string { return string(rune('a'+i%26)) + time.Duration(i).String() }
	for i := range MaxScopes {
		d := a.Admit(start, one(Scope{Name: name(i)}))
		if !d.Admitted {
			t.Fatalf("scope %d: %+v", i, d)
		}
		if i > 0 {
			a.Done(d.Ticket)
		}
	}
	if d := a.Admit(at(time.Second), one(Scope{Name: "one more"})); d.Reason != OutOfBounds {
		t.Fatalf("%+v, want a refusal", d)
	}
	a.Failed(at(59 * time.Second))
	a.Failed(at(130 * time.Second))
	if d := a.Admit(at(130*time.Second), one(Scope{Name: "one more"})); !d.Admitted {
		t.Fatalf("%+v: scopes that show nothing were not forgotten", d)
	}
	if got := a.scopes[name(0)]; got == nil || got.live != 1 {
		t.Fatal("a scope with a running request was forgotten")
	}
}
