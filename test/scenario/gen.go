package scenario

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
)

// Bounds of random logs.
const (
	maxSteps    = 120 // of one log; a step is one line or a few
	recentRange = 6   // how far back a true-up or release usually reaches, in requests
)

// step is one thing that happens in a random log. It says only how, not to whom: which requests there are is known when the steps are
// played, so that a log stays sensible when steps are taken out of it.
type step struct {
	kind   string
	after  int64 // ns since the step before; may be negative
	who    int   // picks among what is there
	flags  uint64
	n      int64
	spread uint64
	raw    *reserveDraw
	facts  []factDraw
}

// few gives one of the numbers below of, from the flags above bit n.
func (s *step) few(n, of int) int { return int(s.flags >> n % uint64(of)) }

// mix spreads a small number over all 64 bits: rapid prefers small ones.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

type reserveDraw struct {
	claims []claimDraw
	park   int64
	max    int64
	fence  int64
	mode   events.Mode
	back   int64 // ns from now to `at`, 0 if not given
}

type claimDraw struct {
	meter                   int
	amount                  int64
	check, limit            int64 // −1: not given
	shadow, flip, extraLife bool
	basis                   string
	odd                     int
	queue                   int64
}

type factDraw struct {
	basis  string
	amount int64
}

// model is a meter of random logs, with the claim that usually names it.
type model struct {
	name    string // %o the org, %k the key, %m the model, %p the pool
	claim   events.Claim
	limit   int64
	attempt bool // belongs to every attempt
}

// models stand in the order of the gates. Limits are tiny, so that refusals and waiting are common.
var models = []model{
	{name: "org/%o/rpm", limit: 6, claim: events.Claim{Kind: events.Window, Basis: "request"}},
	{name: "org/%o/rps", limit: 3, claim: events.Claim{Kind: events.Window, Basis: "request", WindowMS: 1000}},
	{name: "model/%m/occupancy", limit: 60, claim: events.Claim{Kind: events.Gauge, Basis: "footprint", Life: events.LifeLocal, Park: true}},
	{name: "model/%m/inflight", limit: 3, claim: events.Claim{Kind: events.Gauge, Basis: "slot", Life: events.LifeLocal, Park: true}},
	{name: "key/%k/otpm", limit: 60, claim: events.Claim{Kind: events.Bucket, Basis: "output", Life: events.LifeLocal}},
	{name: "key/%k/itpm", limit: 90, claim: events.Claim{Kind: events.Bucket, Basis: "input", Life: events.LifeLocal}},
	{name: "org/%o/tpm", limit: 150, claim: events.Claim{Kind: events.Window, Basis: "total"}},
	{name: "org/%o/tps", limit: 90, claim: events.Claim{Kind: events.Window, Basis: "total", WindowMS: 1000}},
	{name: "org/%o/concurrency", limit: 4, claim: events.Claim{Kind: events.Gauge, Basis: "slot"}},
	{name: "org/%o/tokens", limit: 120, claim: events.Claim{Kind: events.Gauge, Basis: "total", Park: true}},
	{name: "key/%k/daily", limit: 300, claim: events.Claim{Kind: events.Budget, Basis: "total", Life: events.LifeLocal}},
	{name: "org/%o/spend", limit: 900, claim: events.Claim{Kind: events.Budget, Basis: "cost", Period: events.Month}},
	{name: "org/%o/balance", limit: -1, claim: events.Claim{Kind: events.Balance, Basis: "money"}},
	{name: "endpoint/%m/pace", limit: 3, claim: events.Claim{Kind: events.Pace, Basis: "request"}},
	{name: "pool/%p/pause", limit: -1, attempt: true, claim: events.Claim{Kind: events.Pause, Life: events.LifeAttempt, Basis: "request"}},
	{name: "pool/%p/rpm", limit: 8, attempt: true, claim: events.Claim{Kind: events.Window, Life: events.LifeAttempt, Basis: "request"}},
	{name: "pool/%p/tpm", limit: 200, attempt: true, claim: events.Claim{Kind: events.Window, Life: events.LifeAttempt, Basis: "total"}},
	{name: "pool/%p/itpm", limit: 120, attempt: true, claim: events.Claim{Kind: events.Bucket, Life: events.LifeAttempt, Basis: "input"}},
	{name: "pool/%p/otpm", limit: 120, attempt: true, claim: events.Claim{Kind: events.Bucket, Life: events.LifeAttempt, Basis: "output"}},
	{name: "pool/%p/daily", limit: 400, attempt: true, claim: events.Claim{Kind: events.Budget, Life: events.LifeAttempt, Basis: "cost"}},
	{name: "pool/%p/concurrency", limit: 4, attempt: true, claim: events.Claim{Kind: events.Gauge, Life: events.LifeAttempt, Basis: "slot", Park: true}},
	{name: "pool/%p/tokens", limit: 100, attempt: true, claim: events.Claim{Kind: events.Gauge, Life: events.LifeAttempt, Basis: "footprint"}},
}

// Places in models.
const (
	balanceModel = 12
	pauseModel   = 14
)

var bases = []string{"total", "input", "output", "footprint", "cost", "money", "request", "slot"}

// kinds are the steps by weight.
var kinds = []string{
	"new", "new", "new", "new", "new", "new", "new", "new", "new", "new",
	"again", "again", "again",
	"true-up", "true-up", "true-up", "true-up", "true-up", "true-up", "true-up", "true-up",
	"release", "release", "release", "release", "release", "release", "release", "release",
	"lease", "lease", "lease", "tick", "tick", "quiet", "renew", "renew",
	"credit", "credit", "cooldown", "fence", "odd", "duplicate", "duplicate", "repeat", "pack",
}

// Log draws a log of a few orgs, gateways, keys and models: most of it is what gateways would send, some of it is late, early, doubled,
// out of order or invalid.
func Log(t *rapid.T) []events.Record {
	n := rapid.SampledFrom([]int{3, 10, 25, 50, 90, maxSteps}).Draw(t, "n") // rapid's own lengths are short
	seeds := rapid.SliceOfN(rapid.Uint64(), n, n).Draw(t, "steps")
	start := rapid.SampledFrom([]string{
		"2026-01-15T10:00:00Z", "2026-03-31T23:58:30.624007347Z", "2026-02-28T23:59:59.5Z", "2026-01-15T10:03:01.000000001Z", "2026-12-31T23:44:59.999999999Z",
	}).Draw(t, "start")
	p := newPlayer(start)
	f := drawFlavour(newDraw(rapid.Uint64().Draw(t, "flavour")))
	if f.funded {
		for _, org := range orgs {
			p.send("acct."+org+".credit", fmt.Sprintf(`{"org":%q,"amount_nano":100000,"reference":"first"}`, org))
		}
	}
	for i, seed := range seeds {
		s := f.step(newDraw(seed + uint64(i)))
		p.play(&s)
	}
	p.tick(0) // so that there is something
	records, err := ReadLog(strings.NewReader(p.text.String()))
	if err != nil {
		t.Fatalf("a random log cannot be read: %v\n%s", err, p.text.String())
	}
	return records
}

// draw makes choices for one step. Rapid draws only the seeds: it prefers small numbers, and most of these choices have no small ones.
type draw struct{ *rand.Rand }

// from gives a number from lo to hi.
func (d draw) from(lo, hi int64) int64 { return lo + d.Int64N(hi-lo+1) }

func pick[T any](d draw, list ...T) T { return list[d.IntN(len(list))] }

func newDraw(seed uint64) draw { return draw{rand.New(rand.NewPCG(mix(seed), mix(seed+1)))} }

// flavour is what one log is about: logs that use few meters, or little time, come to waiting and refusals often.
type flavour struct {
	meters  []int  // of models
	spread  uint64 // how many orgs, keys, models and pools there are: a mask
	hurry   int    // of 100 gaps, how many are ms whatever was drawn
	waiting bool   // most may wait
	funded  bool   // orgs begin with money
	kinds   []string
}

func drawFlavour(d draw) flavour {
	f := flavour{funded: d.IntN(2) == 0, spread: pick(d, uint64(0), 0, 1), hurry: pick(d, 0, 50, 90, 97)}
	f.meters = d.Perm(len(models))[:pick(d, 1, 2, 4, 7, len(models))]
	if d.IntN(3) > 0 { // what may be waited on
		f.meters = append(f.meters, pick(d, 2, 3, 9, 20), pick(d, 2, 3))
	}
	if d.IntN(3) == 0 { // a queue: gauges alone, little time
		f.waiting = true
		f.meters = []int{2, 2, 3, 9, 20, pick(d, 8, 21, 1, 15, 13, 14)}[d.IntN(4):]
		f.hurry = pick(d, 80, 97, 100)
		for range 12 {
			f.kinds = append(f.kinds, "new", "new", "release", "true-up", pick(d, "again", "lease", "new", "release"))
		}
	}
	f.kinds = append(append(f.kinds, kinds...), pick(d, "new", "true-up", "release", "duplicate", "again", "quiet", "repeat"), "new")
	if d.IntN(2) == 0 {
		for range 20 {
			f.kinds = append(f.kinds, "new")
		}
	}
	return f
}

func (f *flavour) step(d draw) step {
	s := step{kind: pick(d, f.kinds...), after: drawGap(d), who: d.IntN(1 << 20), flags: d.Uint64(), n: d.Int64N(1 << 40), spread: f.spread}
	if d.IntN(100) < f.hurry {
		s.after = d.from(0, 12_000_000)
	}
	switch s.kind {
	case "new", "again", "pack":
		s.raw = f.reserve(d)
	case "true-up", "repeat":
		for range d.IntN(6) {
			s.facts = append(s.facts, factDraw{pick(d, bases...), drawAmount(d)})
		}
	}
	return s
}

// drawGap draws the time between two steps: mostly ms, now and then silence, hours, or a clock that steps back.
func drawGap(d draw) int64 {
	const ms = int64(time.Millisecond)
	switch n := d.IntN(1000); {
	case n < 400:
		return d.from(0, 40) * ms
	case n < 500:
		return 0
	case n < 570:
		return d.from(0, 50_000_000)
	case n < 750:
		return d.from(50, 1999) * ms
	case n < 770:
		return 2000 * ms
	case n < 820:
		return d.from(2000, 9000) * ms
	case n < 850:
		return d.from(9, 70) * 1000 * ms
	case n < 860:
		return d.from(1, 16) * 60_000 * ms
	case n < 870:
		return d.from(14, 21) * 60_000 * ms
	case n < 875:
		return d.from(59, 62) * 60_000 * ms
	case n < 878:
		return d.from(1, 40) * 3600_000 * ms
	case n < 895:
		return -d.from(1, 3000) * ms
	case n < 903:
		return -d.from(1, 200_000_000)
	case n < 907:
		return -d.from(1, 90) * 60_000 * ms
	}
	return toMark
}

// toMark is a gap that ends when something is likely to be due, to the ns or one to the side.
const toMark = math.MinInt64

// spans are what may lie between a line and what it leads to.
var spans = []time.Duration{
	250 * time.Millisecond, time.Second, 4 * time.Second, 5 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second, 20 * time.Second,
	30 * time.Second, time.Minute, 61 * time.Second, 15 * time.Minute, 15*time.Minute + 10*time.Second, 20 * time.Minute, time.Hour, time.Hour,
}

func (f *flavour) reserve(d draw) *reserveDraw {
	r := &reserveDraw{
		park:  pick(d, int64(0), 0, 250, 250, 1000, 5000),
		max:   pick(d, int64(0), 0, 0, 1000, 4000, 20_000, 1_200_000, 86_400_000),
		fence: 9,
	}
	if f.waiting {
		r.park = pick(d, int64(0), 250, 1000, 5000, 5000, 5000)
		r.max = pick(d, int64(0), 0, 1000)
	}
	if d.IntN(25) == 0 {
		r.fence = d.from(0, 4)
	}
	for range d.IntN(pick(d, 2, 4, 10)) + d.IntN(4) {
		r.claims = append(r.claims, f.claim(d))
	}
	if d.IntN(14) == 0 {
		r.mode = events.ModeBoundedLocal
		r.back = pick(d, int64(0), -5_000, 1, 900, 5_000, 58_000, 62_000, 600_000) * int64(time.Millisecond)
	}
	return r
}

func (f *flavour) claim(d draw) claimDraw {
	c := claimDraw{meter: pick(d, f.meters...), check: -1, limit: -2, amount: drawAmount(d), queue: pick(d, int64(0), 300, 1000)}
	switch d.IntN(36) {
	case 0, 1:
		c.check = d.from(0, 80)
	case 2, 3:
		c.limit = d.from(1, 40)
	case 4, 5:
		c.limit = -1
	case 6, 7, 8:
		c.shadow = true
	case 9, 10:
		c.flip = true // parks where it usually does not, or the other way round
	case 11, 12, 13:
		c.extraLife = true
	case 14, 15:
		c.basis = pick(d, bases...)
	case 16:
		c.odd = d.IntN(32) // from 13 on nothing
	}
	return c
}

func drawAmount(d draw) int64 {
	switch d.IntN(100) {
	case 0:
		return pick(d, int64(999_999_999_999), 1_000_000_000_000, 1_000_000_000_000_000, 999_999_999_999_999)
	case 2, 3, 4:
		return 0
	}
	return d.from(0, pick(d, int64(2), 30, 60))
}
