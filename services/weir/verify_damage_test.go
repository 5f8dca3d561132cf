package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/test/audittest"
	"github.com/weirhq/weir/test/postgrestest"
)

// copyLog makes the log anew in another broker's stream, message by message, as a copy that somebody has had a hand in: change may change a
// message, or leave it out.
func (v *verified) copyLog(change func(seq uint64, m *nats.Msg) (keep bool)) *verification {
	v.t.Helper()
	s, err := v.js.Stream(v.t.Context(), v.log.Stream())
	if err != nil {
		v.t.Fatal(err)
	}
	info, err := v.log.Info(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	check := newVerifier()
	check.chained = true
	for seq := info.First; seq <= info.Last; seq++ {
		raw, err := s.GetMsg(v.t.Context(), seq)
		if err != nil {
			v.t.Fatal(err)
		}
		m := &nats.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data}
		if !change(seq, m) {
			continue
		}
		if err := check.take(&journal.Stored{Seq: seq, At: raw.Time, Subject: m.Subject, Header: m.Header, Data: m.Data}, newProgress("verifying")); err != nil {
			v.t.Fatal(err)
		}
	}
	return check.finish()
}

// A message that is taken out of the log, or changed in it, breaks the chain, and is seen in what is decided.
func TestVerifyFindsWhatWasDoneToTheLog(t *testing.T) {
	v := startVerified(t)
	v.traffic()
	v.stop()
	if r := v.copyLog(func(uint64, *nats.Msg) bool { return true }); r.Found != 0 || r.Chained == 0 {
		t.Fatalf("untouched: %+v", r)
	}
	var final uint64
	v.copyLog(func(seq uint64, m *nats.Msg) bool {
		if final == 0 && strings.Contains(m.Subject, ".true-up.") {
			final = seq
		}
		return true
	})
	for what, change := range map[string]func(seq uint64, m *nats.Msg) bool{
		"taken out": func(seq uint64, _ *nats.Msg) bool { return seq != final },
		"cheaper": func(seq uint64, m *nats.Msg) bool {
			if seq == final {
				m.Data = []byte(strings.Replace(string(m.Data), `"cost_nano":1000`, `"cost_nano":1`, 1))
			}
			return true
		},
		"under another id": func(seq uint64, m *nats.Msg) bool {
			if seq == final {
				m.Header = nats.Header{}
				for name, values := range (nats.Header{nats.MsgIdHdr: {"other"}}) {
					m.Header[name] = values
				}
			}
			return true
		},
	} {
		r := v.copyLog(change)
		if n, _ := r.found("the hash chain is broken"); n != 1 {
			t.Errorf("%s: the chain is broken %d times: %+v", what, n, r.Difference)
		}
		if n, _ := r.found("the log lacks messages"); (n == 1) != (what == "taken out") {
			t.Errorf("%s: %d gaps", what, n)
		}
		if r.Chain != "" {
			t.Errorf("%s: a chain is shown as proven", what)
		}
	}
}

// Sums in the database that are not what the log comes to are named with their org, period and requests.
func TestVerifyFindsWhatTheTablesHaveOtherwise(t *testing.T) {
	url := postgrestest.URL(t)
	w := startWhole(t, url)
	for range 3 {
		w.chat("acme", 200)
		w.chat("beta", 200)
	}
	w.eventually("all counted", func() bool { return w.n.biller.Status().Usage.Counted == 6 })
	verify := func() *verification {
		t.Helper()
		v := newVerifier()
		if err := v.live(t.Context(), &liveLog{log: w.n.log, conn: w.n.conn}, w.n.config.DataDir, nil, sums.New(w.n.pool), newProgress("verifying")); err != nil {
			t.Fatal(err)
		}
		return v.finish()
	}
	if r := verify(); r.Found != 0 || r.Tables == nil || r.Tables.Agree < 4 || r.Tables.Behind != 0 {
		t.Fatalf("%+v %+v", r.Tables, r.Difference)
	}
	pool, err := postgres.Open(url, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	damage := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(context.Background(), statement); err != nil {
			t.Fatal(err)
		}
	}
	damage("UPDATE usage_hourly SET cost_nano = cost_nano + 1 WHERE org = 'acme'")
	damage("DELETE FROM usage_daily WHERE org = 'beta'")
	damage("INSERT INTO usage_daily SELECT 'nobody', start, workspace, key, model, price_version, 1, 0, 0, 1, 0, 0, 1, 0, 1 FROM usage_daily LIMIT 1")
	damage("UPDATE usage_hourly SET key = 'another' WHERE org = 'beta'") // the org's sum stays
	damage("UPDATE usage_daily SET unsettled = unsettled + 1 WHERE org = 'acme'")
	r := verify()
	found := map[string]int{}
	for _, d := range r.Difference {
		found[d.What+" of "+string(d.Org)]++
		if invented := d.Org == "nobody" || strings.Contains(d.Of, `key "another"`); invented == strings.Contains(d.Log, "of requests ") {
			t.Errorf("no requests behind %+v", d)
		}
	}
	for _, want := range []string{"another sum in usage_hourly of acme", "another sum in usage_daily of beta", "another sum in usage_daily of nobody",
		"another sum in usage_hourly of beta", "another sum in usage_daily of acme"} {
		if found[want] == 0 {
			t.Errorf("not found: %s in %v", want, found)
		}
	}
}

// A row of the usage tables is what the lines that count in it come to: a late final in its own hour, a correction in the hour of the line
// that it corrects, each under its own key, model and prices. What is still to be counted, and what lines of before are in, is left out.
func TestVerifyKnowsWhereLinesCount(t *testing.T) {
	_, pool := audittest.Database(t)
	table := sums.New(pool)
	made := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	log := journal.Info{Created: made}
	at := func(hours int) usage.Instant {
		return usage.Instant(made.Add(time.Duration(hours) * time.Hour).UnixNano())
	}
	amounts := func(n int64) usage.Amounts {
		return usage.Amounts{InputTokens: n, OutputTokens: 2 * n, CostNano: 3 * n}
	}
	line := func(id, key string, state usage.State, revision int64, hours int, n int64) usage.Line {
		return usage.Line{ID: id, Revision: revision, State: state, Time: at(hours), Org: "acme", Key: key, Model: "m", Request: events.RequestID(id), Change: amounts(n), PriceVersion: "p1"}
	}
	lines := []usage.Line{
		line("r1", "k1", usage.Settled, 0, 1, 100),
		line("r2", "k2", usage.Settled, 0, 1, 10),
		line("r3", "k1", usage.Unsettled, 0, 2, 0),
		line("r3", "k1", usage.Settled, 0, 30, 7),
		line("r3", "k1", usage.Corrected, 1, 60, -1),
		line("r1", "k1", usage.Corrected, 1, 80, -40),
	}
	counts := []usage.Instant{at(1), at(1), at(2), at(30), at(30), at(1)}
	v := newVerifier()
	var counted []sums.Counted
	for i := range lines {
		v.last, v.nth = uint64(i/2+1), int64(i%2) // two in a message
		v.line(&lines[i])
		counted = append(counted, sums.Counted{Line: lines[i], At: counts[i]})
	}
	position := sums.Position{StreamCreated: 1, StreamSeq: 5, LogCreated: made.UnixNano(), LogSeq: 3, LogN: 0}
	if err := table.Add(t.Context(), sums.Position{}, position, counted[:5]); err != nil {
		t.Fatal(err)
	}
	compare := func(agree, behind, outside int64) {
		t.Helper()
		v.report.Found, v.report.Difference = 0, nil
		if err := v.tables(t.Context(), table, log); err != nil {
			t.Fatal(err)
		}
		if k := v.report.Tables; v.report.Found != 0 || *k != (keptCount{agree, behind, outside}) {
			t.Errorf("%+v, want %d, %d, %d; %+v", k, agree, behind, outside, v.report.Difference)
		}
	}
	// Of r1's key hour 1 and its day are behind: the day has r3's first line too.
	compare(5, 2, 0)
	next := position
	next.LogN, next.StreamSeq = 1, 6
	if err := table.Add(t.Context(), position, next, counted[5:]); err != nil {
		t.Fatal(err)
	}
	compare(7, 0, 0)
	before := line("r0", "k2", usage.Settled, 0, 1, 5) // of a log before, billed and counted
	v.stray(&before, made)
	compare(5, 0, 2)
	if _, err := pool.Exec(t.Context(), "UPDATE usage_hourly SET price_version = 'p2' WHERE unsettled = 1"); err != nil {
		t.Fatal(err)
	}
	if err := v.tables(t.Context(), table, log); err != nil || v.report.Found != 2 {
		t.Errorf("%v, %+v", err, v.report.Difference)
	}
}

// Every reserve ended, or runs: a request that the log says was lost is not one that the audit may have as running.
func TestVerifyFindsALostRequestThatIsSaidToRun(t *testing.T) {
	v := startVerified(t)
	v.traffic() // request 60 runs on
	id := eventstest.RequestID(60)
	key := "$KV.generations." + generation.Key(id)
	stream, err := v.js.Stream(t.Context(), "KV_generations")
	if err != nil {
		t.Fatal(err)
	}
	var runs *jetstream.RawStreamMsg
	v.eventually("the audit has it", func() bool {
		runs, err = stream.GetLastMsgForSubject(t.Context(), key)
		return err == nil
	})
	info, err := v.log.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	say := func(state events.LapseState) {
		t.Helper()
		v.state(&events.Verdicts{FromSeq: info.Last, ToSeq: info.Last, Rules: 1, Lapses: []events.Lapse{{Request: id, State: state, Time: time.Now().UnixNano()}}})
	}
	say(events.LapseBegan)
	v.settle()
	v.eventually("the audit knows that it is lost", func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), key)
		return err == nil && m.Sequence > runs.Sequence && !strings.Contains(string(m.Data), `"state":"in_progress"`)
	})
	if r, text, err := v.verify(); err != nil || r.Found != 0 {
		t.Fatalf("a lost request that the audit has as lost: %v\n%s", err, text)
	}
	v.stop()
	if _, err := v.js.Publish(t.Context(), key, runs.Data); err != nil { // as it was
		t.Fatal(err)
	}
	r, text, err := v.verify()
	n, requests := r.found("a request that runs, and it was lost")
	if !errors.Is(err, errDiffers) || r.Found != 1 || n != 1 || requests[0] != id {
		t.Errorf("%v\n%s", err, text)
	}
}
