// Package gates proves the gates of admission control sentence by sentence. What policy and fold decide is played in virtual time:
// configuration, request bodies, the events that a gateway would publish, verdicts. Each such scenario is also a pair of files in
// test/scenario/testdata, where the fold is held against a second implementation. The rest runs the product: estimates against a real
// tokenizer, hundreds of clients on several gateways, idle state, metrics.
package gates

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/upstream"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/scenario"
)

var rewrite = flag.Bool("rewrite", false, "write the logs of scenarios, and what they lead to, into test/scenario/testdata")

// epoch is that of every gateway of a world.
const epoch = 1

// world is one configuration, its log so far and what the fold makes of it.
type world struct {
	t        *testing.T
	snap     *authority.Snapshot
	settings policy.Settings
	healthy  int64
	pressure policy.Pressure
	ratio    estimate.Ratio
	gateway  events.Gateway

	fold     *admission.Fold
	start    time.Time
	now      time.Duration
	seq      uint64
	made     int
	records  []events.Record
	lines    []string // what replaying prints
	requests map[events.RequestID]*request
}

// setup is what a world is made of. Keys are entries of auth.yaml in YAML's flow style, by name; policies are policy files.
type setup struct {
	policy string // of the model qwen; "models" is put before
	other  string // of the model other, likewise
	keys   map[string]string
	at     string // when the log begins. Defaults to 2026-01-15T10:00:00Z
}

// newWorld makes a world with the models qwen and other on replicas of their own, with a provider to fall back to.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	text := "api:\n  mode: api-key\n  keys:\n"
	if len(s.keys) == 0 {
		s.keys = map[string]string{"alice": ""}
	}
	for _, name := range sortedKeys(s.keys) {
		extra := s.keys[name]
		if !strings.Contains(extra, "owner:") {
			extra = strings.TrimSuffix("metadata: {name: "+name+", owner: "+name+"}, "+extra, ", ")
		}
		sum := sha256.Sum256([]byte(name))
		text += fmt.Sprintf("    - {key_hash: %q, %s}\n", hex.EncodeToString(sum[:]), extra)
	}
	auth, err := authority.ParseAuth("auth.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	policies := &authority.Policies{Models: map[string]authority.Policy{}, Lines: map[string]authority.Pos{}}
	for model, text := range map[string]string{"qwen": s.policy, "other": s.other} {
		if err := policies.Add(model+".yaml", model, []byte("models: ["+model+"]\n"+text)); err != nil {
			t.Fatal(err)
		}
	}
	local := &authority.Local{Engine: "vllm", Replicas: []string{"http://a", "http://b"}}
	offer := []authority.Route{{Connection: "house", Model: "gpt"}}
	snap, _, err := authority.Build(&authority.Declared{
		Models:      []*authority.Model{{ID: "qwen", Local: local, Providers: offer}, {ID: "other", Local: local}},
		Connections: []*authority.Connection{{ID: "house", Provider: "openai", Pool: "house"}},
		Pools:       []authority.DeclaredPool{{ID: "house", Provider: "openai", RPM: 100, TPM: 1_000_000, Concurrency: 10, HeadroomPercent: 100}},
	}, auth, policies)
	if err != nil {
		t.Fatal(err)
	}
	if s.at == "" {
		s.at = "2026-01-15T10:00:00Z"
	}
	start, err := time.Parse(time.RFC3339Nano, s.at)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, snap: snap, healthy: 1, ratio: estimate.FirstRatio, gateway: "gw-a", fold: admission.New(), start: start,
		settings: policy.Settings{FractionPPM: policy.DefaultFractionPPM, ParkMS: policy.DefaultParkMS},
		requests: map[events.RequestID]*request{}}
}

func sortedKeys(m map[string]string) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	for i := range names { // few enough
		for k := i; k > 0 && names[k] < names[k-1]; k-- {
			names[k], names[k-1] = names[k-1], names[k]
		}
	}
	return names
}

// at sets the time since the log's beginning, in ms. Every 2 s on the way the gateways give a sign of life.
func (w *world) at(ms float64) {
	w.t.Helper()
	to := time.Duration(ms * float64(time.Millisecond))
	if to < w.now {
		w.t.Fatalf("back in time from %s to %s", w.now, to)
	}
	if to-w.now > 10*time.Second {
		w.now = to - 2*time.Second // the log was silent: nobody's lease runs out
		w.beat()
	}
	for to-w.now >= 2*time.Second {
		w.now += 1900 * time.Millisecond
		w.beat()
	}
	w.now = to
}

// beat publishes a lease of each gateway that has reserved.
func (w *world) beat() {
	seen := map[events.Gateway]bool{}
	for i := range w.records {
		if g := w.records[i].Gateway; g != "" && !seen[g] {
			seen[g] = true
		}
	}
	for _, g := range []events.Gateway{"gw-a", "gw-b", "gw-c"} {
		if seen[g] {
			w.apply(g, events.Platform, &events.Lease{Gateway: g, Epoch: epoch, TTLMS: events.DefaultTTLMS})
		}
	}
}

// apply appends an event to the log and folds it.
func (w *world) apply(g events.Gateway, org events.Org, d events.Data) {
	w.t.Helper()
	w.seq++
	r := events.Record{Seq: w.seq, At: w.start.Add(w.now).UnixNano(), Gateway: g, Event: events.Event{Org: org, Data: d}}
	if why := events.Check(events.Subject{Org: org, Kind: r.Kind(), Gateway: g}, &r.Event); why != "" {
		w.t.Fatalf("a gateway may not publish this: %s", why)
	}
	w.records = append(w.records, r)
	for _, v := range w.fold.Apply(&r) {
		w.lines = append(w.lines, string(events.AppendVerdict(nil, &v)))
		own := v
		w.requests[v.Request].verdict = &own
	}
}

// request is one request of a world.
type request struct {
	w       *world
	id      events.RequestID
	gateway events.Gateway
	input   policy.Input
	plan    *policy.Plan
	attempt int64
	n       int64
	local   bool
	verdict *events.Verdict // of the newest attempt; nil while it waits
}

// send plans a request of a key, and reserves unless the gateway itself refuses.
func (w *world) send(key string, op wire.Operation, body string) *request {
	w.t.Helper()
	parsed, err := wire.Parse(op, []byte(body))
	if err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(key))
	k := w.snap.Keys[sum]
	m, refused := policy.Lookup(w.snap, k, parsed.Model)
	if refused != nil {
		w.t.Fatalf("%s may not use %s", key, parsed.Model)
	}
	w.made++
	r := &request{w: w, id: events.RequestID(fmt.Sprintf("r%d", w.made)), gateway: w.gateway, local: true}
	r.input = policy.Input{Snapshot: w.snap, Key: k, Model: m, Request: parsed, Target: policy.Target{Local: true}, Ratio: w.ratio,
		Healthy: w.healthy, Pressure: w.pressure, Settings: w.settings}
	r.plan = policy.New(&r.input)
	w.requests[r.id] = r
	if r.plan.Refusal != nil {
		d := &events.Refused{Request: r.id, Org: k.Org, Gateway: r.gateway, Key: k.ID, Model: m.ID, Operation: op.String()}
		a := refusal.OfLocal(r.plan.Refusal)
		a.Record(d)
		w.apply(r.gateway, k.Org, d)
		return r
	}
	r.reserve(r.plan.Claims, r.plan.ParkMS)
	return r
}

func (r *request) reserve(claims []events.Claim, park int64) {
	r.w.t.Helper()
	r.w.apply(r.gateway, r.org(), &events.Reserve{Request: r.id, Attempt: r.attempt, Org: r.org(), Key: r.input.Key.ID, Model: r.input.Model.ID,
		Operation: r.input.Request.Op.String(), Gateway: r.gateway, Epoch: epoch, ParkMS: park, MaxMS: r.plan.MaxMS, Estimate: r.plan.Recorded, Claims: claims})
}

func (r *request) org() events.Org { return r.input.Key.Org }

// chat sends a chat whose learned input is so many tokens. More are further fields, each with a comma behind it.
func (w *world) chat(key string, tokens int, more string) *request {
	w.t.Helper()
	return w.send(key, wire.Chat, chatBody("qwen", tokens, more))
}

// chatBody is a chat whose text has the bytes for so many tokens at the ratio that every model starts with.
func chatBody(model string, tokens int, more string) string {
	return fmt.Sprintf(`{"model":%q,%s"messages":[{"role":"user","content":%q}]}`, model, more, text(tokens))
}

// text is 3.2 bytes a token, rounded down: its estimate is exactly so many tokens.
func text(tokens int) string { return strings.Repeat("weir ", tokens*16/25+1)[:tokens*16/5] }

// grow publishes what a streaming request occupies, if it says anything new.
func (r *request) grow(exactInput, streamed int64) {
	r.w.t.Helper()
	c, ok := r.plan.Growth(exactInput, streamed)
	if !ok {
		return
	}
	r.n++
	r.w.apply(r.gateway, r.org(), &events.TrueUp{Request: r.id, Attempt: r.attempt, Gateway: r.gateway, N: r.n, Quality: events.QualityPartial, Charges: []events.Charge{c}})
}

// used publishes the upstream's own final numbers.
func (r *request) used(input, output int64) {
	r.w.t.Helper()
	u, q := r.plan.Usage(&wire.Result{Usage: wire.Usage{Input: input, Output: output}, Explicit: wire.FieldInput | wire.FieldOutput, Quality: wire.QualityExact})
	r.n++
	r.w.apply(r.gateway, r.org(), &events.TrueUp{Request: r.id, Attempt: r.attempt, Gateway: r.gateway, N: r.n, Final: true, Quality: q, Usage: u,
		Charges: r.plan.Charges(u, q, false), Train: r.local && r.plan.Trains(q)})
}

// end ends the request.
func (r *request) end(how events.Outcome) {
	r.w.t.Helper()
	dispatched := events.DispatchedYes
	if how == events.NotDispatched {
		dispatched = events.DispatchedNo
	}
	r.w.apply(r.gateway, r.org(), &events.Release{Request: r.id, Attempt: r.attempt, Gateway: r.gateway, Outcome: how, Dispatched: dispatched})
}

// leave ends the attempt at the local pool and goes on to the provider.
func (r *request) leave() {
	r.w.t.Helper()
	g := r.gateway
	r.w.apply(g, r.org(), &events.Release{Request: r.id, Attempt: r.attempt, Gateway: g, Of: events.OfLocal, Outcome: events.Failed})
	r.w.apply(g, r.org(), &events.Release{Request: r.id, Attempt: r.attempt, Gateway: g, Of: events.OfAttempt, Outcome: events.Failed, Dispatched: events.DispatchedYes})
	claims, refused := policy.AttemptClaims(&r.input, r.plan, policy.Target{Pool: "house"})
	if refused != nil {
		r.w.t.Fatalf("the provider's capacity is not known")
	}
	r.attempt, r.n, r.local, r.verdict = r.attempt+1, 0, false, nil
	r.reserve(claims, 0)
}

// admitted fails the test unless the request is.
func (r *request) admitted() *request {
	r.w.t.Helper()
	switch {
	case r.plan.Refusal != nil:
		r.w.t.Fatalf("%s is refused by its gateway: %s", r.id, r.answer().Message)
	case r.verdict == nil:
		r.w.t.Fatalf("%s waits", r.id)
	case !r.verdict.Admitted:
		r.w.t.Fatalf("%s is refused: %+v", r.id, *r.verdict.Refusal)
	}
	return r
}

// waits fails the test unless the request is parked.
func (r *request) waits() *request {
	r.w.t.Helper()
	if r.plan.Refusal != nil || r.verdict != nil {
		r.w.t.Fatalf("%s does not wait: %+v", r.id, r.verdict)
	}
	return r
}

// answer is what the client of a refused request gets.
func (r *request) answer() refusal.Answer {
	r.w.t.Helper()
	switch {
	case r.plan.Refusal != nil:
		return refusal.OfLocal(r.plan.Refusal)
	case r.verdict == nil || r.verdict.Admitted:
		r.w.t.Fatalf("%s is not refused", r.id)
	}
	return refusal.OfVerdict(r.verdict.Refusal, time.Unix(0, r.verdict.Time))
}

// refused fails the test unless the client gets just this: status and code, the kind of the limit, the Retry-After header and the message.
// An empty message is not looked at.
func (r *request) refused(status int, code, kind, retryAfter, message string) *request {
	r.w.t.Helper()
	a := r.answer()
	h := http.Header{}
	a.Headers(h)
	if a.Status != status || a.Code != code || a.Kind != kind || h.Get("Retry-After") != retryAfter || message != "" && a.Message != message {
		r.w.t.Fatalf("%s: %d %s, kind %s, retry-after %q, %q\nwant %d %s, kind %s, retry-after %q, %q", r.id,
			a.Status, a.Code, a.Kind, h.Get("Retry-After"), a.Message, status, code, kind, retryAfter, message)
	}
	return r
}

const (
	b1      = "input_too_long"
	b2      = "concurrency_limit_exceeded"
	b4      = "rate_limit_exceeded"
	full    = "server at capacity for this model, please retry"
	sharing = "per-key occupancy share exceeded, please retry"
)

// atCapacity is B2's refusal.
func (r *request) atCapacity() *request {
	r.w.t.Helper()
	return r.refused(429, b2, "occupancy", "1", full)
}

// holds fails the test unless a meter shows so much.
func (w *world) holds(meter string, want int64) {
	w.t.Helper()
	got := int64(0)
	for _, r := range w.fold.Meters() {
		if string(r.Meter) == meter {
			got = r.Used
		}
	}
	if got != want {
		w.t.Fatalf("after %s, %s shows %d, want %d", w.now, meter, got, want)
	}
}

// key names a meter of a key for the model qwen.
func (w *world) key(name, dimension string) string {
	return string(authority.KeyModel(w.snap.Keys[sha256.Sum256([]byte(name))], w.snap.Models["qwen"], dimension))
}

// keep compares the log and what it led to with the files of its name, or writes them.
func (w *world) keep(name string) {
	w.t.Helper()
	var log bytes.Buffer
	if err := scenario.WriteLog(&log, w.records); err != nil {
		w.t.Fatal(err)
	}
	lines := append([]string(nil), w.lines...)
	for _, m := range w.fold.Meters() {
		shown := map[string]any{"meter": m.Meter, "kind": m.Kind.String(), "used": m.Used}
		line, err := json.Marshal(shown)
		if err != nil {
			w.t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	expected := []byte(strings.Join(lines, "\n") + "\n")
	for file, want := range map[string][]byte{name + ".jsonl": log.Bytes(), name + ".expected": expected} {
		path := filepath.Join("..", "scenario", "testdata", file)
		if *rewrite {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				w.t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			w.t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			w.t.Errorf("%s is not what the gateway publishes now, or not what comes of it; -rewrite writes it anew: read the difference", path)
		}
	}
}

// signals are an average over a model's replicas, as upstream gives it.
func signals(s upstream.Signals) policy.Pressure {
	return policy.Pressure{KVCache: s.KV, HasKVCache: s.HasKV, Waiting: s.Waiting, HasWaiting: s.HasWaiting}
}
