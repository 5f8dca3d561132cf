package kv

import (
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// start is the fold's time of the tables' entries, ns; their instants are in ms after it.
const start = int64(1_700_000_000_000_000_000)

func falls(pairs ...int64) (all []admission.Fall) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, admission.Fall{At: start + pairs[i]*ms, Amount: pairs[i+1]})
	}
	return all
}

func window(used int64, f ...int64) Entry {
	return Entry{Kind: events.Window, Used: used, Limit: 10, HasLimit: true, Time: start, Falls: falls(f...)}
}

func TestUsedAt(t *testing.T) {
	budget := Entry{Kind: events.Budget, Used: 70, Time: start, Falls: falls(5000, 70)}
	bucket := Entry{Kind: events.Bucket, Used: 60, Limit: 60, HasLimit: true, Time: start, Falls: falls(60_000, 60)}
	debt := Entry{Kind: events.Bucket, Used: 90, Limit: 60, HasLimit: true, Time: start, Falls: falls(90_000, 90)}
	pause := Entry{Kind: events.Pause, Used: 3000, Time: start, Falls: falls(3000, 3000)}
	gauge := Entry{Kind: events.Gauge, Used: 4, Time: start}
	for _, c := range []struct {
		name  string
		entry Entry
		after int64 // ms
		want  int64
	}{
		{"a window as it was", window(9, 1000, 4, 2000, 5), 0, 9},
		{"just before a fall", window(9, 1000, 4, 2000, 5), 999, 9},
		{"at a fall", window(9, 1000, 4, 2000, 5), 1000, 5},
		{"after all", window(9, 1000, 4, 2000, 5), 2000, 0},
		{"a budget in its period", budget, 4999, 70},
		{"a budget in the next", budget, 5000, 0},
		{"a bucket refills evenly", bucket, 30_000, 30},
		{"rounded down", bucket, 30_001, 29},
		{"a full bucket", bucket, 60_000, 0},
		{"debt counts", debt, 30_000, 60},
		{"a pause", pause, 1, 2999},
		{"its end", pause, 3000, 0},
		{"a gauge stays", gauge, 10_000, 4},
	} {
		if got := c.entry.UsedAt(start + c.after*ms); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestRefuses(t *testing.T) {
	claim := func(kind events.MeterKind, amount, limit int64) events.Claim {
		return events.Claim{Meter: "org/a/x", Kind: kind, Amount: amount, HasLimit: true, Limit: limit}
	}
	with := func(c events.Claim, change func(*events.Claim)) events.Claim { change(&c); return c }
	full := window(10, 1000, 4, 2000, 6)
	budget := Entry{Kind: events.Budget, Used: 95, Limit: 100, HasLimit: true, Time: start, Falls: falls(86_000_000, 95)}
	bucket := Entry{Kind: events.Bucket, Used: 55, Limit: 60, HasLimit: true, Time: start, Falls: falls(55_000, 55)}
	pause := Entry{Kind: events.Pause, Used: 3000, Time: start, Falls: falls(3000, 3000)}
	queue := Entry{Kind: events.Gauge, Used: 8, Limit: 8, HasLimit: true, Waiting: 256, Time: start}
	park := func(c *events.Claim) { c.Park = true }
	for _, c := range []struct {
		name    string
		entry   Entry
		claim   events.Claim
		after   int64
		refuses bool
		used    int64
		retry   int64
	}{
		{"a full window", full, claim(events.Window, 1, 10), 0, true, 10, 1000},
		{"long after, with falls to come", full, claim(events.Window, 5, 10), 1500, true, 6, 500},
		{"what has fallen makes room", full, claim(events.Window, 4, 10), 1000, false, 0, 0},
		{"more falls are needed", full, claim(events.Window, 5, 10), 0, true, 10, 2000},
		{"nothing is left to fall", full, claim(events.Window, 1, 10), 2000, false, 0, 0},
		{"the claim's own limit counts", full, claim(events.Window, 1, 20), 0, false, 0, 0},
		{"what never fits is the log's", full, claim(events.Window, 11, 10), 0, false, 0, 0},
		{"no limit", full, with(claim(events.Window, 1, 10), func(c *events.Claim) { c.HasLimit = false }), 0, false, 0, 0},
		{"a shadow", full, with(claim(events.Window, 1, 10), func(c *events.Claim) { c.Shadow = true }), 0, false, 0, 0},
		{"another kind", full, claim(events.Budget, 1, 10), 0, false, 0, 0},
		{"the check counts, not the amount", full, with(claim(events.Window, 0, 10), func(c *events.Claim) { c.HasCheck, c.Check = true, 1 }), 0, true, 10, 1000},
		{"a used-up budget, hours later", budget, claim(events.Budget, 6, 100), 7_200_000, true, 95, 78_800_000},
		{"a budget with room", budget, claim(events.Budget, 5, 100), 0, false, 0, 0},
		{"an empty bucket", bucket, claim(events.Bucket, 10, 60), 0, true, 55, 5000},
		{"refilled enough", bucket, claim(events.Bucket, 10, 60), 5000, false, 0, 0},
		{"a lower limit caps the level", bucket, claim(events.Bucket, 6, 30), 0, true, 25, 2000},
		{"a pause", pause, claim(events.Pause, 0, 0), 2999, true, 1, 1},
		{"its end", pause, claim(events.Pause, 0, 0), 3000, false, 0, 0},
		{"a full queue", queue, with(claim(events.Gauge, 1, 8), park), 250, true, 0, 1000},
		{"a full queue of long ago", queue, with(claim(events.Gauge, 1, 8), park), 251, false, 0, 0},
		{"one that does not park", queue, claim(events.Gauge, 1, 8), 0, false, 0, 0},
		{"a full gauge without a queue", Entry{Kind: events.Gauge, Used: 8, Limit: 8, HasLimit: true, Waiting: 255, Time: start}, with(claim(events.Gauge, 1, 8), park), 0, false, 0, 0},
		{"a balance is the log's", Entry{Kind: events.Balance, Time: start}, claim(events.Balance, 1, 0), 0, false, 0, 0},
		{"a pace is the log's", Entry{Kind: events.Pace, Used: 9000, Time: start, Falls: falls(9000, 9000)}, claim(events.Pace, 1, 1), 0, false, 0, 0},
	} {
		hint, refuses := c.entry.refuses(&c.claim, start+c.after*ms)
		if refuses != c.refuses {
			t.Errorf("%s: refuses is %v", c.name, refuses)
			continue
		}
		if refuses && c.claim.Kind != events.Gauge && hint.Used != c.used || refuses && hint.RetryMS != c.retry {
			t.Errorf("%s: used %d retry %d, want %d and %d", c.name, hint.Used, hint.RetryMS, c.used, c.retry)
		}
	}
}

func TestAllowance(t *testing.T) {
	full := window(10, 1000, 4, 2000, 6)
	bucket := Entry{Kind: events.Bucket, Used: 30, Limit: 60, HasLimit: true, Time: start, Falls: falls(30_000, 30)}
	for _, c := range []struct {
		name  string
		entry Entry
		limit int64
		after int64
		want  Allowance
	}{
		{"a full window", full, 10, 0, Allowance{10, 0, 2000}},
		{"after a fall", full, 10, 1000, Allowance{6, 4, 1000}},
		{"empty", full, 10, 2000, Allowance{0, 10, 0}},
		{"a lower limit", full, 5, 0, Allowance{10, 0, 2000}},
		{"a bucket", bucket, 60, 10_000, Allowance{20, 40, 20_000}},
		{"a balance", Entry{Kind: events.Balance, Used: 5, Total: 20, Available: 15}, 0, 0, Allowance{5, 15, 0}},
		{"a gauge", Entry{Kind: events.Gauge, Used: 3, Time: start}, 8, 0, Allowance{3, 5, 0}},
	} {
		if got := c.entry.allowance(c.limit, start+c.after*ms); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestEntryRoundTrip(t *testing.T) {
	for _, e := range []Entry{
		window(9, 1000, 4, 2000, 5),
		{Kind: events.Balance, Used: 5, Available: -3, Total: 2, Time: start + 1, Seq: 9},
		{Kind: events.Gauge, Used: 3, HasLimit: true, Waiting: 7, Time: start + 123, Seq: 1 << 40},
	} {
		got, err := decodeEntry(appendEntry(nil, &e))
		if err != nil {
			t.Fatal(err)
		}
		again := string(appendEntry(nil, &got))
		if want := string(appendEntry(nil, &e)); again != want {
			t.Errorf("%s, want %s", again, want)
		}
		if got.Time != e.Time || len(got.Falls) != len(e.Falls) || got.HasLimit != e.HasLimit {
			t.Errorf("%+v, want %+v", got, e)
		}
	}
	for _, bad := range []string{``, `{}`, `{"kind":"gage"}`, `{"kind":"gauge","used":"1"}`, `{"kind":"gauge","time":"now"}`} {
		if e, err := decodeEntry([]byte(bad)); err == nil {
			t.Errorf("%s is read as %+v", bad, e)
		}
	}
}

func TestLevelAndHeat(t *testing.T) {
	gauge := func(used, limit int64) Entry {
		return Entry{Kind: events.Gauge, Used: used, Limit: limit, HasLimit: true}
	}
	for _, c := range []struct {
		entry Entry
		level uint8
		heat  int64
	}{
		{gauge(0, 10), 0, 0},
		{gauge(7, 10), 0, 700},
		{gauge(8, 10), 1, 800},
		{gauge(10, 10), 2, 1000},
		{gauge(1<<62, 1), 2, 4000},
		{gauge(0, 0), 2, 0},
		{gauge(1<<50, 1<<50), 2, 1000},
		{Entry{Kind: events.Window, Used: 50}, 0, 0},
		{Entry{Kind: events.Pause, Used: 50}, 2, 1000},
		{Entry{Kind: events.Balance, Available: 0}, 2, 0},
		{Entry{Kind: events.Balance, Available: 1}, 0, 0},
	} {
		if c.entry.level() != c.level || c.entry.heat() != c.heat {
			t.Errorf("%+v: level %d heat %d, want %d and %d", c.entry, c.entry.level(), c.entry.heat(), c.level, c.heat)
		}
	}
}

func TestValidKey(t *testing.T) {
	for _, m := range []events.Meter{events.NewMeter(events.ScopeKey, "itpm", "a b", "q.w/3"), "org/a.b/x"} {
		if !validKey(m) {
			t.Errorf("%s is no key", m)
		}
	}
	for _, m := range []events.Meter{"", ".a", "a.", "a..b", "a b", "a/*", "a/>", "ä", heartbeatKey} {
		if validKey(m) {
			t.Errorf("%q is a key", m)
		}
	}
}
