package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// proofs says which test proves each sentence about limits, pools, settlement and errors: a folder and a test in it, and of tests that
// hold many sentences the one that is meant. "scenario NAME" is a case of test/scenario, which both folds play.
var proofs = []struct{ sentence, folder, test, part string }{
	// Manage limits.
	{"gateway limits overlap; the strictest that applies wins", ".", "TestScopesTogether", "the strictest limit that applies wins"},
	{"the limits API takes a session cookie, JSON and the same origin; inference keys cannot call it; owners and admins write, viewers read", "../../gateway/manage", "TestSessions", ""},
	{"writes are protected against other origins", "../../gateway/manage", "TestOtherOrigins", ""},
	{"GET and POST /api/admission-limits: lists every scope; replaces one scope's limits; null inherits", "../../gateway/manage", "TestLimits", ""},
	{"the rule of every field: scope, subject, rpm, tpm, concurrency, outage_mode", "../../gateway/manage", "TestWhatALimitMustBe", ""},
	{"the newest 100 pools are listed", "../../gateway/manage", "TestTheNewest100Pools", ""},
	{"pools are created, read and replaced", "../../gateway/manage", "TestPools", ""},
	{"a closed outage mode at any scope that applies wins", "../../gateway/authority", "TestOutageModeClosedAtAnyScopeWins", ""},
	{"a key's original RPM ceiling still applies: a larger limit does not raise it", "../../gateway/authority", "TestEffectiveLimits", ""},

	// Defaults.
	{"defaults of org, workspace, principal and key; none of a model", "../../gateway/authority", "TestEffectiveLimits", ""},
	{"until an org adds credit, it and each of its keys are held to 20 RPM", "../../gateway/manage", "TestCredits", ""},
	{"an override replaces the defaults and the keys' ceiling, may add a limit a second, and replaces the hold; own limits only lower it", "../../gateway/manage", "TestOverrides", ""},
	{"traffic to a dedicated endpoint keeps the endpoint's own limits", "../../gateway/policy", "TestClaims", ""},

	// Declare provider account capacity.
	{"fractional limits round down, with a minimum of one unit", "../../gateway/authority", "TestUsable", ""},
	{"a parent is of the same org and provider; four levels; no cycles", "../../gateway/authority", "TestPoolFaults", ""},
	{"an update replaces the limits and the parent", "../../gateway/manage", "TestPools", ""},
	{"a connection is bound to a pool of its provider", "../../gateway/manage", "TestBindAConnection", ""},
	{"an own account serves its org by its own key and within its own pool", ".", "TestAccountsOfOnesOwn", "an org with its own account is served there"},
	{"an account that is bound to another pool is claimed there by every gateway from the next reserve on", "../e2e", "TestReboundAccount", ""},
	{"azure: deployment path, api-version, api-key; streams and errors", "../e2e", "TestClouds", ""},
	{"bedrock: signature, framed streams, errors", "../e2e", "TestClouds", ""},
	{"parent and child claims are checked together", "../scenario", "scenario all-or-nothing", ""},
	{"a route with no declared pool is 503, capacity_unknown", ".", "TestAccountsOfOnesOwn", "a route with no declared pool is unavailable"},
	{"a provider 429 pauses the leaf for its retry-after, on all gateways", ".", "TestScopesTogether", "a provider 429 pauses the leaf pool"},
	{"a pause lasts from 1 to 60 s", "../scenario", "scenario pause-fence-recover", ""},
	{"an error of unknown scope does not mark the provider as down", ".", "TestScopesTogether", "an error of unknown scope"},
	{"limits are shared by all gateways: concurrency, pools, balance and caps are never passed", "../gates", "TestNoLimitIsPassedByACrowd", ""},
	{"an org has at most its share of a house pool, one unit at least; half, and 75 % of the decision pools", "../../gateway/authority", "TestPools", ""},

	// Counting and token estimates.
	{"gateway RPM once a request, upstream RPM and tokens each attempt", ".", "TestCountingAndSettlement", "one admitted logical request uses gateway RPM once"},
	{"sent is not refunded; proven not dispatched releases the provider claim", ".", "TestCountingAndSettlement", "a request proven not dispatched"},
	{"what counts as not dispatched", "../../gateway/relay", "TestNothingWasSent", ""},
	{"concurrency uses renewable 10-second leases", "../scenario", "scenario leases", ""},
	{"a gateway that is killed frees its places within its lease", "../e2e", "TestKilledGateway", ""},
	{"the input reservation: bytes, images, base64", ".", "TestCountingAndSettlement", "the input reservation is the UTF-8 byte size"},
	{"the output bound: the model's own maximum, or 32,768, written in, and lowered to the context window", ".", "TestCountingAndSettlement", "a request without an output limit gets"},
	{"the token estimate counts at most 32,768 of the output limit", ".", "TestCountingAndSettlement", "the token estimate counts at most 32,768"},
	{"the balance hold counts all of a limit that is sent, and at most 32,768 of the default", "../../gateway/policy", "TestHold", ""},
	{"a larger or conflicting output limit returns 400", ".", "TestCountingAndSettlement", "a larger or conflicting output limit"},
	{"observed usage replaces the estimate; cache and reasoning are not counted twice", ".", "TestCountingAndSettlement", "observed usage of a completed attempt"},
	{"every provider's shape of usage comes to the same", "../../gateway/openai", "TestStreams", ""},
	{"cancelled, incomplete, unknown or estimated usage keeps its reservation", "../scenario", "scenario inexact-only-raises", ""},
	{"a stream that was cut keeps its reservation", ".", "TestCountingAndSettlement", "incomplete usage keeps its reservation"},
	{"a charge can stay for up to 61 seconds", "../scenario", "scenario window-rolls", ""},
	{"token counting shares the limits, reserves input, debits nothing, and answers input_tokens alone", ".", "TestCountingAndSettlement", "Anthropic token counting"},
	{"a stream that was cut is billed by the best estimate, or never", ".", "TestEstimatesAreBilledOrNot", ""},
	{"a spend cap counts what is billed", ".", "TestCountingAndSettlement", "a spend cap counts what is billed"},
	{"the cost is exact, and rounded up once", "../../gateway/policy", "TestCostIsExact", ""},
	{"a request is settled at the price of its reserve", "../../gateway/policy", "TestAPriceBegins", ""},
	{"credits less debits less holds is what is available", "../scenario", "scenario balance-and-holds", ""},
	{"lines, meters and debits come to the same tokens and money over random lives of requests", "../../projections/usage", "TestConservation", ""},

	// Inspect limits and errors.
	{"GET /v1/limits: effective limits, and every field of the bound", ".", "TestInspectLimitsAndErrors", "/v1/limits returns the effective limits"},
	{"a dedicated endpoint's default output is capped and reported so", ".", "TestInspectLimitsAndErrors", "on a dedicated endpoint"},
	{"x-tm-remaining-rpm and x-tm-remaining-tpm: the lowest of the claimed scopes", ".", "TestInspectLimitsAndErrors", "a successful admission returns"},
	{"x-tm-queue-ms on a paced endpoint", ".", "TestInspectLimitsAndErrors", "on a paced endpoint"},
	{"statuses, metadata and headers that scripts may read, in either format, by the SDKs", ".", "TestInspectLimitsAndErrors", "failures keep SDK-compatible statuses"},
	{"every row of the table of errors: status, code, origin, scope, kind, retry", "../../gateway/refusal", "TestTheTable", ""},
	{"every header is exposed", "../../gateway/refusal", "TestEveryHeaderIsExposed", ""},
	{"refusals after authentication are recorded, also without an attempt", ".", "TestInspectLimitsAndErrors", "refusals after authentication are recorded"},
	{"each attempt includes its receipt and error origin", ".", "TestInspectLimitsAndErrors", "each attempt includes its receipt"},
	{"authority that is invalid: 401 and 404", ".", "TestInspectLimitsAndErrors", "authorization: a bad key"},

	// Workspace and principal scopes.
	{"workspace and principal limits add up across the keys bound to them", ".", "TestScopesTogether", "workspace limits add up"},
	{"they are claimed in the same atomic step as all others", ".", "TestScopesTogether", "platform, org, workspace, principal, key"},
	{"bindings come from server-managed keys, never from headers", ".", "TestScopesTogether", "bindings come from server-managed keys"},
}

// TestEverySentenceHasItsProof holds the list against the tests that there are.
func TestEverySentenceHasItsProof(t *testing.T) {
	texts := map[string]string{}
	for _, p := range proofs {
		if name, is := strings.CutPrefix(p.test, "scenario "); is {
			if _, err := os.Stat(filepath.Join(p.folder, "testdata", name+".jsonl")); err != nil {
				t.Errorf("%s: %v", p.sentence, err)
			}
			continue
		}
		if texts[p.folder] == "" {
			texts[p.folder] = testsIn(t, p.folder)
		}
		if !regexp.MustCompile(`(?m)^func ` + p.test + `\(`).MatchString(texts[p.folder]) {
			t.Errorf("%s: there is no %s in %s", p.sentence, p.test, p.folder)
		}
		if p.part != "" && !strings.Contains(texts[p.folder], `{"`+p.part) {
			t.Errorf("%s: %s has no %q", p.sentence, p.test, p.part)
		}
	}
}

// testsIn is the text of a folder's tests, but for this file's.
func testsIn(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		if filepath.Base(f) == "rate_limits_table_test.go" {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
