package admission

import "math/bits"

// parts is how finely a bucket's level is kept: a limit refills in as many ms.
const parts = 60_000

// refill brings a bucket's level up to now: its limit for every 60,000 whole ms, at most full.
func (f *Fold) refill(m *meter) {
	now := f.now / ms
	elapsed := now - m.mark
	if elapsed <= 0 {
		return
	}
	if m.whole >= m.limit {
		m.mark = now
		return
	}
	full := m.fullAt()
	hi, lo := bits.Mul64(uint64(elapsed), uint64(m.limit))
	m.mark = now
	if hi >= parts {
		m.fill(full)
		return
	}
	tokens, rest := bits.Div64(hi, lo, parts)
	m.frac += int64(rest)
	if tokens > saturatedLimit {
		m.fill(full)
		return
	}
	m.whole = add(m.whole, int64(tokens)+m.frac/parts)
	m.frac %= parts
	if m.whole >= m.limit {
		m.fill(full)
	}
}

// fill sets a bucket's level to its limit, as of an instant.
func (m *meter) fill(at int64) {
	m.whole, m.frac = m.limit, 0
	m.emptied = max(m.emptied, at)
}

// retune refills a bucket at its limit, then makes another limit its own and caps the level at that.
func (f *Fold) retune(m *meter, limit int64) {
	f.refill(m)
	if m.limit == limit {
		return
	}
	full := m.whole >= m.limit
	m.limit = limit
	switch {
	case m.whole < limit:
	case full: // and has been for as long as before
		m.whole, m.frac = limit, 0
	default:
		m.fill(f.now)
	}
}

// draw takes tokens from a bucket that has been refilled, or puts them back, at most to full. Debt is kept.
func (f *Fold) draw(m *meter, tokens int64) {
	if tokens < 0 && m.whole >= m.limit {
		return // full, and for as long as before
	}
	if m.whole = add(m.whole, -tokens); m.whole >= m.limit {
		m.fill(f.now)
	}
}

// fullAt gives the instant, ns, at which a bucket is full if nothing more is drawn.
func (m *meter) fullAt() int64 {
	missing := add(m.limit, -m.whole)
	if missing <= 0 {
		return m.emptied
	}
	return m.reaches(missing)
}

// reaches gives the instant, ns, at which a bucket has gained so many tokens above whole; the end of time if that is too far.
func (m *meter) reaches(tokens int64) int64 {
	wait := m.gains(tokens)
	if wait > saturatedLimit/ms-m.mark {
		return saturatedLimit
	}
	return (m.mark + wait) * ms
}

// gains gives the ms since its last refill in which a bucket gains so many tokens above whole; the largest number if that is too far.
func (m *meter) gains(tokens int64) int64 {
	hi, lo := bits.Mul64(uint64(tokens), parts)
	lo, borrow := bits.Sub64(lo, uint64(m.frac), 0)
	hi -= borrow
	if hi >= uint64(m.limit) {
		return saturatedLimit
	}
	wait, rest := bits.Div64(hi, lo, uint64(m.limit))
	if rest > 0 {
		wait++
	}
	return int64(min(wait, saturatedLimit))
}

// bucketRetry gives the ms until a bucket that has been refilled holds need tokens.
func bucketRetry(m *meter, need int64) int64 { return m.gains(add(need, -m.whole)) }
