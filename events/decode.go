package events

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// MaxPack bounds the events of one pack.
const MaxPack = 4096

// DecodeData reads the JSON data of an event of a CloudEvents type. A type that this binary does not know gives *Unknown. The error
// names the field that cannot be read. The result refers to no byte of data.
func DecodeData(ceType string, data []byte) (Data, error) {
	return decode(ceType, string(data))
}

// DecodeText is DecodeData for data that is a string already: nothing is copied, and the result refers to it.
func DecodeText(ceType, text string) (Data, error) { return decode(ceType, text) }

func decode(ceType, text string) (Data, error) {
	p := &scanner{s: text}
	kind := ParseType(ceType)
	d := p.data(kind, ceType)
	p.end()
	if p.err != nil {
		return nil, fmt.Errorf("read data of %s: %w", ceType, p.err)
	}
	return d, nil
}

func (p *scanner) data(kind Kind, ceType string) Data {
	if kind != KindUnknown && p.peek() != '{' {
		p.failf("data is no object")
		return nil
	}
	switch kind {
	case KindReserve:
		return p.reserve()
	case KindTrueUp:
		return p.trueUp()
	case KindRelease:
		return p.release()
	case KindLease:
		return p.lease()
	case KindTick:
		return p.tick()
	case KindVerdicts:
		return p.verdictsData()
	case KindRefused:
		return plainData(p, &Refused{})
	case KindCooldown:
		return plainData(p, &Cooldown{})
	case KindFence:
		return plainData(p, &Fence{})
	case KindCredit:
		return plainData(p, &Credit{})
	case KindRecover:
		return plainData(p, &Recover{})
	case KindRules:
		return plainData(p, &Rules{})
	case KindCorrection:
		return plainData(p, &Correction{})
	}
	return &Unknown{Type: ceType, Raw: p.skip()}
}

func plainData[D Data](p *scanner, d D) Data {
	if err := json.Unmarshal([]byte(p.skip()), d); err != nil && p.err == nil {
		p.fail(err)
	}
	return d
}

func (p *scanner) reserve() *Reserve {
	d := &Reserve{MaxMS: DefaultMaxMS}
	p.i++
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "request":
			d.Request = RequestID(p.text(k))
		case "attempt":
			d.Attempt = p.number(k)
		case "org":
			d.Org = Org(p.text(k))
		case "workspace":
			d.Workspace = p.text(k)
		case "principal":
			d.Principal = p.text(k)
		case "key":
			d.Key = p.text(k)
		case "model":
			d.Model = p.text(k)
		case "deployment":
			d.Deployment = p.text(k)
		case "operation":
			d.Operation = p.text(k)
		case "gateway":
			d.Gateway = Gateway(p.text(k))
		case "epoch":
			d.Epoch = p.number(k)
		case "mode":
			if p.text(k) == BoundedLocal {
				d.Mode = ModeBoundedLocal
			}
		case "at":
			d.At = p.instant(k)
		case "fence":
			d.Fence = p.number(k)
		case "park_ms":
			d.ParkMS = p.bounded(0)
		case "max_ms":
			d.MaxMS = p.bounded(DefaultMaxMS)
		case "price_version":
			d.PriceVersion = p.text(k)
		case "byok":
			d.BYOK = p.flag(k)
		case "estimate":
			p.estimate(&d.Estimate)
		case "claims":
			d.Claims = p.claims()
		default:
			p.skip()
		}
	}
	return d
}

// bounded reads an integer that the fold judges by its range; what is no integer is −1, out of every range.
func (p *scanner) bounded(absent int64) int64 {
	n, present, raw := p.integer()
	switch {
	case raw != "":
		return -1
	case !present:
		return absent
	}
	return n
}

func (p *scanner) instant(field string) int64 {
	text := p.text(field)
	if text == "" {
		return 0
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		p.failf("%s is %q, not an instant of RFC 3339", field, clip(text))
		return 0
	}
	return Nanos(at)
}

// Nanos gives an instant in ns since 1970, at the end of the range where it is out of it.
func Nanos(t time.Time) int64 {
	switch y := t.Year(); {
	case y < 1679:
		return math.MinInt64
	case y > 2261:
		return math.MaxInt64
	}
	return t.UnixNano()
}

func (p *scanner) estimate(e *Estimate) {
	if !p.open('{') {
		p.skip()
		return
	}
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "input_tokens":
			e.InputTokens = p.number(k)
		case "output_tokens":
			e.OutputTokens = p.number(k)
		case "output_declared":
			e.OutputDeclared = p.flag(k)
		case "text_bytes":
			e.TextBytes = p.number(k)
		case "images":
			e.Images = p.number(k)
		default:
			p.skip()
		}
	}
}

// claims reads the list of claims; anything but a list is nil. Usual lists are read aside, so that what is allocated is as long as the list.
func (p *scanner) claims() []Claim {
	if !p.open('[') {
		p.skip()
		return nil
	}
	const usual = 16
	var aside [usual]Claim
	claims := aside[:0]
	for first := true; p.more(']', first); first = false {
		claims = append(claims, Claim{})
		c := &claims[len(claims)-1]
		c.WindowMS, c.Basis = DefaultWindowMS, BasisRequest
		p.claim(c)
	}
	return append(make([]Claim, 0, len(claims)), claims...)
}

func (p *scanner) claim(c *Claim) {
	if !p.open('{') {
		p.skip() // no kind, no meter: an invalid claim
		return
	}
	hasAmount := false
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "meter":
			c.Meter = Meter(p.lenient())
		case "kind":
			c.Kind = ParseMeterKind(p.lenient())
		case "amount":
			c.Amount, hasAmount = p.claimNumber(c, func(o *Odd, raw string) { o.Amount = raw })
		case "check":
			c.Check, c.HasCheck = p.claimNumber(c, func(o *Odd, raw string) { o.Check = raw })
		case "limit":
			c.Limit, c.HasLimit = p.claimNumber(c, func(o *Odd, raw string) { o.Limit = raw })
		case "basis":
			if basis := p.text(k); basis != "" {
				c.Basis = basis
			}
		case "life":
			switch p.text(k) {
			case "local":
				c.Life = LifeLocal
			case "attempt":
				c.Life = LifeAttempt
			}
		case "period":
			switch p.lenient() {
			case "day", "":
			case "month":
				c.Period = Month
			default:
				c.Period = PeriodUnknown
			}
		case "window_ms":
			c.WindowMS = p.bounded(DefaultWindowMS)
		case "queue_ms":
			c.QueueMS = p.number(k)
		case "park":
			c.Park = p.flag(k)
		case "shadow":
			c.Shadow = p.flag(k)
		default:
			p.skip()
		}
	}
	if !hasAmount && c.Odd == nil {
		c.Odd = &Odd{Amount: "null"}
	}
}

// lenient reads a string that the fold judges itself: what is no string is "".
func (p *scanner) lenient() string {
	if p.peek() == '"' {
		return p.str()
	}
	p.skip()
	return ""
}

// claimNumber reads a number of a claim; one that is no integer is kept as it stood, and makes the claim invalid.
func (p *scanner) claimNumber(c *Claim, keep func(*Odd, string)) (n int64, has bool) {
	n, has, raw := p.integer()
	if raw != "" {
		if c.Odd == nil {
			c.Odd = &Odd{}
		}
		keep(c.Odd, raw)
	}
	return n, has
}

func (p *scanner) trueUp() *TrueUp {
	d := &TrueUp{}
	p.i++
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "request":
			d.Request = RequestID(p.text(k))
		case "attempt":
			d.Attempt = p.number(k)
		case "gateway":
			d.Gateway = Gateway(p.text(k))
		case "n":
			if d.N = p.bounded(0); d.N == 0 {
				d.N = -1 // given, and not above any other
			}
		case "final":
			d.Final = p.flag(k)
		case "quality":
			d.Quality = parseQuality(p.text(k))
		case "usage":
			p.usage(&d.Usage)
		case "charges":
			p.charges(d)
		case "cost_nano":
			d.CostNano = p.ranged(d, k)
		case "price_version":
			d.PriceVersion = p.text(k)
		case "list_nano":
			d.ListNano = p.number(k)
		case "train":
			d.Train = p.flag(k)
		default:
			p.skip()
		}
	}
	return d
}

func parseQuality(name string) Quality {
	for q := QualityEstimated; q <= QualityExact; q++ {
		if qualityNames[q] == name {
			return q
		}
	}
	return QualityNone
}

func (d *TrueUp) outOfRange(field string, n int64) {
	d.Fault = fmt.Sprintf("%s is %d, not from 0 to %d", field, n, int64(MaxAmount))
}

// ranged reads an amount of a true-up; one outside 0 to 10^15 marks the event as not to be folded.
func (p *scanner) ranged(d *TrueUp, field string) int64 {
	n, _, raw := p.integer()
	if raw != "" {
		d.Fault = fmt.Sprintf("%s is %s, not an integer from 0 to %d", field, clip(raw), int64(MaxAmount))
		return 0
	}
	if n < 0 || n > MaxAmount {
		d.outOfRange(field, n)
		return 0
	}
	return n
}

func (p *scanner) charges(d *TrueUp) {
	if !p.open('{') {
		p.skip()
		return
	}
	const typical = 6
	for first := true; p.more('}', first); first = false {
		basis := p.key()
		n := p.ranged(d, basis)
		if d.Charges == nil {
			d.Charges = make([]Charge, 0, typical)
		}
		d.Charges = append(d.Charges, Charge{Basis: basis, Amount: n})
	}
}

func (p *scanner) usage(u *Usage) {
	if !p.open('{') {
		p.skip()
		return
	}
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "input_tokens":
			u.InputTokens = p.number(k)
		case "cached_tokens":
			u.CachedTokens = p.number(k)
		case "cache_write_tokens":
			u.CacheWriteTokens = p.number(k)
		case "output_tokens":
			u.OutputTokens = p.number(k)
		case "reasoning_tokens":
			u.ReasoningTokens = p.number(k)
		default:
			p.skip()
		}
	}
}

func (p *scanner) release() *Release {
	d := &Release{}
	p.i++
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "request":
			d.Request = RequestID(p.text(k))
		case "attempt":
			d.Attempt = p.number(k)
		case "gateway":
			d.Gateway = Gateway(p.text(k))
		case "of":
			switch of := p.text(k); of {
			case "attempt":
				d.Of = OfAttempt
			case "local":
				d.Of = OfLocal
			case "request", "":
			default:
				p.failf("of is %q, not request, attempt or local", clip(of))
			}
		case "outcome":
			d.Outcome = Outcome(p.text(k))
		case "dispatched":
			switch p.text(k) {
			case "yes":
				d.Dispatched = DispatchedYes
			case "no":
				d.Dispatched = DispatchedNo
			}
		case "status":
			d.Status = p.number(k)
		case "finish_reason":
			d.FinishReason = p.text(k)
		case "latency_ms":
			d.LatencyMS = p.number(k)
		case "ttft_ms":
			d.TTFTMS = p.number(k)
		case "error":
			d.Error = p.text(k)
		case "origin":
			d.Origin = p.text(k)
		default:
			p.skip()
		}
	}
	return d
}

func (p *scanner) lease() *Lease {
	d := &Lease{}
	p.i++
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "gateway":
			d.Gateway = Gateway(p.text(k))
		case "epoch":
			d.Epoch = p.number(k)
		case "ttl_ms":
			d.TTLMS = p.number(k)
		default:
			p.skip()
		}
	}
	return d
}

func (p *scanner) tick() *Tick {
	d := &Tick{}
	p.i++
	for first := true; p.more('}', first); first = false {
		if k := p.key(); k == "gateway" {
			d.Gateway = Gateway(p.text(k))
		} else {
			p.skip()
		}
	}
	return d
}

func (p *scanner) verdictsData() *Verdicts {
	d := &Verdicts{}
	p.i++
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "from_seq":
			d.FromSeq = p.sequence(k)
		case "to_seq":
			d.ToSeq = p.sequence(k)
		case "rules":
			d.Rules = p.number(k)
		case "state_hash":
			d.StateHash = p.text(k)
		case "chain":
			d.Chain = p.text(k)
		case "verdicts":
			d.Verdicts = p.verdicts()
		case "lapses":
			p.list(func() { d.Lapses = append(d.Lapses, p.lapse()) })
		default:
			p.skip()
		}
	}
	return d
}

// DecodeVerdicts reads a JSON array of verdicts.
func DecodeVerdicts(data []byte) ([]Verdict, error) {
	p := &scanner{s: string(data)}
	verdicts := p.verdicts()
	p.end()
	if p.err != nil {
		return nil, fmt.Errorf("read verdicts: %w", p.err)
	}
	return verdicts, nil
}

func (p *scanner) verdicts() []Verdict {
	if !p.open('[') {
		p.failf("verdicts is no list")
		return nil
	}
	var verdicts []Verdict
	for first := true; p.more(']', first); first = false {
		if !p.open('{') {
			p.failf("a verdict is no object")
			return nil
		}
		verdicts = append(verdicts, Verdict{})
		p.verdict(&verdicts[len(verdicts)-1])
	}
	return verdicts
}

func (p *scanner) verdict(v *Verdict) {
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "request":
			v.Request = RequestID(p.text(k))
		case "attempt":
			v.Attempt = p.number(k)
		case "seq":
			v.Seq = p.sequence(k)
		case "time":
			v.Time = p.instant(k)
		case "outcome":
			v.Admitted = p.text(k) == "admitted"
		case "parked_ms":
			v.ParkedMS = p.number(k)
		case "wait_ms":
			v.WaitMS = p.number(k)
		case "used":
			p.list(func() { v.Used = append(v.Used, p.number("used")) })
		case "shadow":
			p.list(func() { v.Shadow = append(v.Shadow, int(p.number("shadow"))) })
		case "refusal":
			if p.open('{') {
				v.Refusal = &Refusal{}
				p.refusal(v.Refusal)
			} else {
				p.skip()
			}
		default:
			p.skip()
		}
	}
}

func (p *scanner) lapse() (l Lapse) {
	if !p.open('{') {
		p.failf("a lapse is no object")
		return l
	}
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "request":
			l.Request = RequestID(p.text(k))
		case "state":
			l.State = LapseState(p.text(k))
		case "time":
			l.Time = p.instant(k)
		default:
			p.skip()
		}
	}
	return l
}

func (p *scanner) list(element func()) {
	if !p.open('[') {
		p.failf("not a list")
		return
	}
	for first := true; p.more(']', first); first = false {
		element()
	}
}

func (p *scanner) refusal(r *Refusal) {
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "claim":
			r.Claim = int(p.number(k))
		case "meter":
			r.Meter = Meter(p.text(k))
		case "reason":
			r.Reason = Reason(p.text(k))
		case "used":
			r.Used = p.number(k)
		case "limit":
			var raw string
			if r.Limit, r.HasLimit, raw = p.integer(); raw != "" {
				r.odd().Limit = raw
			}
		case "requested":
			var raw string
			if r.Requested, _, raw = p.integer(); raw != "" {
				r.odd().Check = raw
			}
		case "retry_after_ms":
			r.RetryMS, r.HasRetry, _ = p.integer()
		default:
			p.skip()
		}
	}
}

func (r *Refusal) odd() *Odd {
	if r.Odd == nil {
		r.Odd = &Odd{}
	}
	return r.Odd
}

// DecodePack reads a CloudEvents JSON batch. An element whose envelope or data cannot be read has nil Data; the error is for a batch that is
// no list, is cut off or holds more than MaxPack events.
func DecodePack(data []byte) ([]Event, error) {
	p := &scanner{s: string(data)}
	if !p.open('[') {
		return nil, fmt.Errorf("read pack: not a list")
	}
	var events []Event
	for first := true; p.more(']', first); first = false {
		if len(events) == MaxPack {
			return nil, fmt.Errorf("read pack: more than %d events", MaxPack)
		}
		events = append(events, p.event())
	}
	p.end()
	if p.err != nil {
		return nil, fmt.Errorf("read pack: %w", p.err)
	}
	return events, nil
}

// event reads one element of a pack. Its data may stand before its type, so the data's place is noted and read at the end.
func (p *scanner) event() (e Event) {
	if !p.open('{') {
		p.skip()
		return e
	}
	var ceType string
	var data string
	for first := true; p.more('}', first); first = false {
		switch k := p.key(); k {
		case "id":
			e.ID = p.lenient()
		case "source":
			e.Source = p.lenient()
		case "subject":
			e.Subject = p.lenient()
		case "org":
			e.Org = Org(p.lenient())
		case "traceparent":
			e.TraceParent = p.lenient()
		case "type":
			ceType = p.lenient()
		case "data":
			if ceType != "" && p.peek() == '{' {
				if e.Data, data = p.inPlace(ceType), ""; e.Data != nil {
					continue
				}
			}
			data = p.skip()
		default:
			p.skip()
		}
	}
	if e.Data == nil && ceType != "" {
		e.Data, _ = decode(ceType, data)
	}
	return e
}

// inPlace reads data where it stands; when that fails it steps back and gives nil, so that one bad element spoils no other.
func (p *scanner) inPlace(ceType string) Data {
	q := scanner{s: p.s, i: p.i}
	d := q.data(ParseType(ceType), ceType)
	if q.err != nil {
		return nil
	}
	p.i = q.i
	return d
}
