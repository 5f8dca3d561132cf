package refusal_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
)

var rewrite = flag.Bool("rewrite", false, "accept what the code does now")

// at is when the verdicts of these tests fell.
var at = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// over is a refusal by the fold: over a limit of 300, of which 299 are used, 5 asked for.
func over(meter string, retryMS int64) refusal.Answer {
	return refusal.OfVerdict(&events.Refusal{Meter: events.Meter(meter), Reason: events.OverLimit, Used: 299, Limit: 300, HasLimit: true, Requested: 5, RetryMS: retryMS, HasRetry: true}, at)
}

func large(meter string) refusal.Answer {
	return refusal.OfVerdict(&events.Refusal{Meter: events.Meter(meter), Reason: events.TooLarge, Limit: 300, HasLimit: true, Requested: 500}, at)
}

func reason(r events.Reason, retryMS int64) refusal.Answer {
	return refusal.OfVerdict(&events.Refusal{Claim: -1, Reason: r, RetryMS: retryMS, HasRetry: retryMS > 0}, at)
}

const day = 12 * 3_600_000 // until the end of the day of these tests, in ms

// rows is the error table, row by row: who says no, with what, and when to try again. retry is in seconds as in retry-after, "-"
// for none; stop is x-should-retry: false.
var rows = []struct {
	name   string
	answer refusal.Answer
	status int
	code   string
	where  string // origin/scope/kind/id
	retry  string
	stop   bool
}{
	{"platform rpm", over("platform/_/rpm", 4100), 429, "rate_limit_exceeded", "gateway_admission/platform/rpm/", "5", false},
	{"org rpm", over("org/acme/rpm", 4100), 429, "rate_limit_exceeded", "gateway_admission/org/rpm/acme", "5", false},
	{"org rps", over("org/acme/rps", 20), 429, "rate_limit_exceeded", "gateway_admission/org/rps/acme", "1", false},
	{"workspace tpm", over("workspace/w/tpm", 60_000), 429, "rate_limit_exceeded", "gateway_admission/workspace/tpm/w", "60", false},
	{"a rolling minute may take 61 s", over("principal/p/tpm", 61_000), 429, "rate_limit_exceeded", "gateway_admission/principal/tpm/p", "60", false},
	{"what takes longer is not worth a wait", over("pool/house/pause", 61_001), 429, "upstream_quota_exceeded", "upstream_quota/pool/cooldown/house", "62", true},
	{"key concurrency", over("key/k-1/concurrency", 1000), 429, "rate_limit_exceeded", "gateway_admission/key/concurrency/k-1", "1", false},
	{"model rpm", over("model/acme.Qwen=2FQ3/rpm", 1), 429, "rate_limit_exceeded", "gateway_admission/model/rpm/Qwen/Q3", "1", false},
	{"tpm that never fits", large("org/acme/tpm"), 429, "rate_limit_exceeded", "gateway_admission/org/tpm/acme", "-", true},
	{"endpoint rpm", over("endpoint/m/rpm", 900), 429, "rate_limit_exceeded", "gateway_admission/endpoint/rpm/m", "1", false},
	{"paced queue full", over("endpoint/m/pace", 250), 429, "rate_limit_exceeded", "gateway_admission/model/rps_queue/m", "1", false},
	{"B1 input", refusal.OfLocal(&policy.Local{Cause: policy.InputTooLong, Model: "m", Requested: 140_000, Limit: 131_072}), 400, "input_too_long", "gateway_admission/model/input/m", "-", true},
	{"B1 images", refusal.OfLocal(&policy.Local{Cause: policy.TooManyImages, Model: "m", Requested: 9, Limit: 8}), 400, "input_too_long", "gateway_admission/model/images/m", "-", true},
	{"B2 occupancy", over("model/m/occupancy", 1000), 429, "concurrency_limit_exceeded", "gateway_admission/model/occupancy/m", "1", false},
	{"B2 occupancy, too large", large("model/m/occupancy"), 429, "concurrency_limit_exceeded", "gateway_admission/model/occupancy/m", "-", true},
	{"B2 inflight", over("model/m/inflight", 1000), 429, "concurrency_limit_exceeded", "gateway_admission/model/inflight/m", "1", false},
	{"B3", refusal.OfLocal(&policy.Local{Cause: policy.UnderPressure, Model: "m"}), 429, "concurrency_limit_exceeded", "gateway_admission/model/pressure/m", "1", false},
	{"B4 share", over("key/k-1.m/occupancy", 1000), 429, "rate_limit_exceeded", "gateway_admission/key/occupancy/k-1", "1", false},
	{"B4 share, too large", large("key/k-1.m/occupancy"), 429, "rate_limit_exceeded", "gateway_admission/key/occupancy/k-1", "1", true}, // all of B4 has the header
	{"B4 itpm, too large", large("key/k-1.m/itpm"), 429, "rate_limit_exceeded", "gateway_admission/key/itpm/k-1", "1", true},
	{"B4 itpm", over("key/k-1.m/itpm", 42_000), 429, "rate_limit_exceeded", "gateway_admission/key/itpm/k-1", "1", false},
	{"B4 otpm", over("key/k-1.m/otpm", 30_000), 429, "rate_limit_exceeded", "gateway_admission/key/otpm/k-1", "1", false},
	{"daily of an org", over("org/acme/daily", day), 429, "token_limit_exceeded", "gateway_admission/org/daily/acme", "43200", true},
	{"daily of a key", over("key/k-1/daily", 30_000), 429, "token_limit_exceeded", "gateway_admission/key/daily/k-1", "30", true},
	{"daily that never fits", large("org/acme/daily"), 429, "token_limit_exceeded", "gateway_admission/org/daily/acme", "-", true},
	{"spend cap", over("org/acme/spend-day", day), 429, "spend_limit_exceeded", "gateway_admission/org/spend/acme", "43200", true},
	{"spend cap of a workspace", over("workspace/w/spend-month", day), 429, "spend_limit_exceeded", "gateway_admission/workspace/spend/w", "43200", true},
	{"balance", refusal.OfVerdict(&events.Refusal{Meter: "org/acme/balance", Reason: events.NoBalance, Requested: 5}, at), 429, "insufficient_balance", "gateway_admission/org/spend/acme", "-", true},
	{"pool rpm", over("pool/house/rpm", 2500), 429, "upstream_quota_exceeded", "upstream_quota/pool/rpm/house", "3", false},
	{"pool tpm", over("pool/house/tpm", 2500), 429, "upstream_quota_exceeded", "upstream_quota/pool/tpm/house", "3", false},
	{"pool concurrency", over("pool/house/concurrency", 1000), 429, "upstream_quota_exceeded", "upstream_quota/pool/concurrency/house", "1", false},
	{"fair share", over("pool/house.acme/tpm", 2500), 429, "upstream_quota_exceeded", "upstream_quota/pool/fairness/house", "3", false},
	{"pause", refusal.OfVerdict(&events.Refusal{Meter: "pool/house/pause", Reason: events.Paused, Used: 7300, RetryMS: 7300, HasRetry: true}, at), 429, "upstream_quota_exceeded", "upstream_quota/pool/cooldown/house", "8", false},
	{"provider route without a pool", refusal.OfLocal(&policy.Local{Cause: policy.CapacityUnknown, Model: "m"}), 503, "capacity_unknown", "upstream_quota/pool/capacity_unknown/", "-", true},
	{"requests in hand", refusal.For(refusal.Overloaded, "full"), 503, "overloaded", "gateway_admission/worker/health/", "1", false},
	{"no healthy replica", refusal.ForModel(refusal.NoCapacity, "m", "none"), 503, "no_capacity", "upstream/model//m", "1", false},
	{"upstream time-out", refusal.ForModel(refusal.TimedOut, "m", "late"), 504, "request_timeout", "upstream/model//m", "1", false},
	{"log out of reach", refusal.OfLog("the log is out of reach", 0), 503, "gateway_infrastructure", "gateway_infrastructure///", "1", false},
	{"log back at a known time", refusal.OfLog("the log is out of reach", 4500), 503, "gateway_infrastructure", "gateway_infrastructure///", "5", false},
	{"recovering", reason(events.Recovering, 12_000), 503, "gateway_infrastructure", "gateway_infrastructure///", "12", false},
	{"released before", reason(events.Released, 0), 503, "gateway_infrastructure", "gateway_infrastructure///", "1", false},
	{"invalid claims", reason(events.Invalid, 0), 503, "gateway_infrastructure", "gateway_infrastructure///", "-", true},
	{"stale fence", reason(events.StaleFence, 0), 503, "authorization_unavailable", "authorization///", "1", false},
	{"snapshot expired", refusal.For(refusal.AuthorizationUnavailable, "expired"), 503, "authorization_unavailable", "authorization///", "1", false},
	{"no key", refusal.OfKey(authority.DeniedMissing), 401, "unauthorized", "authorization///", "-", true},
	{"bad key", refusal.OfKey(authority.DeniedUnknown), 401, "unauthorized", "authorization///", "-", true},
	{"expired key", refusal.OfKey(authority.DeniedExpired), 401, "unauthorized", "authorization///", "-", true},
	{"model not allowed", refusal.OfLocal(&policy.Local{Cause: policy.UnknownModel, Model: "m"}), 404, "model_not_found", "authorization///", "-", true},
	{"another org's generation", refusal.For(refusal.GenerationNotFound, "no such generation"), 404, "generation_not_found", "authorization///", "-", true},
	{"no price", refusal.OfLocal(&policy.Local{Cause: policy.NoPrice, Model: "m"}), 503, "price_unknown", "gateway_admission/model/spend/m", "-", true},
	{"another format", refusal.OfLocal(&policy.Local{Cause: policy.UnsupportedEndpoint, Model: "m"}), 400, "unsupported_endpoint", "///", "-", true},
	{"background", refusal.OfLocal(&policy.Local{Cause: policy.Background, Param: "background"}), 400, "invalid_parameter", "///", "-", true},
	{"bad field", refusal.OfLocal(&policy.Local{Cause: policy.BadField, Param: "max_tokens", Message: "max_tokens is 9: it must be at most 8", Code: "invalid_parameter"}), 400, "invalid_parameter", "///", "-", true},
	{"malformed body", refusal.OfField(&wire.BadRequest{Message: "the body is not valid JSON", Code: wire.CodeMalformed}), 400, "request_invalid", "///", "-", true},
	{"body too large", refusal.For(refusal.BodyTooLarge, "50 MB"), 413, "request_too_large", "///", "-", true},
	{"no such path", refusal.For(refusal.NotFound, "there is no /v2"), 404, "not_found", "///", "-", true},
	{"wrong method", refusal.For(refusal.MethodNotAllowed, "GET"), 405, "method_not_allowed", "///", "-", true},
	{"provider's 429", refusal.OfUpstream(429, "rate_limit_exceeded", "slow down", "m", 7000), 429, "rate_limit_exceeded", "upstream/model//m", "7", false},
	{"provider's 400", refusal.OfUpstream(400, "invalid", "no", "m", 0), 400, "invalid", "upstream/model//m", "-", true},
	{"provider's 500", refusal.OfUpstream(500, "", "oops", "m", 0), 500, "", "upstream/model//m", "-", false},
	{"a meter that no gate has", over("thing/x/other", 1000), 503, "gateway_infrastructure", "gateway_infrastructure/thing/other/x", "1", false},
}

func TestTheTable(t *testing.T) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			a := row.answer
			h := http.Header{}
			a.Headers(h)
			if a.Status != row.status || a.Code != row.code {
				t.Errorf("%d %s, want %d %s", a.Status, a.Code, row.status, row.code)
			}
			where := strings.Join([]string{h.Get("x-tm-error-origin"), h.Get("x-tm-limit-scope"), h.Get("x-tm-limit-kind"), h.Get("x-tm-limit-id")}, "/")
			if where != row.where {
				t.Errorf("headers say %s, want %s", where, row.where)
			}
			retry := h.Get("retry-after")
			if retry == "" {
				retry = "-"
			}
			if retry != row.retry || (h.Get("retry-after-ms") == "") != (row.retry == "-") {
				t.Errorf("retry-after %s (%q ms), want %s", retry, h.Get("retry-after-ms"), row.retry)
			}
			if stop := h.Get("x-should-retry") == "false"; stop != row.stop {
				t.Errorf("x-should-retry %q, want false: %v", h.Get("x-should-retry"), row.stop)
			}
			if a.Message == "" {
				t.Error("no message")
			}
			if got := h.Get("www-authenticate") != ""; got != (row.status == 401) {
				t.Errorf("www-authenticate %v", got)
			}
			if !strings.Contains(h.Get("access-control-expose-headers"), "x-tm-limit-kind") {
				t.Error("headers are not exposed")
			}
		})
	}
}

// TestBodies holds every body, in both formats, against a file that a person can read.
func TestBodies(t *testing.T) {
	var b strings.Builder
	for _, row := range rows {
		a := row.answer
		fmt.Fprintf(&b, "%s\n  openai    %s\n  anthropic %s\n", row.name, a.Body(wire.OpenAI, "r-1"), a.Body(wire.Anthropic, "r-1"))
		for _, f := range []wire.Format{wire.OpenAI, wire.Anthropic} {
			if !json.Valid(a.Body(f, "r-1")) {
				t.Errorf("%s: not JSON: %s", row.name, a.Body(f, "r-1"))
			}
		}
	}
	const file = "testdata/bodies.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestSentences are the messages that clients of such routers know, to the letter.
func TestSentences(t *testing.T) {
	for message, a := range map[string]refusal.Answer{
		"input is 140000 tokens, over the model limit of 131072":                                            refusal.OfLocal(&policy.Local{Cause: policy.InputTooLong, Requested: 140_000, Limit: 131_072}),
		"request carries 9 images, over the model limit of 8":                                               refusal.OfLocal(&policy.Local{Cause: policy.TooManyImages, Requested: 9, Limit: 8}),
		"server at capacity for this model, please retry":                                                   over("model/m/occupancy", 1000),
		"model is under high load, please retry":                                                            refusal.OfLocal(&policy.Local{Cause: policy.UnderPressure}),
		"per-key occupancy share exceeded, please retry":                                                    over("key/k.m/occupancy", 1000),
		"input token rate exceeded, please retry":                                                           over("key/k.m/itpm", 1000),
		"output token rate exceeded, please retry":                                                          over("key/k.m/otpm", 1000),
		"insufficient daily token budget for requested max_tokens":                                          over("org/o/daily", 1000),
		"request needs 500 tokens, over this key's share of the model, 300":                                 large("key/k.m/occupancy"),
		"request is 500 input tokens, over this key's rate of 300 a minute":                                 large("key/k.m/itpm"),
		"request needs 500 tokens, over the model's capacity of 300":                                        large("model/m/occupancy"),
		"rate limit reached: 300 requests a minute of org acme, of which 299 are used and 5 more asked for": over("org/acme/rpm", 1000),
	} {
		if a.Message != message {
			t.Errorf("%q, want %q", a.Message, message)
		}
	}
	if a := over("model/m/inflight", 1000); a.Message != "server at capacity for this model, please retry" {
		t.Error(a.Message)
	}
}

func TestTheFoldsTimeStandsInTheMetadata(t *testing.T) {
	a := over("key/k.m/itpm", 42_000)
	body := string(a.Body(wire.OpenAI, ""))
	if !strings.Contains(body, `"retryable":true,"retry_after_ms":42000,"resets_at":"2026-11-30T12:00:42.000Z"`) {
		t.Error(body)
	}
	a = over("org/acme/spend-day", day)
	if body = string(a.Body(wire.OpenAI, "")); !strings.Contains(body, `"retryable":false,"retry_after_ms":43200000,"resets_at":"2026-12-01T00:00:00.000Z"`) {
		t.Error(body)
	}
}

func TestRecord(t *testing.T) {
	var r events.Refused
	a := over("org/acme/rpm", 4100)
	a.Record(&r)
	limit := int64(300)
	want := events.Refused{Gate: "limits", Origin: "gateway_admission", Scope: "org", LimitKind: "rpm", LimitID: "acme", Limit: &limit, Used: 299,
		Requested: 5, Status: 429, Code: "rate_limit_exceeded", Message: a.Message, RetryAt: "2026-11-30T12:00:04.1Z"}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	var bare events.Refused
	a = refusal.For(refusal.Overloaded, "full")
	if a.Record(&bare); bare.Gate != "overloaded" || bare.Limit != nil || bare.RetryAt != "" {
		t.Errorf("%+v", bare)
	}
}

func TestEvents(t *testing.T) {
	a := over("org/acme/rpm", 4100)
	if got := a.Event(wire.Chat, "r-1", 0); !bytes.HasPrefix(got, []byte(`data: {"error":{`)) {
		t.Errorf("%s", got)
	}
	if got := a.Event(wire.Messages, "r-1", 0); !bytes.HasPrefix(got, []byte("event: error\ndata: {\"type\":\"error\"")) {
		t.Errorf("%s", got)
	}
	if got := a.Event(wire.Responses, "r-1", 7); !bytes.Contains(got, []byte(`"sequence_number":7`)) {
		t.Errorf("%s", got)
	}
}

func TestHeadersTakeAnyBytes(t *testing.T) {
	a := refusal.For(refusal.Overloaded, "x")
	a.LimitID = "modèle\r\nx: y"
	h := http.Header{}
	a.Headers(h)
	if got := h.Get("x-tm-limit-id"); got != "mod%C3%A8le%0D%0Ax: y" {
		t.Error(got)
	}
	long := refusal.OfLocal(&policy.Local{Cause: policy.UnknownModel, Model: strings.Repeat("é", 300)})
	if len(long.Message) > 250 || !json.Valid(long.Body(wire.OpenAI, "")) {
		t.Errorf("a message of %d bytes", len(long.Message))
	}
}

// claimsOf are claims as a plan makes them, with what a verdict says is used of each.
func claimsOf() ([]events.Claim, []int64) {
	window := func(meter string, limit int64) events.Claim {
		return events.Claim{Meter: events.Meter(meter), Kind: events.Window, WindowMS: 60_000, Limit: limit, HasLimit: true}
	}
	bucket := func(meter string, limit int64) events.Claim {
		return events.Claim{Meter: events.Meter(meter), Kind: events.Bucket, Limit: limit, HasLimit: true}
	}
	shadow := window("org/acme.x/rpm", 5)
	shadow.Shadow = true
	return []events.Claim{
		window("platform/_/rpm", 5000), window("org/acme/rpm", 300), window("key/k/rpm", 50), shadow, {Meter: "org/acme/concurrency", Kind: events.Gauge, Limit: 8, HasLimit: true},
		window("org/acme/tpm", 1_000_000), window("key/k/tpm", 200_000), bucket("key/k.m/itpm", 60_000), bucket("key/k.m/otpm", 1000),
		{Meter: "endpoint/m/pace", Kind: events.Pace, Limit: 4, HasLimit: true},
	}, []int64{4000, 299, 10, 9, 1, 0, 150_000, 30_000, 1500, 0}
}

func headers(h http.Header) string {
	var lines []string
	for name := range h {
		if n := strings.ToLower(name); n != "access-control-expose-headers" {
			lines = append(lines, n+": "+h.Get(name))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func TestAdmittedHeaders(t *testing.T) {
	claims, used := claimsOf()
	v := &events.Verdict{Time: at.UnixNano(), Admitted: true, Used: used, WaitMS: 120}
	h := http.Header{}
	refusal.Admitted(h, wire.OpenAI, claims, v)
	want := `x-ratelimit-limit-requests: 300
x-ratelimit-limit-tokens: 200000
x-ratelimit-remaining-requests: 1
x-ratelimit-remaining-tokens: 50000
x-ratelimit-reset-requests: 1m0s
x-ratelimit-reset-tokens: 1m0s
x-tm-queue-ms: 120
x-tm-remaining-rpm: 1
x-tm-remaining-tpm: 50000`
	if got := headers(h); got != want {
		t.Errorf("openai:\n%s", got)
	}
	h = http.Header{}
	refusal.Admitted(h, wire.Anthropic, claims[:9], &events.Verdict{Time: at.UnixNano(), Admitted: true, Used: used[:9]})
	want = `anthropic-ratelimit-input-tokens-limit: 60000
anthropic-ratelimit-input-tokens-remaining: 30000
anthropic-ratelimit-input-tokens-reset: 2026-11-30T12:00:30Z
anthropic-ratelimit-output-tokens-limit: 1000
anthropic-ratelimit-output-tokens-remaining: 0
anthropic-ratelimit-output-tokens-reset: 2026-11-30T12:01:30Z
anthropic-ratelimit-requests-limit: 300
anthropic-ratelimit-requests-remaining: 1
anthropic-ratelimit-requests-reset: 2026-11-30T12:01:00Z
anthropic-ratelimit-tokens-limit: 200000
anthropic-ratelimit-tokens-remaining: 50000
anthropic-ratelimit-tokens-reset: 2026-11-30T12:01:00Z
x-tm-remaining-rpm: 1
x-tm-remaining-tpm: 50000`
	if got := headers(h); got != want {
		t.Errorf("anthropic:\n%s", got)
	}
}

func TestEveryHeaderIsExposed(t *testing.T) {
	exposed := map[string]bool{}
	for _, name := range strings.Split(refusal.ExposedHeaders, ", ") {
		exposed[name] = true
	}
	claims, used := claimsOf()
	h := http.Header{}
	for _, f := range []wire.Format{wire.OpenAI, wire.Anthropic} {
		refusal.Admitted(h, f, claims, &events.Verdict{Used: used})
	}
	for _, row := range rows {
		row.answer.Headers(h)
	}
	for name := range h {
		if n := strings.ToLower(name); !exposed[n] && n != "access-control-expose-headers" && n != "www-authenticate" {
			t.Errorf("%s is not exposed", n)
		}
	}
}

func TestNothingUsedNothingSaid(t *testing.T) {
	claims, _ := claimsOf()
	h := http.Header{}
	refusal.Remaining(h, wire.OpenAI, claims, nil, at)
	refusal.Remaining(h, wire.OpenAI, nil, nil, at)
	if len(h) != 0 {
		t.Errorf("headers %v", h)
	}
}

// TestEveryGateHasARow holds the table against the meters that plans use.
func TestEveryGateHasARow(t *testing.T) {
	for _, g := range []gate.Gate{gate.Limits, gate.Pace, gate.B1, gate.B2, gate.B3, gate.B4, gate.Daily,
		gate.Spend, gate.Balance, gate.Pool, gate.Fairness, gate.Pause} {
		found := false
		for _, row := range rows {
			found = found || row.answer.Gate == g
		}
		if !found {
			t.Errorf("no row of the test has gate %q", g)
		}
	}
}
