package scenario

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
)

// player turns steps into lines.
type player struct {
	text     strings.Builder
	at       int64
	times    []int64 // of the steps so far
	seq      int64
	requests []*played
	lines    []string // subject and data of what was sent, for duplicates
	epochs   map[string]int64
	credits  int
	packing  int // lines still to come under this seq
}

type played struct {
	id, org, gateway string
	attempts         int64
	next             int64 // n of the next true-up
}

func newPlayer(start string) *player {
	at, err := time.Parse(time.RFC3339Nano, start)
	if err != nil {
		panic(err) // the starts are above
	}
	return &player{at: at.UnixNano(), epochs: map[string]int64{}}
}

func (p *player) send(subject, data string) {
	if p.packing > 0 && p.seq > 0 {
		p.packing--
	} else {
		p.seq++
	}
	line := fmt.Sprintf(`"subject":%q,"data":%s}`, subject, data)
	p.lines = append(p.lines, line)
	p.line(line)
}

func (p *player) line(rest string) {
	fmt.Fprintf(&p.text, `{"seq":%d,"time":"%s",%s`+"\n", max(p.seq, 1), events.AppendTime(nil, p.at), rest)
}

func (p *player) tick(after int64) {
	p.at += after
	p.seq++
	p.line(`"subject":"acct._.tick","data":{}}`)
}

// mark finds an instant at which something may be due.
func (p *player) mark(s *step) int64 {
	from := p.at
	if n := len(p.times); n > 0 {
		from = p.times[n-1-s.few(40, min(n, 8))]
	}
	aside := int64(s.few(44, 6))/2 - 1 // −1 to 1
	switch s.few(48, 8) {
	case 0, 1:
		return p.at - p.at%int64(5*time.Minute) + int64(5*time.Minute)*int64(1+s.few(52, 4)) + aside
	case 2:
		return p.at - p.at%int64(24*time.Hour) + int64(24*time.Hour) + aside
	case 3:
		return p.at - p.at%int64(time.Second) + int64(time.Second) + aside
	}
	return from + int64(spans[s.few(52, len(spans))]) + aside
}

var (
	orgs     = []string{"acme", "beta"}
	gateways = []string{"gw-a", "gw-b", "gw-c"}
)

func (p *player) play(s *step) {
	switch {
	case p.packing > 0:
	case s.after == toMark:
		p.at = max(p.at, p.mark(s))
	default:
		p.at += s.after
	}
	p.times = append(p.times, p.at)
	switch s.kind {
	case "new":
		p.reserve(s, nil)
	case "again":
		p.reserve(s, p.recent(s))
	case "true-up", "repeat":
		p.trueUp(s)
	case "release":
		p.release(s)
	case "lease":
		g := gateways[s.who%len(gateways)]
		if s.flags%7 == 0 {
			p.epochs[g]++
		}
		epoch := p.epochs[g] + 1
		if s.flags%11 == 1 {
			epoch--
		}
		ttl := []string{"", `,"ttl_ms":10000`, `,"ttl_ms":30000`, `,"ttl_ms":1`, `,"ttl_ms":100000`, ""}[s.n%6]
		p.send("acct._.lease."+g, fmt.Sprintf(`{"gateway":%q,"epoch":%d%s}`, g, epoch, ttl))
	case "renew":
		for _, g := range gateways {
			p.send("acct._.lease", fmt.Sprintf(`{"gateway":%q,"epoch":%d}`, g, p.epochs[g]+1))
		}
	case "tick":
		p.tick(0)
	case "quiet": // nobody renews, but time is seen to pass
		for range 1 + s.n%9 {
			p.tick(int64(time.Second) + int64(s.few(40, 3))*int64(500*time.Millisecond) - int64(s.few(44, 2)*s.few(45, 1_000_000)))
		}
	case "credit":
		org := orgs[s.who%len(orgs)]
		if s.flags%4 != 0 {
			p.credits++
		}
		amount := []int64{500, 1000, -200, 0, 60, 1_000_000_000_000_000, 1_000_000_000_000_001, -1_000_000_000_000_000}[min(7, s.n%40)%8]
		if s.n%40 >= 8 {
			amount = s.n % 400
		}
		p.send("acct."+org+".credit", fmt.Sprintf(`{"org":%q,"amount_nano":%d,"reference":"c%d"}`, org, amount, p.credits))
	case "cooldown":
		meter := []string{"pool/p0/pause", "pool/p1/pause", "pool/p0/rpm", "pool/new/pause"}[s.who%4]
		p.send("acct._.cooldown", fmt.Sprintf(`{"meter":%q,"for_ms":%d}`, meter, s.n%3*s.n%70_000))
	case "fence":
		org := orgs[s.who%len(orgs)]
		p.send("acct."+org+".fence", fmt.Sprintf(`{"org":%q,"version":%d}`, org, []int64{1, 2, 3, 5, 8}[s.n%5]))
	case "odd":
		p.odd(s)
	case "duplicate":
		if len(p.lines) > 0 {
			back := s.who % 12
			p.seq++
			p.line(p.lines[max(0, len(p.lines)-1-back)])
		}
	case "pack":
		p.seq++
		p.packing = 2 + int(s.n%3)
		p.reserve(s, nil)
	}
}

// recent picks a request that was made, usually one of the last.
func (p *player) recent(s *step) *played {
	n := len(p.requests)
	if n == 0 {
		return nil
	}
	if s.who%10 == 0 {
		return p.requests[(s.who/10)%n]
	}
	return p.requests[n-1-(s.who/10)%min(n, recentRange)]
}

// whose gives the request and attempt of a reserve: a new request, or another attempt of one, which may be one that was there.
func (p *player) whose(s *step, of *played) (*played, int64) {
	bit := func(n int) bool { return s.flags>>n&1 == 1 }
	few := s.few
	attempt := int64(0)
	switch {
	case of == nil:
		of = &played{id: fmt.Sprintf("r%d", len(p.requests)), org: orgs[few(0, 1+int(s.spread))], gateway: gateways[few(1, 3)]}
		p.requests = append(p.requests, of)
		if few(3, 20) == 0 {
			attempt = 1
		}
	case bit(4) || bit(5) || bit(6):
		of.attempts++
		attempt = of.attempts
	default:
		attempt = int64(few(7, 3))
	}
	return of, attempt
}

func (p *player) reserve(s *step, of *played) {
	bit := func(n int) bool { return s.flags>>n&1 == 1 }
	few := s.few
	of, attempt := p.whose(s, of)
	g := of.gateway
	if few(9, 8) == 0 {
		g = gateways[few(13, 3)]
	}
	d := events.Reserve{Request: events.RequestID(of.id), Attempt: attempt, Org: events.Org(of.org), Gateway: events.Gateway(g), Epoch: p.epochs[g] + 1,
		Mode: s.raw.mode, Fence: s.raw.fence, ParkMS: s.raw.park, MaxMS: s.raw.max, Claims: []events.Claim{}}
	if d.MaxMS == 0 {
		d.MaxMS = events.DefaultMaxMS
	}
	if s.raw.mode == events.ModeBoundedLocal && s.raw.back != 0 {
		d.At = p.at - s.raw.back
	}
	switch few(15, 200) {
	case 0:
		d.Claims = nil
	case 1:
		d.ParkMS = 5001
	case 2:
		d.MaxMS = 999
	case 3:
		d.Epoch--
	case 4:
		d.Epoch++
		p.epochs[g]++
	case 5:
		d.Request, d.Attempt = "", p.seq
	case 6:
		d.Fence = -1
	case 7:
		d.At, d.Mode = math.MinInt64, events.ModeBoundedLocal
	}
	pad := few(23, 400)
	if d.Claims != nil {
		p.claims(&d, s)
		if pad < 2 { // as many claims as there may be, or one more
			for len(d.Claims) < events.MaxClaims+pad {
				d.Claims = append(d.Claims, events.Claim{Meter: events.Meter(fmt.Sprint("pad/", len(d.Claims))), Kind: events.Window,
					WindowMS: events.DefaultWindowMS, Basis: "request", Amount: 1})
			}
		}
	}
	subject := "acct." + of.org + ".reserve"
	if bit(30) {
		subject += "." + g
	}
	if few(31, 150) == 0 {
		subject = "acct.acme.reserve.gw-x" // it names another gateway: not folded
	}
	p.send(subject, string(events.AppendData(nil, &d)))
}

func (p *player) claims(d *events.Reserve, s *step) {
	shape := func(n, of int) string { return fmt.Sprint(s.few(n, 1+int(s.spread)*(of-1))) }
	names := strings.NewReplacer("%o", string(d.Org), "%k", "k"+shape(20, 2), "%m", "m"+shape(22, 2), "%p", "p"+shape(24, 2))
	seen := map[int]bool{}
	if s.few(36, 8) == 0 { // a provider's pool, with the pause that goes first
		seen[pauseModel] = true
		d.Claims = append(d.Claims, (&claimDraw{check: -1}).claim(&models[pauseModel], names))
	}
	if d.Attempt == 0 && s.few(39, 6) == 0 {
		seen[balanceModel] = true
		d.Claims = append(d.Claims, (&claimDraw{check: -1, amount: int64(s.few(27, 90))}).claim(&models[balanceModel], names))
	}
	for _, c := range s.raw.claims {
		m := models[c.meter]
		if seen[c.meter] && c.odd == 0 {
			continue
		}
		if d.Attempt > 0 && !m.attempt && s.flags>>26&3 != 0 {
			continue
		}
		seen[c.meter] = true
		d.Claims = append(d.Claims, c.claim(&m, names))
	}
}

func (c *claimDraw) claim(m *model, names *strings.Replacer) events.Claim {
	out := m.claim
	out.Meter = events.Meter(names.Replace(m.name))
	if out.WindowMS == 0 {
		out.WindowMS = events.DefaultWindowMS
	}
	out.Amount = c.amount
	small := m.limit > 0 && m.limit < 10
	if small && c.amount > 2 && c.amount < 100 {
		out.Amount = 1
	}
	out.Limit, out.HasLimit = m.limit, m.limit >= 0
	if out.Kind == events.Bucket {
		out.Amount = min(out.Amount, events.MaxBucketAmount)
		if out.Basis == "output" && c.amount%3 != 0 {
			out.Amount, out.Check, out.HasCheck = 0, 1, true
		}
	}
	if out.Kind == events.Pause {
		out.Amount = 0
	}
	if out.Kind == events.Pace {
		out.QueueMS = c.queue
	}
	if c.check >= 0 {
		out.Check, out.HasCheck = c.check, true
	}
	switch {
	case c.limit > 0:
		out.Limit, out.HasLimit = c.limit, true
		if small {
			out.Limit = 1 + c.limit%3
		}
	case c.limit == -1 && out.Kind != events.Bucket && out.Kind != events.Pace:
		out.Limit, out.HasLimit = 0, false
	}
	out.Shadow = c.shadow
	if c.flip {
		out.Park = !out.Park
	}
	if c.extraLife && out.Kind != events.Balance {
		out.Life = (out.Life + 1) % 3
	}
	if c.basis != "" {
		out.Basis = c.basis
	}
	c.spoil(&out)
	return out
}

// spoil makes a claim invalid, or extreme.
func (c *claimDraw) spoil(out *events.Claim) {
	switch c.odd {
	case 1:
		out.Amount = -1
	case 2:
		out.Odd = &events.Odd{Amount: "1.5"}
	case 3:
		out.Kind = events.MeterUnknown
	case 4:
		out.Meter = ""
	case 5:
		out.Amount = events.MaxAmount + 1
	case 6:
		out.WindowMS = 5000
	case 7:
		out.Period = events.PeriodUnknown
	case 8:
		out.Limit, out.HasLimit = 0, true
	case 9:
		out.Kind = events.Gauge
	case 10:
		out.Limit, out.HasLimit = events.MaxBucketAmount, true
	case 11:
		out.Limit, out.HasLimit = events.MaxAmount, true
	case 12:
		out.Odd = &events.Odd{Limit: `"many"`}
	}
}

func (p *player) trueUp(s *step) {
	few := s.few
	r := p.recent(s)
	id, org, attempt := "r0", "acme", int64(0)
	if r != nil {
		id, org, attempt = r.id, r.org, max(0, r.attempts-int64(few(0, 8)/6))
	}
	if few(3, 12) == 0 { // for a request that is still to come
		id = fmt.Sprintf("r%d", len(p.requests)+few(7, 2))
	}
	d := events.TrueUp{Request: events.RequestID(id), Attempt: attempt, Final: few(10, 5) < 2, Quality: events.Quality(few(13, 6) % 4)}
	if few(13, 6) >= 4 {
		d.Quality = events.QualityExact
	}
	switch {
	case s.kind == "repeat":
		d.N = 0
	case few(16, 4) == 0:
		d.N = 1 + s.n%6
	case r != nil:
		r.next++
		d.N = r.next
	}
	for _, f := range s.facts {
		if !named(d.Charges, f.basis) {
			d.Charges = append(d.Charges, events.Charge{Basis: f.basis, Amount: f.amount})
		}
	}
	if d.Final || few(19, 4) == 0 {
		d.CostNano = []int64{0, s.n % 300, s.n % 300, s.n % 300, 1_000_000_000_000_000}[min(4, s.n%60)]
	}
	data := string(events.AppendData(nil, &d))
	switch few(22, 60) {
	case 0:
		data = strings.TrimSuffix(data, "}") + `,"cost_nano":-1}`
	case 1:
		data = strings.TrimSuffix(data, "}") + `,"cost_nano":1000000000000001}`
	case 2:
		data = strings.TrimSuffix(data, "}") + `,"n":-3}`
	}
	p.send("acct."+org+".true-up", data)
}

func named(charges []events.Charge, basis string) bool {
	for _, c := range charges {
		if c.Basis == basis {
			return true
		}
	}
	return false
}

func (p *player) release(s *step) {
	few := s.few
	r := p.recent(s)
	id, org, attempt := "r0", "acme", int64(0)
	if r != nil {
		id, org, attempt = r.id, r.org, max(0, r.attempts-int64(few(0, 8)/6))
	}
	if few(3, 14) == 0 {
		id = fmt.Sprintf("r%d", len(p.requests)+few(7, 2))
	}
	if few(10, 14) == 0 {
		attempt++
	}
	d := events.Release{Request: events.RequestID(id), Attempt: attempt, Of: []events.Of{0, 0, 0, 1, 1, 2}[few(14, 6)], Outcome: events.Completed,
		Dispatched: []events.Dispatched{0, 1, 1, 2, 2, 2}[few(17, 6)]}
	p.send("acct."+org+".release", string(events.AppendData(nil, &d)))
}

// odd sends what the fold ignores, cannot read or seldom sees.
func (p *player) odd(s *step) {
	switch s.who % 9 {
	case 0:
		p.send("acct._.recover", `{"reason":"drill","windows":"full"}`)
	case 1:
		p.send("acct._.recover", `{"reason":"drill","windows":"empty"}`)
	case 2:
		p.send("acct._.verdicts", `{"from_seq":1,"to_seq":2,"rules":1,"verdicts":[]}`)
	case 3:
		p.send("acct.acme.refused", `{"request":"r0","org":"acme","gate":"rpm","origin":"gateway_admission","status":429,"code":"rate_limit_exceeded"}`)
	case 4:
		p.send("acct._.novelty", `{"n":1}`)
	case 5:
		p.send("acct._.rules", `{"version":1}`)
	case 6:
		p.send("acct.acme.release", `{"request":"r0","of":"everything"}`)
	case 7:
		p.send("acct.beta.credit", `{"org":"acme","amount_nano":5,"reference":"x"}`)
	case 8:
		p.send("acct.acme.correction", `{"request":"r0","attempt":0,"revision":1,"cost_nano":1,"reason":"price"}`)
	}
}
