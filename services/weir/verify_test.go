package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/test/audittest"
)

// verified is a broker with everything that keeps what a log comes to.
type verified struct {
	*liveBroker
	t        *testing.T
	nc       *nats.Conn
	js       jetstream.JetStream
	biller   *biller.Biller
	audit    *auditor.Auditor
	database string // of the database, if that keeps the audit records
	pool     *pgxpool.Pool
	stop     func()
	stated   int
}

func startVerified(t *testing.T) *verified {
	t.Helper()
	return (&verified{liveBroker: startLive(t), t: t}).start()
}

// startVerifiedInDatabase keeps the audit records in a database.
func startVerifiedInDatabase(t *testing.T) *verified {
	t.Helper()
	v := &verified{liveBroker: startLive(t), t: t}
	v.database, v.pool = audittest.Database(t)
	return v.start()
}

// records is what an auditor writes to; nil: its own.
func (v *verified) records(name string) auditor.Store {
	if v.pool == nil {
		return nil
	}
	return audit.New(audit.Config{URL: v.database, Pool: v.pool, Writer: name, Retention: 1000 * 24 * time.Hour})
}

func (v *verified) start() *verified {
	t := v.t
	t.Helper()
	name := "keeper-abcdefgh"
	var err error
	if v.nc, err = v.broker.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...); err != nil {
		t.Fatal(err)
	}
	if v.js, err = jetstream.New(v.nc); err != nil {
		t.Fatal(err)
	}
	// As the biller makes it, but for messages that may be deleted.
	_, err = v.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: biller.Stream, Subjects: []string{"usage.>"}, AllowDirect: true,
		Discard: jetstream.DiscardNew, MaxAge: biller.DefaultMaxAge, MaxBytes: -1, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := projector.New(projector.Config{Log: v.log, Conn: v.nc, Name: name, DataDir: v.dir})
	if err == nil {
		v.audit, err = auditor.New(auditor.Config{Conn: v.nc, Log: v.log, Name: name, Alone: true, Store: v.records(name)})
	}
	if err == nil {
		v.biller, err = biller.New(biller.Config{Conn: v.nc, Log: v.log, Name: name, Alone: true, DataDir: v.dir, SaveEvery: 20 * time.Millisecond})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	for _, run := range []func(context.Context) error{p.Run, v.audit.Run, v.biller.Run} {
		group.Go(func() error { return run(ctx) })
	}
	v.stop = func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { cancel(); _ = group.Wait() })
	v.eventually("a projector that answers", func() bool { ok, _ := p.Answering(); return ok })
	return v
}

func (v *verified) eventually(what string, holds func() bool) {
	v.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			v.t.Fatalf("in %s: not %s", patience, what)
		}
	}
}

// state appends facts of acme, a gateway's under its own subject.
func (v *verified) state(facts ...events.Data) { v.t.Helper(); v.stateOf("acme", facts...) }

// stateOf appends facts of an org.
func (v *verified) stateOf(org events.Org, facts ...events.Data) {
	v.t.Helper()
	for _, d := range facts {
		v.stated++
		gateway := events.Gateway("")
		if d.Kind().FromGateway() {
			gateway = eventstest.Gateway
		}
		ev := eventstest.Event(fmt.Sprint("e", v.stated), d)
		if ev.Org != events.Platform {
			ev.Org = org
		}
		m, err := journal.Encode(ev, gateway)
		if err == nil {
			_, err = v.js.PublishMsg(v.t.Context(), m)
		}
		if err != nil {
			v.t.Fatal(err)
		}
	}
}

// traffic appends requests: postpaid and prepaid, refused, tried twice, corrected, and one that runs on.
func (v *verified) traffic() {
	id := eventstest.RequestID
	v.state(&events.Credit{Org: "acme", AmountNano: 1_000_000, Reference: "c1"}, &events.Credit{Org: "acme", AmountNano: 1_000_000, Reference: "c1"})
	for k := range 40 {
		claims := []events.Claim{eventstest.Slot("org/acme/concurrency", 100)}
		switch k % 4 {
		case 1:
			claims = append(claims, eventstest.Hold("org/acme/balance", 5000))
		case 2:
			claims = append(claims, eventstest.Tokens("org/acme/tpm", 10, 1))
		}
		d := eventstest.Reserve(id(k), claims...)
		if k%5 == 0 {
			d.Org = "beta"
		}
		v.stateOf(d.Org, d)
		if k == 38 {
			continue
		}
		final := eventstest.Final(id(k), int64(100+k), int64(k), int64(1000+k))
		if k%4 == 3 {
			first := *eventstest.Release(id(k))
			first.Of, first.Dispatched = events.OfAttempt, events.DispatchedNo
			again := *d
			again.Attempt, final.Attempt = 1, 1
			v.stateOf(d.Org, &first, &again)
		}
		v.stateOf(d.Org, final, eventstest.Release(id(k)))
	}
	last := eventstest.Reserve(id(60))
	v.state(last, &events.Correction{Request: id(1), Revision: 1, Usage: events.Usage{InputTokens: 90, OutputTokens: 1}, CostNano: 900, Reason: "r"},
		&events.Credit{Org: "acme", AmountNano: 101, Reference: "correction/1"})
	v.settle()
}

// settle waits until everything is kept.
func (v *verified) settle() {
	v.t.Helper()
	v.eventually("all kept", func() bool {
		asked, decided, told := uint64(0), uint64(0), uint64(0) // the last reserve, that of which a pack has the verdict, and fact or pack
		if err := v.log.Read(v.t.Context(), 0, 0, func(r events.Record) error {
			switch d := r.Data.(type) {
			case *events.Tick, *events.Lease:
				return nil
			case *events.Verdicts:
				decided = max(decided, d.ToSeq)
			case *events.Reserve:
				asked = r.Seq
			}
			told = r.Seq
			return nil
		}); err != nil {
			v.t.Fatal(err)
		}
		b, a := v.biller.Status(), v.audit.Status()
		return decided >= asked && b.Pending == 0 && b.Applied >= told && a.Position >= told
	})
}

func (v *verified) verify() (*verification, string, error) {
	v.t.Helper()
	flags := sourceFlags{Log: v.url, Credentials: v.secret, DataDir: v.dir}
	var report verification
	var out bytes.Buffer
	err := (&verifyCommand{flags, v.database, true}).run(v.t.Context(), "", &out)
	if parse := json.Unmarshal(out.Bytes(), &report); parse != nil {
		v.t.Fatalf("%v: %s", err, out.String())
	}
	var text bytes.Buffer
	if again := (&verifyCommand{flags, v.database, false}).run(v.t.Context(), "", &text); (again == nil) != (err == nil) {
		v.t.Errorf("for reading: %v, as JSON: %v\n%s", again, err, out.String())
	}
	return &report, text.String(), err
}

// found counts the differences of a kind.
func (r *verification) found(what string) (n int, requests []events.RequestID) {
	for _, d := range r.Difference {
		if strings.Contains(d.What, what) {
			n++
			requests = append(requests, d.Request)
		}
	}
	return n, requests
}

func TestVerifyAgrees(t *testing.T) { verifyAgrees(t, startVerified(t)) }

func TestVerifyAgreesWithTheDatabase(t *testing.T) { verifyAgrees(t, startVerifiedInDatabase(t)) }

func verifyAgrees(t *testing.T, v *verified) {
	v.traffic()
	r, text, err := v.verify()
	if err != nil || r.Found != 0 {
		t.Fatalf("%v\n%s", err, text)
	}
	if r.Lines < 25 || r.Billing.Agree != r.Lines || r.Billing.Behind != 0 || r.Audit.Agree < 20 || r.Live != 1 || r.Refused < 9 || r.Chained == 0 || r.Verdicts < 40 || r.Packs == 0 {
		t.Errorf("little was proven:\n%s", text)
	}
	orgs := map[events.Org]bool{}
	for _, d := range r.Days {
		orgs[d.Org] = true
		if d.Billing == nil || d.Audit == nil || *d.Billing != d.Log || *d.Audit != d.Log || d.Attempts == 0 {
			t.Errorf("a day that does not agree: %+v\n%s", d, text)
		}
	}
	if !orgs["acme"] || !orgs["beta"] {
		t.Errorf("orgs %v", orgs)
	}
	for _, want := range []string{"no difference", "billing", "by audit"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestVerifyFindsWhatBillingHasOtherwise(t *testing.T) {
	v := startVerified(t)
	v.traffic()
	v.stop()
	stream, err := v.js.Stream(t.Context(), biller.Stream)
	if err != nil {
		t.Fatal(err)
	}
	message := func(seq uint64) (*nats.Msg, usage.Line) {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		l, err := usage.Decode(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		header := nats.Header{}
		for name, values := range m.Header {
			if !strings.HasPrefix(name, "Nats-") {
				header[name] = values
			}
		}
		return &nats.Msg{Subject: m.Subject, Header: header, Data: m.Data}, l
	}
	publish := func(m *nats.Msg) {
		if _, err := v.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	_, gone := message(2)
	if err := stream.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	twice, doubled := message(3)
	publish(twice)
	changed, dearer := message(4)
	if err := stream.DeleteMsg(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	dearer.CostNano++
	dearer.Change.CostNano++
	changed.Data = dearer.Encode()
	publish(changed)
	invented, l := message(5)
	l.ID, l.Request = "invented", "nobody"
	invented.Data = l.Encode()
	publish(invented)

	r, text, err := v.verify()
	if !errors.Is(err, errDiffers) || r.Found != 4 {
		t.Errorf("%v\n%s", err, text)
	}
	for what, want := range map[string]events.RequestID{"missing from billing": gone.Request, "stands twice": doubled.Request, "another line": dearer.Request, "does not come to": "nobody"} {
		if n, requests := r.found(what); n != 1 || requests[0] != want {
			t.Errorf("%s: %d of %v, want %s", what, n, requests, want)
		}
	}
	differs := 0
	for _, d := range r.Days {
		if d.Billing == nil || d.Billing.CostNano != d.Log.CostNano {
			differs++
		}
	}
	if differs == 0 {
		t.Errorf("no day differs:\n%s", text)
	}
}

func TestVerifyFindsWhatTheAuditHasOtherwise(t *testing.T) {
	v := startVerified(t)
	v.traffic()
	v.stop()
	key := func(k int) string { return "$KV.generations." + generation.Key(eventstest.RequestID(k)) }
	stream, err := v.js.Stream(t.Context(), "KV_generations")
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), key(4))
	if err != nil {
		t.Fatal(err)
	}
	var rec generation.Record
	if err := json.Unmarshal(m.Data, &rec); err != nil {
		t.Fatal(err)
	}
	rec.Attempts[0].Usage.OutputTokens++
	text, err := json.Marshal(&rec)
	if err != nil {
		t.Fatal(err)
	}
	for k, data := range map[int][]byte{4: text, 9: []byte(`{}`)} {
		if _, err := v.js.Publish(t.Context(), key(k), data); err != nil {
			t.Fatal(err)
		}
	}
	r, out, err := v.verify()
	if !errors.Is(err, errDiffers) || r.Found != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	for what, k := range map[string]int{"another amount in the audit": 4, "no audit record": 9} {
		if n, requests := r.found(what); n != 1 || requests[0] != eventstest.RequestID(k) {
			t.Errorf("%s: %d of %v", what, n, requests)
		}
	}
}

func TestVerifyFindsWhatTheDatabaseHasOtherwise(t *testing.T) {
	v := startVerifiedInDatabase(t)
	v.traffic()
	v.stop()
	text, found, err := audit.NewReader(v.pool).Generation(t.Context(), "acme", eventstest.RequestID(4))
	if err != nil || !found {
		t.Fatal(found, err)
	}
	var rec generation.Record
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	rec.Attempts[0].Usage.OutputTokens++
	store := audit.New(audit.Config{URL: v.database, Pool: v.pool, Writer: "forger", Retention: 1000 * 24 * time.Hour})
	defer store.Close()
	at, err := store.Open(t.Context())
	if err == nil {
		err = store.Write(t.Context(), []generation.Row{rec.Row()}, nil, at)
	}
	if err == nil {
		_, err = v.pool.Exec(t.Context(), "DELETE FROM generations WHERE id = $1", string(eventstest.RequestID(9)))
	}
	changes := map[int]string{13: "UPDATE generations SET cost_nano = cost_nano + 1 WHERE id = $1", 16: "UPDATE attempts SET deployment = 'x' WHERE request = $1",
		20: "DELETE FROM attempts WHERE request = $1", 2: "UPDATE admission_events SET used = used + 1 WHERE request = $1", 6: "DELETE FROM admission_events WHERE request = $1",
		8:   "INSERT INTO admission_events (made, request, n, org, event, at, seq, attempt, parked_ms, wait_ms, status, count) SELECT made, $1, 7, org, 'refused', made, 1, 0, 0, 0, 429, 1 FROM generations WHERE id = $1",
		999: "INSERT INTO attempts (made, request, attempt, org, seq, reserved, verdict, parked_ms, wait_ms, final, input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, status, latency_ms, ttft_ms) SELECT made, $1, 0, org, 1, made, '', 0, 0, false, 0, 0, 0, 0, 0, 0, 0, 0 FROM generations LIMIT 1"}
	for k, change := range changes {
		if err == nil {
			_, err = v.pool.Exec(t.Context(), change, string(eventstest.RequestID(k)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	r, out, err := v.verify()
	if !errors.Is(err, errDiffers) || int(r.Found) != 2+len(changes)+1 {
		t.Errorf("%v\n%s", err, out)
	}
	for what, k := range map[string]int{"another amount in the audit": 4, "no audit record": 9} {
		if n, requests := r.found(what); n != 1 || requests[0] != eventstest.RequestID(k) {
			t.Errorf("%s: %d of %v", what, n, requests)
		}
	}
	_, requests := r.found("an audit record's rows")
	for k := range changes {
		if !slices.Contains(requests, eventstest.RequestID(k)) {
			t.Errorf("what %s changed is not found", changes[k])
		}
	}
	if !slices.Contains(requests, eventstest.RequestID(9)) {
		t.Error("rows whose record is gone are not found")
	}
}

func TestVerifyFindsForgedVerdicts(t *testing.T) {
	v := startVerified(t)
	v.traffic()
	v.stop()
	id := eventstest.RequestID(80)
	d := eventstest.Reserve(id, eventstest.Tokens("org/acme/tpm", 10, 1))
	v.state(d)
	info, err := v.log.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admitted := eventstest.Admitted(d, info.Last, time.Now().UnixNano())
	v.state(&events.Verdicts{FromSeq: info.Last, ToSeq: info.Last, Rules: 1, StateHash: "0123456789abcdef", Chain: strings.Repeat("ab", 32), Verdicts: []events.Verdict{
		admitted, eventstest.Admitted(eventstest.Reserve("nobody"), info.Last, admitted.Time)}})
	r, text, err := v.verify()
	if !errors.Is(err, errDiffers) {
		t.Errorf("%v\n%s", err, text)
	}
	for _, what := range []string{"another verdict", "the fold's state", "the hash chain is broken", "a verdict that the log does not give"} {
		if n, _ := r.found(what); n != 1 {
			t.Errorf("%s: %d\n%s", what, n, text)
		}
	}
}

// A log whose beginning is gone is folded on from a state that the biller kept.
func TestVerifyFromAState(t *testing.T) {
	v := startVerified(t)
	v.state(&events.Credit{Org: "acme", AmountNano: 1_000_000, Reference: "c0"})
	var start biller.Start
	v.eventually("a state", func() bool {
		info, err := v.log.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		start, found, err = biller.EarliestStart(v.dir, info.Created, 1)
		return err == nil && found
	})
	v.traffic()
	v.stop()
	info, err := v.log.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check := newVerifier()
	check.continueFrom(start)
	l := &liveLog{log: v.log, conn: v.nc}
	err = check.log(t.Context(), l, start.Applied+1, info.Last, newProgress("verifying"))
	if err == nil {
		err = errors.Join(check.billing(t.Context(), l, info), check.audit(t.Context(), bucketRecords{l}, info))
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := check.finish(); r.Found != 0 || r.Chained == 0 || r.Billing.Agree != r.Lines || r.Lines < 25 {
		t.Errorf("%+v", r)
	}
}

func TestVerifyFile(t *testing.T) {
	v := startVerified(t)
	v.traffic()
	v.stop()
	var recording, forged bytes.Buffer
	err := v.log.Read(t.Context(), 0, 0, func(r events.Record) error {
		line, err := lineOf(&r)
		recording.Write(append(line, '\n'))
		if r.Kind() == events.KindVerdicts {
			line = bytes.ReplaceAll(line, []byte(`"outcome":"refused"`), []byte(`"outcome":"admitted"`))
		}
		forged.Write(append(line, '\n'))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "log.jsonl")
	run := func(text []byte) (string, error) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := (&verifyCommand{sourceFlags{File: file}, "", false}).run(t.Context(), "", &out)
		return out.String(), err
	}
	if out, err := run(recording.Bytes()); err != nil || !strings.Contains(out, "no difference") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run(forged.Bytes()); !errors.Is(err, errDiffers) || !strings.Contains(out, "another verdict") {
		t.Errorf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := (&verifyCommand{sourceFlags{File: recordedLog}, "", false}).run(t.Context(), "", &out); err != nil {
		t.Errorf("%s: %v\n%s", recordedLog, err, out.String())
	}
}
