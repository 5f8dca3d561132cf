package admission

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/weirhq/weir/events"
)

// snapshotVersion is the first byte of a snapshot. Another layout takes another number, and Restore refuses what it does not know.
const snapshotVersion = 1

// Snapshot appends the whole state to dst, the same bytes for the same state.
func (f *Fold) Snapshot(dst []byte) []byte {
	w := writer{append(dst, snapshotVersion)}
	w.ints(f.now, f.last, f.skew, int64(f.seq), f.rules, f.recoverUntil, f.nextSweep, int64(f.arrived))
	w.flag(f.started)
	w.b = binary.BigEndian.AppendUint64(w.b, f.digest)
	w.counts(&f.Counts)
	index := f.writeMeters(&w)
	gateways := f.writeGateways(&w)
	f.writeRequests(&w, index, gateways)
	f.writeRest(&w)
	return w.b
}

func (f *Fold) writeMeters(w *writer) map[*meter]int64 {
	names := sorted(f.meters)
	// Charges and waiters may still point at meters that have been forgotten; they come after the known ones.
	all := make([]*meter, 0, len(names))
	index := make(map[*meter]int64, len(names))
	note := func(m *meter) {
		if _, ok := index[m]; !ok {
			index[m] = int64(len(all))
			all = append(all, m)
		}
	}
	for _, name := range names {
		note(f.meters[name])
	}
	for _, id := range sorted(f.requests) {
		for i := range f.requests[id].charges {
			note(f.requests[id].charges[i].meter)
		}
	}
	for _, w := range f.waiting {
		for _, m := range w.meters {
			note(m)
		}
	}
	w.int(int64(len(all)))
	for _, m := range all {
		w.str(string(m.name))
		w.ints(int64(m.kind), int64(m.period), m.windowMS, m.sum, m.whole, m.frac, m.mark, m.limit, m.emptied, m.lastLimit)
		w.flag(m.hasLimit)
		w.flag(m.forgotten)
		w.int(int64(len(m.slots)))
		for _, s := range m.slots {
			w.ints(s.bucket, s.n)
		}
	}
	return index
}

func (f *Fold) writeGateways(w *writer) map[*gateway]int64 {
	names := sorted(f.gateways)
	index := make(map[*gateway]int64, len(names))
	w.int(int64(len(names)))
	for i, name := range names {
		g := f.gateways[name]
		index[g] = int64(i)
		w.str(string(name))
		w.ints(g.epoch, g.ttl, g.end)
		w.flag(g.lapsed)
		w.int(int64(len(g.running)))
		for _, req := range g.running {
			w.str(string(req.id))
		}
	}
	return index
}

func (f *Fold) writeRequests(w *writer, meters map[*meter]int64, gateways map[*gateway]int64) {
	ids := sorted(f.requests)
	w.int(int64(len(ids)))
	for _, id := range ids {
		f.writeRequest(w, f.requests[id], meters, gateways)
	}
	w.int(int64(len(f.waiting)))
	for _, wt := range f.waiting {
		w.str(string(wt.req.id))
		w.ints(wt.attempt, int64(wt.seq), wt.since, int64(wt.arrival), wt.deadline.at)
		w.str(string(wt.org))
		w.bytes(events.AppendData(nil, wt.reserve))
		w.int(int64(len(wt.meters)))
		for _, m := range wt.meters {
			w.int(meters[m])
		}
		w.int(int64(len(wt.on)))
		for _, m := range wt.on {
			w.int(meters[m])
		}
	}
}

func (f *Fold) writeRequest(w *writer, req *request, meters map[*meter]int64, gateways map[*gateway]int64) {
	w.str(string(req.id))
	g := int64(-1)
	if req.gateway != nil {
		g = gateways[req.gateway]
	}
	balance := int64(-1)
	if req.balance != nil {
		balance = meters[req.balance]
	}
	w.ints(g, req.epoch, int64(req.order), int64(req.admitted), req.maxAt, req.idleSince, req.endedAt, balance, req.hold)
	w.flag(req.ended)
	w.int(due(&req.endTimer))
	w.int(due(&req.holdTimer))
	w.int(int64(len(req.attempts)))
	for i := range req.attempts {
		a := &req.attempts[i]
		w.ints(a.number, int64(a.state), int64(a.dispatched), a.last)
		w.flag(a.fixed)
		w.flag(a.final)
		w.int(int64(len(a.values)))
		for _, v := range a.values {
			w.str(v.basis)
			w.int(v.amount)
			w.flag(v.final)
		}
		w.int(int64(len(a.kept)))
		for _, d := range a.kept {
			w.str(d.Kind().Type())
			w.bytes(events.AppendData(nil, d))
		}
	}
	w.int(int64(len(req.charges)))
	for i := range req.charges {
		ch := &req.charges[i]
		w.int(meters[ch.meter])
		w.str(ch.basis)
		w.ints(ch.attempt, ch.amount, ch.at, ch.limit, int64(ch.life), int64(ch.held))
		w.flag(ch.frozen)
		w.flag(ch.back)
	}
}

// due gives a timer's instant, −1 when it is not set.
func due(t *timer) int64 {
	if t.place == 0 {
		return -1
	}
	return t.at
}

func (f *Fold) writeRest(w *writer) {
	orgs := sorted(f.fences)
	w.int(int64(len(orgs)))
	for _, org := range orgs {
		w.str(string(org))
		w.int(f.fences[org])
	}
	refs := sorted(f.credits)
	w.int(int64(len(refs)))
	for _, ref := range refs {
		w.str(ref)
	}
	uuids := make([]events.RequestID, 0, f.settled.len())
	for b := range f.settled.byUUID {
		uuids = append(uuids, uuidText(b))
	}
	for id := range f.settled.byName {
		uuids = append(uuids, id)
	}
	sort.Slice(uuids, func(i, j int) bool { return uuids[i] < uuids[j] })
	w.int(int64(len(uuids)))
	for _, id := range uuids {
		s, _ := f.settled.get(id)
		w.str(string(id))
		w.ints(s.since, s.endedAt, int64(s.admitted), int64(s.refused))
	}
}

func sorted[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	return keys
}

// Restore makes a fold of a snapshot. The error says what is wrong with it.
func Restore(snapshot []byte) (*Fold, error) {
	if len(snapshot) == 0 || snapshot[0] != snapshotVersion {
		return nil, fmt.Errorf("restore snapshot: not of version %d", snapshotVersion)
	}
	r := reader{b: snapshot[1:]}
	f := New()
	r.ints(&f.now, &f.last, &f.skew)
	f.seq = uint64(r.int())
	r.ints(&f.rules, &f.recoverUntil, &f.nextSweep)
	f.arrived = uint64(r.int())
	f.started = r.flag()
	f.digest = r.fixed()
	r.counts(&f.Counts)
	meters := f.readMeters(&r)
	gateways := f.readGateways(&r)
	f.readRequests(&r, meters, gateways)
	f.readRest(&r)
	if r.err == nil && len(r.b) > 0 {
		r.fail("bytes after the end")
	}
	if r.err != nil {
		return nil, fmt.Errorf("restore snapshot: %w", r.err)
	}
	return f, nil
}

func (f *Fold) readMeters(r *reader) []*meter {
	all := make([]*meter, r.count())
	for i := range all {
		m := &meter{name: events.Meter(r.str())}
		m.kind, m.period = events.MeterKind(r.int()), events.Period(r.int())
		r.ints(&m.windowMS, &m.sum, &m.whole, &m.frac, &m.mark, &m.limit, &m.emptied, &m.lastLimit)
		m.hasLimit, m.forgotten = r.flag(), r.flag()
		if n := r.count(); n > 0 {
			m.slots = make([]slot, n)
			for j := range m.slots {
				r.ints(&m.slots[j].bucket, &m.slots[j].n)
			}
		}
		if !m.forgotten {
			f.meters[string(m.name)] = m
		}
		all[i] = m
	}
	f.peakMeters = len(f.meters)
	return all
}

// runs is a gateway with the ids of its running requests, until those have been read.
type runs struct {
	g   *gateway
	ids []events.RequestID
}

func (f *Fold) readGateways(r *reader) []runs {
	all := make([]runs, r.count())
	for i := range all {
		g := &gateway{name: events.Gateway(r.str())}
		r.ints(&g.epoch, &g.ttl, &g.end)
		g.lapsed = r.flag()
		g.timer = timer{kind: timerLease, gateway: g}
		if !g.lapsed {
			f.timers.set(&g.timer, g.end)
		}
		f.gateways[g.name] = g
		ids := make([]events.RequestID, r.count())
		for j := range ids {
			ids[j] = events.RequestID(r.str())
		}
		all[i] = runs{g, ids}
	}
	return all
}

func (f *Fold) readRequests(r *reader, meters []*meter, gateways []runs) {
	for n := r.count(); n > 0; n-- {
		f.readRequest(r, meters, gateways)
	}
	for _, gw := range gateways {
		for _, id := range gw.ids {
			req := f.requests[id]
			if req == nil {
				r.fail("a running request is missing")
				return
			}
			gw.g.running = append(gw.g.running, req)
			req.place = len(gw.g.running)
		}
	}
	for n := r.count(); n > 0; n-- {
		f.readWaiter(r, meters)
	}
}

func (f *Fold) readRequest(r *reader, meters []*meter, gateways []runs) {
	req := f.newRequest(events.RequestID(r.str()))
	if g := r.int(); g >= 0 && g < int64(len(gateways)) {
		req.gateway = gateways[g].g
	}
	req.epoch, req.order, req.admitted = r.int(), uint64(r.int()), int(r.int())
	r.ints(&req.maxAt, &req.idleSince, &req.endedAt)
	if b := r.int(); b >= 0 {
		req.balance = pick(r, meters, b)
	}
	req.hold, req.ended = r.int(), r.flag()
	if at := r.int(); at >= 0 {
		f.timers.set(&req.endTimer, at)
	}
	if at := r.int(); at >= 0 {
		f.timers.set(&req.holdTimer, at)
	}
	req.attempts = make([]attempt, r.count())
	for i := range req.attempts {
		f.readAttempt(r, &req.attempts[i])
	}
	req.charges = make([]charge, r.count())
	for i := range req.charges {
		ch := &req.charges[i]
		ch.meter = pick(r, meters, r.int())
		ch.basis = f.basis(r.str())
		r.ints(&ch.attempt, &ch.amount, &ch.at, &ch.limit)
		ch.life, ch.held = events.Life(r.int()), holding(r.int())
		ch.frozen, ch.back = r.flag(), r.flag()
	}
}

func (f *Fold) readAttempt(r *reader, a *attempt) {
	a.number, a.state, a.dispatched, a.last = r.int(), attemptState(r.int()), events.Dispatched(r.int()), r.int()
	a.fixed, a.final = r.flag(), r.flag()
	for n := r.count(); n > 0; n-- {
		a.values = append(a.values, value{f.basis(r.str()), r.int(), r.flag()})
	}
	for n := r.count(); n > 0; n-- {
		ceType := r.str()
		d, err := events.DecodeData(ceType, r.bytes())
		if err != nil {
			r.fail(err.Error())
			return
		}
		a.kept = append(a.kept, d)
	}
}

func (f *Fold) readWaiter(r *reader, meters []*meter) {
	req := f.requests[events.RequestID(r.str())]
	w := &waiter{req: req, attempt: r.int(), seq: uint64(r.int()), since: r.int(), arrival: uint64(r.int())}
	deadline := r.int()
	w.org = events.Org(r.str())
	d, err := events.DecodeData(events.KindReserve.Type(), r.bytes())
	if err != nil || req == nil {
		r.fail("a waiter without its reserve")
		return
	}
	w.reserve = d.(*events.Reserve)
	for n := r.count(); n > 0; n-- {
		w.meters = append(w.meters, pick(r, meters, r.int()))
	}
	for n := r.count(); n > 0; n-- {
		m := pick(r, meters, r.int())
		w.on = append(w.on, m)
		m.waiters = append(m.waiters, w)
	}
	a := req.attempt(w.attempt)
	if a == nil || len(w.meters) != len(w.reserve.Claims) {
		r.fail("a waiter without its attempt")
		return
	}
	a.waiter = w
	req.waiters++
	w.deadline = timer{kind: timerPark, waiter: w}
	f.timers.set(&w.deadline, deadline)
	f.waiting = append(f.waiting, w)
}

func pick(r *reader, meters []*meter, i int64) *meter {
	if i < 0 || i >= int64(len(meters)) {
		r.fail("a meter that is not there")
		return &meter{}
	}
	return meters[i]
}

func (f *Fold) readRest(r *reader) {
	for n := r.count(); n > 0; n-- {
		org := events.Org(r.str())
		f.fences[org] = r.int()
	}
	for n := r.count(); n > 0; n-- {
		f.credits[r.str()] = struct{}{}
	}
	for n := r.count(); n > 0; n-- {
		id := events.RequestID(r.str())
		s := settled{since: r.int(), endedAt: r.int(), admitted: uint64(r.int()), refused: uint64(r.int())}
		f.settled.put(id, s)
	}
}

// writer appends varints and strings.
type writer struct{ b []byte }

func (w *writer) int(n int64) { w.b = binary.AppendVarint(w.b, n) }

func (w *writer) ints(all ...int64) {
	for _, n := range all {
		w.int(n)
	}
}

func (w *writer) flag(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) str(s string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) bytes(s []byte) {
	w.b = binary.AppendUvarint(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) counts(c *Counts) {
	for _, n := range c.fields() {
		w.b = binary.AppendUvarint(w.b, *n)
	}
}

func (c *Counts) fields() []*uint64 {
	return []*uint64{&c.Records, &c.Faulty, &c.OutOfRange, &c.Unknown, &c.Late, &c.Orphans, &c.Backwards, &c.Lapses}
}

// reader reads what writer wrote; the first error stays.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(why string) {
	if r.err == nil {
		r.err = errors.New(why)
	}
	r.b = nil
}

func (r *reader) int() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.fail("cut off")
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) ints(all ...*int64) {
	for _, n := range all {
		*n = r.int()
	}
}

func (r *reader) uint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.fail("cut off")
		return 0
	}
	r.b = r.b[size:]
	return n
}

// count reads a number of elements, each of which takes at least a byte.
func (r *reader) count() int {
	n := r.int()
	if n < 0 || n > int64(len(r.b)) {
		r.fail("a count that cannot be")
		return 0
	}
	return int(n)
}

func (r *reader) flag() bool {
	if len(r.b) == 0 {
		r.fail("cut off")
		return false
	}
	v := r.b[0] != 0
	r.b = r.b[1:]
	return v
}

func (r *reader) fixed() uint64 {
	if len(r.b) < 8 {
		r.fail("cut off")
		return 0
	}
	n := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return n
}

func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail("cut off")
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

func (r *reader) str() string { return string(r.bytes()) }

func (r *reader) counts(c *Counts) {
	for _, n := range c.fields() {
		*n = r.uint()
	}
}
