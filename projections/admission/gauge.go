package admission

// lift changes a gauge by a difference. One that falls may let waiters in.
func (f *Fold) lift(m *meter, delta int64) {
	if delta == 0 {
		return
	}
	if m.sum = add(m.sum, delta); m.sum == 0 {
		m.emptied = f.now
	}
	if delta < 0 {
		f.fell(m)
	}
}

// free gives up what a charge holds of its gauge.
func (f *Fold) free(ch *charge, as holding) {
	if ch.held == held {
		f.lift(f.alive(ch), -ch.amount)
		f.changed(ch.meter)
	}
	if ch.held != notGauge && ch.held != freed {
		ch.held = as
	}
}

// hold takes back what a lapse had freed.
func (f *Fold) hold(ch *charge) {
	if ch.held != lapsed {
		return
	}
	m := f.alive(ch)
	ch.held = held
	m.sum = add(m.sum, ch.amount)
	f.changed(m)
}

// fell notes a gauge on which waiters are to be gone through.
func (f *Fold) fell(m *meter) {
	if !m.hasFallen && len(m.waiters) > 0 {
		m.hasFallen = true
		f.fallen = append(f.fallen, m)
	}
}
