package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/signal"
	"slices"
	"sort"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
)

// Bounds of a verification.
const (
	maxDifferences   = 1000    // listed; all are counted
	shownDifferences = 20      // for reading
	maxUndecided     = 1 << 18 // verdicts that wait for the pack that holds them
	placesKept       = 1 << 16 // sequences whose digest and chain are kept; packs follow within a second or so
)

// errDiffers ends a verification that found differences.
var errDiffers = errors.New("what is kept does not agree with the log")

// verifyCommand proves that log, audit and billing agree.
type verifyCommand struct {
	sourceFlags `embed:""`

	Database string `help:"Database that keeps the audit records and the usage tables. By default database of the configuration; without one they are in a bucket." placeholder:"URL"`
	JSON     bool   `help:"JSON."`
}

// Run prints what was proven, and every difference with the requests behind it. Any difference is an error.
func (c *verifyCommand) Run(cli *cli, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.run(ctx, cli.Config, out)
}

func (c *verifyCommand) run(ctx context.Context, configFile string, out io.Writer) error {
	s, err := c.open(ctx, configFile)
	if err != nil {
		return err
	}
	defer s.close()
	v := newVerifier()
	p := newProgress("verifying")
	if live, ok := s.(streams); ok {
		var records auditRecords
		var table *sums.Table
		var done func()
		if records, table, done, err = c.database(configFile); err == nil {
			defer done()
			err = v.live(ctx, live, c.DataDir, records, table, p)
		}
	} else {
		err = s.Read(ctx, 0, func(r *events.Record) error { p.step(r); return v.record(r) })
	}
	p.done()
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	report := v.finish()
	if c.JSON {
		err = json.NewEncoder(out).Encode(report)
	} else {
		err = report.print(out)
	}
	if err == nil && report.Found > 0 {
		err = fmt.Errorf("verify: %w: differences: %d", errDiffers, report.Found)
	}
	return err
}

// database gives where the audit records and the usage tables are, if that is a database; else nil.
func (c *verifyCommand) database(configFile string) (records auditRecords, table *sums.Table, done func(), err error) {
	cfg, _, err := config.Load(configFile, os.Getenv)
	if err != nil && c.Database == "" {
		return nil, nil, nil, err
	}
	url, retention := c.Database, audit.DefaultRetention
	if err == nil {
		retention = cmp.Or(cfg.Audit.Retention, retention)
		url = cmp.Or(url, cfg.Database)
	}
	if url == "" {
		return nil, nil, func() {}, nil
	}
	pool, err := postgres.Open(url, "weir verify")
	if err != nil {
		return nil, nil, nil, err
	}
	return tableRecords{audit.NewReader(pool), retention}, sums.New(pool), pool.Close, nil
}

// difference is something that does not agree.
type difference struct {
	What    string           `json:"what"`
	Org     events.Org       `json:"org,omitempty"`
	Day     string           `json:"day,omitempty"`
	Of      string           `json:"of,omitempty"` // the row of a usage table
	Request events.RequestID `json:"request,omitempty"`
	Attempt int64            `json:"attempt"`
	Seq     uint64           `json:"seq,omitempty"` // in the log
	Log     string           `json:"log,omitempty"` // what the log comes to
	Kept    string           `json:"kept,omitempty"`
}

// verification is what was proven and found.
type verification struct {
	FromSeq    uint64       `json:"from_seq"`
	ToSeq      uint64       `json:"to_seq"`
	Records    int64        `json:"records"`
	Admitted   int64        `json:"admitted"`
	Refused    int64        `json:"refused"`
	Live       int          `json:"live"`    // requests that run
	Waiting    int          `json:"waiting"` // and that wait to be admitted
	Packs      int64        `json:"packs"`
	Verdicts   int64        `json:"verdicts_agree"`
	Unwritten  int          `json:"verdicts_unwritten"` // at the log's end: no pack holds them yet
	Chain      string       `json:"chain"`              // the hash chain at its end, if packs carry one
	Chained    int64        `json:"chain_agrees"`       // packs whose chain was proven
	Lines      int64        `json:"lines"`
	Billing    *keptCount   `json:"billing"` // null: there is no stream of lines
	Audit      *keptCount   `json:"audit"`   // null: there are no records of requests
	Tables     *keptCount   `json:"tables"`  // null: there is no database
	Days       []dayRow     `json:"days"`
	Found      int64        `json:"found"` // differences in all
	Difference []difference `json:"differences"`
	Notes      []string     `json:"notes"`
}

// keptCount is what was found in a projection.
type keptCount struct {
	Agree   int64 `json:"agree"`   // lines, or attempts
	Behind  int64 `json:"behind"`  // not written yet
	Outside int64 `json:"outside"` // of what the log does not hold, or what is no longer kept
}

// dayRow is what an org's attempts of one day (UTC, of their first line) came to.
type dayRow struct {
	Org      events.Org     `json:"org"`
	Day      string         `json:"day"`
	Attempts int64          `json:"attempts"`
	Log      usage.Amounts  `json:"log"`
	Billing  *usage.Amounts `json:"billing"` // null: not all of it is written yet, or nothing is
	Audit    *usage.Amounts `json:"audit"`
}

// attemptKey names an attempt.
type attemptKey struct {
	request events.RequestID
	attempt int64
}

// attemptBill is what an attempt came to by the log, and by what is kept.
type attemptBill struct {
	org           events.Org
	at            int64 // ns: of its first line
	seq           uint64
	final         bool
	counts        int64 // ns: in whose hour and day corrections count; 0: the line that they correct is not known
	log           usage.Amounts
	billed, audit usage.Amounts
	noBill        bool // not yet written, or no longer kept
	noAudit       bool
}

// lineMark is what is kept of a line to compare it.
type lineMark struct {
	key  attemptKey
	sum  uint64
	fell uint64 // sequence of the message with which the log came to it
	seen bool
}

// placeMark is the fold's digest and the hash chain after a message.
type placeMark struct {
	seq, digest uint64
	chain       journal.Chain
}

// undecided is a verdict that waits for its pack.
type undecided struct {
	key  verdictKey
	fell uint64
}

type verdictKey struct {
	seq     uint64
	request events.RequestID
	attempt int64
}

// verifier folds a log and compares.
type verifier struct {
	report   verification
	usage    *usage.Usage
	whole    bool  // folded from the log's first record
	since    int64 // ns: when it was folded on from; 0: whole
	last     uint64
	next     uint64 // the sequence that comes next; 0: any
	chain    journal.Chain
	chained  bool // chain is known
	places   []placeMark
	waiting  map[verdictKey]string
	order    []undecided
	packed   bool // a pack has been seen
	attempts map[attemptKey]*attemptBill
	lines    map[string]*lineMark
	orgs     map[events.Org]events.Org // one copy of each name
	money    money

	lapsed map[events.RequestID]uint64 // requests that were lost, and the sequence that says so

	corrected map[attemptKey]bool // attempts that the log corrects; nil: not known before it is read
	newest    map[attemptKey]usage.Line

	tallies tallies
	nth     int64            // of the message's lines
	strays  map[string]int64 // ns: when lines to which the log does not come were made, by their id

	gone []lost // sequences whose messages were lost before the log was recovered
}

func newVerifier() *verifier {
	return &verifier{usage: usage.New(admission.New()), whole: true, places: make([]placeMark, placesKept), waiting: map[verdictKey]string{},
		newest: map[attemptKey]usage.Line{}, attempts: map[attemptKey]*attemptBill{}, lines: map[string]*lineMark{}, orgs: map[events.Org]events.Org{}, money: newMoney(), lapsed: map[events.RequestID]uint64{},
		tallies: tallies{}, strays: map[string]int64{},
		report: verification{Difference: []difference{}, Notes: []string{}, Days: []dayRow{}}}
}

func (v *verifier) differs(d difference) {
	v.report.Found++
	if len(v.report.Difference) < maxDifferences {
		v.report.Difference = append(v.report.Difference, d)
	}
}

func (v *verifier) note(format string, args ...any) {
	v.report.Notes = append(v.report.Notes, fmt.Sprintf(format, args...))
}

// record folds one record. A message's records come one after another.
func (v *verifier) record(r *events.Record) error {
	v.message(r.Seq)
	v.report.Records++
	if request, attempt, missing := v.usage.Missing(r); missing {
		v.bringBack(attemptKey{request, attempt})
	}
	lines := v.usage.Apply(r)
	if f := v.usage.Fold(); !f.Supported() {
		return fmt.Errorf("the log's rules are version %d, this binary knows %d", f.Rules(), admission.RulesVersion)
	}
	v.money.record(r)
	v.recovered(r)
	verdicts := v.usage.Verdicts()
	for i := range verdicts {
		v.decided(&verdicts[i], r.Seq)
	}
	for i := range lines {
		v.line(&lines[i])
	}
	if d, ok := r.Data.(*events.Verdicts); ok && r.Fault == "" {
		v.pack(d, r.Seq)
	}
	return nil
}

// recovered takes in that the log was gone on with after it was cut or restored: what was kept of the sequences that it lost has nothing to
// compare with.
func (v *verifier) recovered(r *events.Record) {
	d, ok := r.Data.(*events.Recover)
	if !ok || r.Fault != "" || d.LostTo == 0 {
		return
	}
	v.gone = append(v.gone, lost{d.LostFrom, d.LostTo})
	v.note("the log was recovered at sequence %d: what stood at %d to %d before is lost, and what is kept of it is outside", r.Seq, d.LostFrom, d.LostTo)
}

func (v *verifier) isGone(seq uint64) bool {
	return slices.ContainsFunc(v.gone, func(l lost) bool { return l.from <= seq && seq <= l.to })
}

// mayBeGone says whether what followed a reserve may have stood among what was lost: its verdict, its final.
func (v *verifier) mayBeGone(seq uint64) bool {
	return slices.ContainsFunc(v.gone, func(l lost) bool { return seq <= l.to })
}

// message takes in that the records that follow are of another message.
func (v *verifier) message(seq uint64) {
	if seq == v.last {
		return
	}
	v.ended()
	if v.report.FromSeq == 0 {
		v.report.FromSeq = seq
	}
	v.last, v.nth = seq, 0
}

// ended takes in the end of a message.
func (v *verifier) ended() {
	if v.last > 0 {
		v.places[v.last%placesKept] = placeMark{v.last, v.usage.Fold().Digest(), v.chain}
	}
}

// decided notes a verdict of the fold.
func (v *verifier) decided(d *events.Verdict, seq uint64) {
	if d.Admitted {
		v.report.Admitted++
	} else {
		v.report.Refused++
	}
	v.money.decided(d)
	if len(v.order) >= maxUndecided {
		if !v.packed {
			return // nothing writes packs
		}
		v.missing(v.order[0])
		v.order = v.order[1:]
	}
	key := verdictKey{d.Seq, d.Request, d.Attempt}
	v.waiting[key] = string(events.AppendVerdict(nil, d))
	v.order = append(v.order, undecided{key, seq})
}

func (v *verifier) missing(u undecided) {
	if text, still := v.waiting[u.key]; still {
		delete(v.waiting, u.key)
		v.differs(difference{What: "a verdict is in no pack", Request: u.key.request, Attempt: u.key.attempt, Seq: u.key.seq, Log: text})
	}
}

// pack compares a pack of verdicts with the fold, and its hash chain with the log.
func (v *verifier) pack(d *events.Verdicts, seq uint64) {
	v.report.Packs++
	v.packed = true
	place := v.places[d.ToSeq%placesKept]
	known := place.seq == d.ToSeq && d.ToSeq > 0
	if d.ToSeq >= seq {
		v.differs(difference{What: "a pack of verdicts covers what is behind it", Seq: seq, Kept: fmt.Sprint("up to ", d.ToSeq)})
		return
	}
	if known && d.StateHash != "" {
		if have := fmt.Sprintf("%016x", place.digest); have != d.StateHash {
			v.differs(difference{What: "the fold's state", Seq: d.ToSeq, Log: have, Kept: d.StateHash})
		}
	}
	if known && d.Chain != "" && v.chained {
		if have := place.chain.String(); have != d.Chain {
			v.differs(difference{What: "the hash chain is broken", Seq: d.ToSeq, Log: have, Kept: d.Chain})
			v.chained = false // what follows differs too
			v.note("the hash chain of the log is not the one that was written with sequence %d: something in it was changed or taken out before", seq)
		} else {
			v.report.Chained++
		}
	}
	for i := range d.Verdicts {
		v.compare(&d.Verdicts[i], seq)
	}
	for i := range d.Lapses {
		v.lapse(&d.Lapses[i], seq)
	}
	n := 0
	for ; n < len(v.order) && v.order[n].fell < d.ToSeq; n++ {
		v.missing(v.order[n])
	}
	v.order = v.order[n:]
}

func (v *verifier) compare(d *events.Verdict, seq uint64) {
	key := verdictKey{d.Seq, d.Request, d.Attempt}
	text, known := v.waiting[key]
	delete(v.waiting, key)
	kept := string(events.AppendVerdict(nil, d))
	switch {
	case known && text == kept:
		v.report.Verdicts++
	case known:
		v.differs(difference{What: "another verdict", Request: d.Request, Attempt: d.Attempt, Seq: d.Seq, Log: text, Kept: kept})
	case d.Seq > v.begins():
		v.differs(difference{What: "a verdict that the log does not give", Request: d.Request, Attempt: d.Attempt, Seq: seq, Kept: kept})
	}
}

// lapse notes a request that was lost, until it is not.
func (v *verifier) lapse(l *events.Lapse, seq uint64) {
	if l.State == events.LapseOver {
		delete(v.lapsed, l.Request)
		return
	}
	v.lapsed[events.RequestID(strings.Clone(string(l.Request)))] = seq
}

// begins is the sequence from which the fold was begun.
func (v *verifier) begins() uint64 { return max(v.report.FromSeq, 1) - 1 }

// line notes a line that the log comes to.
func (v *verifier) line(l *usage.Line) {
	v.report.Lines++
	key := attemptKey{l.Request, l.Attempt}
	b := v.attempts[key]
	if b == nil {
		org, known := v.orgs[l.Org]
		if !known {
			org = events.Org(strings.Clone(string(l.Org)))
			v.orgs[org] = org
		}
		key.request = events.RequestID(strings.Clone(string(l.Request)))
		b = &attemptBill{org: org, at: int64(l.Time)}
		v.attempts[key] = b
	}
	b.seq = max(b.seq, l.Seq)
	b.final = b.final || l.State == usage.Settled
	b.log = b.log.Plus(l.Change)
	v.lines[strings.Clone(l.EventID())] = &lineMark{key: key, sum: sumOf(l.Encode()), fell: v.last}
	v.money.line(l)
	if l.State != usage.Corrected {
		b.counts = int64(l.Time)
	}
	if b.counts != 0 {
		v.tallies.of(l, b.counts).add(l, place{v.last, v.nth}, key.request)
	}
	v.nth++
	if v.corrected == nil || v.corrected[key] {
		v.newest[key] = *l
	}
}

// bringBack gives the projection a line that is corrected.
func (v *verifier) bringBack(key attemptKey) {
	if l, known := v.newest[key]; known {
		v.usage.Restore(l)
	}
}

func sumOf(text []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(text) // cannot fail
	return h.Sum64()
}

// finish proves what must hold at the log's end, and sums up.
func (v *verifier) finish() *verification {
	v.ended()
	r := &v.report
	r.ToSeq = v.last
	r.Unwritten = len(v.waiting)
	if !v.packed && r.Unwritten > 0 {
		v.note("the log holds no packs of verdicts: that it was decided as it is folded here is not proven")
	}
	if v.chained {
		r.Chain = v.chain.String()
	}
	f := v.usage.Fold()
	_, _, _, r.Waiting = f.Size()
	for _, g := range f.Gateways() {
		r.Live += g.Running
	}
	v.gauges(f)
	if v.whole {
		v.money.check(f, v.differs)
	}
	r.Days = v.days()
	return r
}

// gauges proves that nothing is held when nothing runs.
func (v *verifier) gauges(f *admission.Fold) {
	if v.report.Live > 0 {
		return
	}
	for _, m := range f.Meters() {
		if m.Kind == events.Gauge && m.Used != 0 {
			v.differs(difference{What: "a gauge is held and nothing runs", Log: fmt.Sprintf("%s is at %d", m.Meter, m.Used)})
		}
	}
}

func (v *verifier) days() []dayRow {
	type group struct {
		org events.Org
		day string
	}
	rows := map[group]*dayRow{}
	for _, b := range v.attempts {
		g := group{b.org, dayOf(b.at)}
		row := rows[g]
		if row == nil {
			row = &dayRow{Org: g.org, Day: g.day, Billing: &usage.Amounts{}, Audit: &usage.Amounts{}}
			rows[g] = row
		}
		row.Attempts++
		row.Log = row.Log.Plus(b.log)
		row.Billing = plus(row.Billing, b.billed, b.noBill || v.report.Billing == nil)
		row.Audit = plus(row.Audit, b.audit, b.noAudit || v.report.Audit == nil)
	}
	all := make([]dayRow, 0, len(rows))
	for _, row := range rows {
		all = append(all, *row)
	}
	sort.Slice(all, func(i, j int) bool {
		return all[i].Day < all[j].Day || all[i].Day == all[j].Day && all[i].Org < all[j].Org
	})
	return all
}

// plus adds to a sum, which is nothing once a part of it is missing.
func plus(sum *usage.Amounts, part usage.Amounts, missing bool) *usage.Amounts {
	if sum == nil || missing {
		return nil
	}
	total := sum.Plus(part)
	return &total
}

func dayOf(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02") }

// print tells a person.
func (r *verification) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "log\tsequences %d to %d, %d records\n", r.FromSeq, r.ToSeq, r.Records)
	fmt.Fprintf(t, "decisions\t%d admitted, %d refused; %d run, %d wait\n", r.Admitted, r.Refused, r.Live, r.Waiting)
	fmt.Fprintf(t, "verdicts\t%d agree in %d packs, %d in none yet\n", r.Verdicts, r.Packs, r.Unwritten)
	if r.Chain != "" {
		fmt.Fprintf(t, "hash chain\t%s at the end, as %d packs have it\n", r.Chain, r.Chained)
	}
	fmt.Fprintf(t, "lines\t%d\n", r.Lines)
	r.Billing.print(t, "billing")
	r.Audit.print(t, "audit")
	if r.Tables != nil {
		r.Tables.print(t, "usage tables")
	}
	fmt.Fprintln(t)
	if len(r.Days) > 0 {
		fmt.Fprintf(t, "day\torg\tattempts\ttokens in, out\tnano-dollars by log\tby billing\tby audit\n")
	}
	for _, d := range r.Days {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d, %d\t%d\t%s\t%s\n", d.Day, d.Org, d.Attempts, d.Log.InputTokens, d.Log.OutputTokens, d.Log.CostNano, cost(d.Billing), cost(d.Audit))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintf(out, "\n%s\n", n)
	}
	for i, d := range r.Difference {
		if i == shownDifferences {
			fmt.Fprintf(out, "and %d more (--json lists up to %d)\n", r.Found-shownDifferences, maxDifferences)
			break
		}
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "differs: %s\n", text)
	}
	if r.Found == 0 {
		fmt.Fprintln(out, "\nno difference")
	}
	return nil
}

func (k *keptCount) print(out io.Writer, what string) {
	if k == nil {
		fmt.Fprintf(out, "%s\tnot compared: none is kept, or it is out of reach from here\n", what)
		return
	}
	fmt.Fprintf(out, "%s\t%d agree, %d not written yet, %d outside\n", what, k.Agree, k.Behind, k.Outside)
}

func cost(a *usage.Amounts) string {
	if a == nil {
		return "-"
	}
	return fmt.Sprint(a.CostNano)
}

// continueFrom begins the fold at a snapshot, for a log whose beginning is gone.
func (v *verifier) continueFrom(start biller.Start) {
	v.usage, v.whole, v.since = start.Usage, false, start.Usage.Fold().Now()
	v.chain, v.chained = start.Chain, start.Chain != (journal.Chain{})
	v.note("the log's beginning is gone: it was folded on from the biller's state at sequence %d, and balances are not proven", start.Applied)
}
