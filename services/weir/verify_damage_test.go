package main

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/sums"
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
	r := verify()
	found := map[string]int{}
	for _, d := range r.Difference {
		found[d.What+" of "+string(d.Org)]++
		if d.Org != "nobody" && !strings.Contains(d.Log, "of requests ") {
			t.Errorf("no requests behind %+v", d)
		}
	}
	for _, want := range []string{"another sum in usage_hourly of acme", "another sum in usage_daily of beta", "another sum in usage_daily of nobody"} {
		if found[want] == 0 {
			t.Errorf("not found: %s in %v", want, found)
		}
	}
}
