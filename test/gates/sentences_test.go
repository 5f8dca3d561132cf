package gates

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/upstream"
	"github.com/weirhq/weir/gateway/wire"
)

// sentences are the scenarios: a name, the sentence of the specification, what the world is made of, and what happens in it.
var sentences = []struct {
	name, sentence string
	setup          setup
	play           func(*world)
}{
	{
		"order-limits-b1-b3-b2-b4-daily",
		"After authentication and the request-per-minute check, the handler evaluates B1, B3, B2, B4, daily.",
		setup{
			policy: "mode: serverless\nmax_input_tokens: 1000\nadmit_budget_tokens: 1000\nshed_if: {waiting_requests: {gt: 20}}",
			keys:   map[string]string{"alice": "max_occupancy_share: 0.5, quota: {requests_per_minute: 6, tokens_per_day: 300, input_tokens_per_minute: 1000}"},
		},
		func(w *world) {
			w.settings.ParkMS = 0
			first := w.chat("alice", 200, "")
			first.admitted() // 200 tokens of 900, of a share of 500, of itpm 1000, of 300 a day
			w.pressure.HasWaiting, w.pressure.Waiting = true, 30
			w.chat("alice", 1001, `"max_tokens":800,`).refused(400, b1, "input", "", "input is 1001 tokens, over the model limit of 1000") // every gate is over: B1 says it
			w.chat("alice", 999, `"max_tokens":800,`).refused(429, b2, "pressure", "1", "model is under high load, please retry")          // then B3
			w.pressure.Waiting = 0
			w.chat("alice", 800, `"max_tokens":50,`).atCapacity()                                               // then B2
			w.chat("alice", 350, `"max_tokens":50,`).refused(429, b4, "occupancy", "1", sharing)                // then B4's share
			w.chat("alice", 150, `"max_tokens":10,`).refused(429, "token_limit_exceeded", "daily", "50400", "") // then daily
			w.holds("model/qwen/occupancy", 200)
			first.end(events.Completed)
			for range 5 {
				w.chat("alice", 1, "").admitted().end(events.Completed)
			}
			w.chat("alice", 999, `"max_tokens":8000,`).refused(429, b4, "rpm", "60", "") // before B2, B4 and daily
		},
	},
	{
		"order-a-later-refusal-leaves-nothing-reserved",
		"If a later check rejects the request, every occupancy reservation already taken is released.",
		setup{
			policy: "mode: serverless\nadmit_budget_tokens: 1000\nmax_inflight: 4",
			keys:   map[string]string{"alice": "max_occupancy_share: 1, quota: {tokens_per_day: 100, input_tokens_per_minute: 1000}"},
		},
		func(w *world) {
			w.chat("alice", 90, `"max_tokens":11,`).refused(429, "token_limit_exceeded", "daily", "", "")
			w.holds("model/qwen/occupancy", 0)
			w.holds("model/qwen/inflight", 0)
			w.holds(w.key("alice", "occupancy"), 0)
			w.holds(w.key("alice", "itpm"), 0)
			w.chat("alice", 90, `"max_tokens":10,`).admitted()
		},
	},
	{
		"exempt-count-tokens-embeddings-rerank",
		"count_tokens is deliberately exempt: it skips the caps, the shed, the budgets, the token rates and the daily budget. It remains protected by the request-per-minute limiter. Embedding and reranking requests are also exempt.",
		setup{
			policy: "mode: serverless\nmax_input_tokens: 10\nadmit_budget_tokens: 10\nmax_inflight: 1\nshed_if: {waiting_requests: {gt: 20}}",
			keys:   map[string]string{"alice": "max_occupancy_share: 1, quota: {requests_per_minute: 4, tokens_per_day: 10, input_tokens_per_minute: 10, output_tokens_per_minute: 10}"},
		},
		func(w *world) {
			w.chat("alice", 5, "").admitted()
			w.pressure.HasWaiting, w.pressure.Waiting = true, 30
			w.send("alice", wire.CountTokens, chatBody("qwen", 5000, "")).admitted()
			w.send("alice", wire.Embeddings, `{"model":"qwen","input":"`+text(5000)+`"}`).admitted()
			w.send("alice", wire.Rerank, `{"model":"qwen","query":"weir","documents":["`+text(5000)+`"]}`).admitted()
			w.holds("model/qwen/occupancy", 5)
			w.holds("org/alice/daily", 5)
			w.send("alice", wire.CountTokens, chatBody("qwen", 1, "")).refused(429, b4, "rpm", "60", "")
		},
	},
	{
		"policy-omitted-or-zero-limits-check-nothing",
		"All four numeric limits are optional. 0 or an omitted field disables that check.",
		setup{policy: "max_input_tokens: 0\nimages_max: 0\nadmit_budget_tokens: 0\nmax_inflight: 0"},
		func(w *world) {
			for _, model := range []string{"qwen", "other"} { // zero, and omitted
				r := w.send("alice", wire.Chat, chatBody(model, 2_000_000, `"max_tokens":9000000,`)).admitted()
				if len(r.plan.Claims) != 0 {
					w.t.Errorf("%s: %d claims", model, len(r.plan.Claims))
				}
			}
		},
	},
	{
		"estimate-one-for-every-gate",
		"The router computes one prompt estimate and uses it consistently for B1, occupancy admission, input tokens per minute and daily input admission.",
		setup{
			policy: "mode: serverless\nmax_input_tokens: 5000\nadmit_budget_tokens: 100000",
			keys:   map[string]string{"alice": "max_occupancy_share: 1, quota: {tokens_per_day: 100000, input_tokens_per_minute: 50000}"},
		},
		func(w *world) {
			const tool = `{"type":"function","function":{"name":"look_up","description":"Finds a weir.","parameters":{"type":"object"}}}`
			body := fmt.Sprintf(`{"model":"qwen","tools":[%s],"messages":[{"role":"system","content":%q},{"role":"user","content":[{"type":"text","text":%q}]},{"role":"user","content":""}]}`, tool, text(100), text(200))
			r := w.send("alice", wire.Chat, body).admitted()
			const bytes = int64(len(tool)+2) + 960          // the schemas as they stand, brackets included
			tokens := (bytes*312_500 + 999_999) / 1_000_000 // 3.2 bytes a token, rounded up
			for _, meter := range []string{"model/qwen/occupancy", w.key("alice", "occupancy"), w.key("alice", "itpm"), "org/alice/daily"} {
				w.holds(meter, tokens)
			}
			r.end(events.Completed)
			w.ratio = 1_000_000 // learned meanwhile: a token a byte
			w.chat("alice", 1600, "").refused(400, b1, "input", "", "input is 5120 tokens, over the model limit of 5000")
			w.send("alice", wire.Chat, body).admitted()
			w.holds("model/qwen/occupancy", bytes)
		},
	},
	{
		"estimate-a-small-overhead-for-each-message",
		"The estimate includes a small per-message overhead, including for textless messages.",
		setup{policy: "admit_budget_tokens: 1000"},
		func(w *world) {
			w.send("alice", wire.Chat, `{"model":"qwen","messages":[{"role":"user","content":""},{"role":"user","content":"hi"},{"role":"user","content":""}]}`).admitted()
			w.holds("model/qwen/occupancy", 12)
			w.send("alice", wire.Messages, `{"model":"qwen","max_tokens":8,"system":[{"type":"text","text":"`+text(20)+`"}],"messages":[{"role":"user","content":"`+text(30)+`"}]}`).admitted()
			w.holds("model/qwen/occupancy", 12+50+8)
		},
	},
	{
		"estimate-images-are-counted-apart-and-trued-up",
		"Image content is not byte-estimable; images are counted through images_max. Image-bearing requests still receive an exact occupancy true-up, but they are not used to train the text ratio.",
		setup{policy: "admit_budget_tokens: 10000\nimages_max: 2"},
		func(w *world) {
			const image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="}}`
			body := func(images int) string {
				parts := `{"type":"text","text":"` + text(100) + `"}`
				for range images {
					parts += "," + image
				}
				return `{"model":"qwen","max_tokens":50,"messages":[{"role":"user","content":[` + parts + `]}]}`
			}
			r := w.send("alice", wire.Chat, body(2)).admitted()
			w.holds("model/qwen/occupancy", 150)
			r.used(1700, 20)
			w.holds("model/qwen/occupancy", 1750)
			if train := w.records[len(w.records)-1].Data.(*events.TrueUp).Train; train {
				w.t.Error("the ratio of text learns from images")
			}
			w.send("alice", wire.Chat, body(3)).refused(400, b1, "images", "", "request carries 3 images, over the model limit of 2")
			w.send("alice", wire.Messages, `{"model":"qwen","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://a/b"}},
				{"type":"image","source":{"type":"url","url":"https://a/c"}},{"type":"image","source":{"type":"url","url":"https://a/d"}}]}]}`).refused(400, b1, "images", "", "")
		},
	},
	{
		"b1-input-and-images-independently",
		"The router checks the learned input estimate and image count independently. A breach returns HTTP 400 with input_too_long. Reducing only max_tokens does not fix this response. The router does not impose its own output-token cap.",
		setup{policy: "max_input_tokens: 131072\nimages_max: 1"},
		func(w *world) {
			w.chat("alice", 140_000, "").refused(400, b1, "input", "", "input is 140000 tokens, over the model limit of 131072")
			w.chat("alice", 140_000, `"max_tokens":1,`).refused(400, b1, "input", "", "")
			w.chat("alice", 131_072, `"max_tokens":1000000,`).admitted()
		},
	},
	{
		"b2-budget-is-fraction-times-replicas-rounded-down",
		"token budget = floor(HIVENET_ROUTER_ADMIT_FRACTION × admit_budget_tokens × healthy_replicas); request backstop = max_inflight × healthy_replicas. The healthy-replica count is recomputed for each request and floored at 1.",
		setup{policy: "admit_budget_tokens: 333\nmax_inflight: 2"},
		func(w *world) {
			w.settings.ParkMS = 0
			w.healthy = 2
			a := w.chat("alice", 599, "").admitted() // 0.9 × 666 = 599.4
			w.chat("alice", 1, "").atCapacity()
			w.healthy = 3
			b := w.chat("alice", 300, "").admitted() // 0.9 × 999 = 899.1
			w.chat("alice", 4, "").atCapacity()
			b.end(events.Completed)
			a.end(events.Completed)
			w.healthy = 0
			w.chat("alice", 300, "").refused(429, b2, "occupancy", "", "request needs 300 tokens, over the model's capacity of 299")
			w.chat("alice", 100, "").admitted()
			w.chat("alice", 100, "").admitted()
			w.chat("alice", 4, "").refused(429, b2, "inflight", "1", full)
			w.healthy = 2
			w.chat("alice", 4, "").admitted()
		},
	},
	{
		"b2-a-shrinking-pool-cancels-nothing",
		"The healthy-replica count is recomputed for each request.",
		setup{policy: "admit_budget_tokens: 1000"},
		func(w *world) {
			w.settings.ParkMS, w.healthy = 0, 2
			a := w.chat("alice", 1500, "").admitted()
			w.healthy = 1
			w.chat("alice", 10, "").atCapacity()
			w.holds("model/qwen/occupancy", 1500)
			a.end(events.Completed)
			w.chat("alice", 10, "").admitted()
		},
	},
	{
		"b2-footprint-is-input-and-declared-output",
		"A request's initial token footprint is estimated input tokens + declared maximum output tokens. max_completion_tokens is preferred, with max_tokens as the fallback.",
		setup{policy: "admit_budget_tokens: 100000"},
		func(w *world) {
			held := int64(0)
			for _, c := range []struct {
				fields string
				output int64
			}{
				{`"max_tokens":70,`, 70}, {`"max_completion_tokens":30,`, 30}, {`"max_tokens":70,"max_completion_tokens":70,`, 70},
				{`"max_tokens":70,"n":3,`, 210}, {"", 0},
			} {
				w.chat("alice", 100, c.fields).admitted()
				held += 100 + c.output
				w.holds("model/qwen/occupancy", held)
			}
			w.send("alice", wire.Completions, `{"model":"qwen","max_tokens":10,"best_of":2,"prompt":["`+text(50)+`","`+text(50)+`"]}`).admitted()
			w.holds("model/qwen/occupancy", held+100+40)
		},
	},
	{
		"b2-a-negative-output-is-undeclared",
		"A negative output value is treated as undeclared for occupancy accounting rather than reducing the footprint.",
		setup{policy: "admit_budget_tokens: 10000"},
		func(w *world) {
			r := w.chat("alice", 100, `"max_tokens":-1000,`).admitted()
			w.holds("model/qwen/occupancy", 100)
			r.grow(0, 40)
			w.holds("model/qwen/occupancy", 140)
		},
	},
	{
		"b2-undeclared-output-grows-as-it-streams",
		"If output is undeclared, the reservation starts with the input estimate and grows as output streams.",
		setup{policy: "admit_budget_tokens: 1000"},
		func(w *world) {
			w.settings.ParkMS = 0
			a := w.chat("alice", 100, `"stream":true,`).admitted()
			b := w.chat("alice", 100, `"stream":true,"max_tokens":300,`).admitted()
			for i := range 5 {
				w.at(float64(250 * (i + 1)))
				a.grow(0, int64(100*(i+1)))
				b.grow(0, int64(50*(i+1))) // a declared output is reserved already
			}
			w.holds("model/qwen/occupancy", 100+500+400)
			w.chat("alice", 1, "").atCapacity() // 1000 of 900: growth may pass the budget, an admission may not
			b.used(100, 250)
			w.holds("model/qwen/occupancy", 1000) // what was declared stays until the release
			b.end(events.Completed)
			w.holds("model/qwen/occupancy", 600)
		},
	},
	{
		"b2-exact-input-replaces-the-estimate-at-once",
		"When the backend reports exact input usage, the router replaces the estimated input portion with the exact count.",
		setup{policy: "admit_budget_tokens: 1000"},
		func(w *world) {
			r := w.chat("alice", 400, `"max_tokens":100,`).admitted()
			w.at(50)
			r.w.apply(r.gateway, r.org(), exactInput(r, 250)) // reported with the first event of a stream
			w.holds("model/qwen/occupancy", 350)
			s := w.chat("alice", 500, "").admitted() // there is room for it
			s.w.apply(s.gateway, s.org(), exactInput(s, 520))
			w.holds("model/qwen/occupancy", 870)
		},
	},
	{
		"b2-success-error-timeout-and-disconnect-release",
		"Success, error, timeout, and client disconnect all release the reservation.",
		setup{policy: "admit_budget_tokens: 1000\nmax_inflight: 1"},
		func(w *world) {
			for i, how := range []events.Outcome{events.Completed, events.Failed, events.TimedOut, events.Cancelled, events.NotDispatched, events.Abandoned} {
				w.at(float64(100 * i))
				r := w.chat("alice", 100, `"max_tokens":300,`).admitted()
				w.holds("model/qwen/occupancy", 400)
				w.holds("model/qwen/inflight", 1)
				r.end(how)
				w.holds("model/qwen/occupancy", 0)
				w.holds("model/qwen/inflight", 0)
			}
			w.at(1000)
			w.chat("alice", 100, "").admitted() // and now its gateway dies
			w.gateway = "gw-b"
			for range 7 { // others live, so that the log is not silent
				w.now += 1_900_000_000
				w.apply("gw-b", events.Platform, &events.Lease{Gateway: "gw-b", Epoch: epoch, TTLMS: events.DefaultTTLMS})
			}
			w.holds("model/qwen/occupancy", 0)
		},
	},
	{
		"b2-waits-up-to-the-park-timeout",
		"When a request does not fit, it waits for up to HIVENET_ROUTER_ADMIT_PARK_TIMEOUT. The default is 250ms; 0 rejects immediately. If capacity remains unavailable, the router returns HTTP 429, sets Retry-After: 1, and uses concurrency_limit_exceeded.",
		setup{policy: "admit_budget_tokens: 1000"},
		func(w *world) {
			a := w.chat("alice", 800, "").admitted()
			w.at(10)
			b := w.chat("alice", 200, "").waits()
			w.at(259)
			w.apply("gw-a", events.Platform, &events.Tick{Gateway: "gw-a"})
			b.waits()
			w.at(260)
			w.apply("gw-a", events.Platform, &events.Tick{Gateway: "gw-a"})
			b.atCapacity()
			w.at(300)
			c := w.chat("alice", 200, "").waits()
			w.at(400)
			a.end(events.Completed)
			if c.admitted(); c.verdict.ParkedMS != 100 {
				w.t.Errorf("it waited %d ms", c.verdict.ParkedMS)
			}
			w.settings.ParkMS = 0
			w.chat("alice", 800, "").atCapacity()
		},
	},
	{
		"b2-parked-in-order-of-arrival-on-all-gateways",
		"When a request does not fit, it waits.",
		setup{policy: "admit_budget_tokens: 1000", keys: map[string]string{"alice": "", "bob": ""}},
		func(w *world) {
			a := w.chat("alice", 800, "").admitted()
			w.at(1)
			w.gateway = "gw-b"
			b := w.chat("bob", 700, "").waits()
			w.at(2)
			w.gateway = "gw-a"
			c := w.chat("alice", 50, "").waits() // there is room for it, but bob was first
			w.at(3)
			w.gateway = "gw-c"
			d := w.chat("bob", 150, "").waits()
			w.at(50)
			a.end(events.Completed)
			b.admitted()
			c.admitted()
			d.admitted()
			if b.verdict.Seq > c.verdict.Seq || c.verdict.Seq > d.verdict.Seq || w.records[len(w.records)-1].At != b.verdict.Time {
				w.t.Error("they were not admitted in order of arrival, at once")
			}
		},
	},
	{
		"b2-larger-than-the-budget-is-refused-at-once",
		"If capacity remains unavailable, the router returns HTTP 429: what can never fit does not wait.",
		setup{policy: "admit_budget_tokens: 1000"},
		func(w *world) {
			w.settings.ParkMS = 2000
			w.chat("alice", 800, `"max_tokens":1200,`).refused(429, b2, "occupancy", "", "request needs 2000 tokens, over the model's capacity of 900")
			w.holds("model/qwen/occupancy", 0)
		},
	},
	{
		"b3-any-threshold-sheds",
		"The router averages each available signal across healthy agents. If any configured threshold fails, it returns HTTP 429, sets Retry-After: 1, with the message model is under high load, please retry. Missing engine signals pass the gate.",
		setup{policy: "shed_if: {kv_cache_utilization: {gt: 0.90}, waiting_requests: {gt: 20}}\nadmit_budget_tokens: 1000"},
		func(w *world) {
			for _, c := range []struct {
				seen upstream.Signals
				shed bool
			}{
				{upstream.Signals{}, false},
				{upstream.Signals{KV: 0.90, HasKV: true, Waiting: 20, HasWaiting: true}, false},
				{upstream.Signals{KV: 0.91, HasKV: true}, true},
				{upstream.Signals{Waiting: 20.5, HasWaiting: true}, true},
				{upstream.Signals{KV: 0.1, HasKV: true, Waiting: 21, HasWaiting: true}, true},
			} {
				w.pressure = signals(c.seen)
				r := w.chat("alice", 10, "")
				if c.shed {
					r.refused(429, b2, "pressure", "1", "model is under high load, please retry")
				} else {
					r.admitted().end(events.Completed)
				}
			}
		},
	},
	{
		"b4-reserved-mode-leaves-key-limits-alone",
		"mode accepts reserved and serverless; omitting it selects reserved. B1, B2, and B3 run in either mode. Serverless mode additionally enables these key fields.",
		setup{policy: "admit_budget_tokens: 1000", keys: map[string]string{"alice": "max_occupancy_share: 0.1, quota: {input_tokens_per_minute: 10, output_tokens_per_minute: 10}"}},
		func(w *world) {
			w.chat("alice", 500, `"max_tokens":100,`).admitted().used(500, 500)
			w.chat("alice", 300, "").admitted()
			w.settings.ParkMS = 0
			w.chat("alice", 300, "").atCapacity()
		},
	},
	{
		"b4-share-ignores-the-fraction-and-rejects-at-once",
		"max_occupancy_share × admit_budget_tokens × healthy_replicas: this fairness limit intentionally does not apply HIVENET_ROUTER_ADMIT_FRACTION. It rejects immediately with 429 rate_limit_exceeded.",
		setup{policy: "mode: serverless\nadmit_budget_tokens: 1000", keys: map[string]string{"alice": "max_occupancy_share: 0.25", "bob": ""}},
		func(w *world) {
			w.healthy = 2
			a := w.chat("alice", 500, "").admitted() // of 0.25 × 2000, not of 0.25 × 1800
			w.chat("alice", 1, "").refused(429, b4, "occupancy", "1", sharing)
			w.chat("bob", 1300, "").admitted()
			a.end(events.Completed)
			w.chat("alice", 100, "").admitted()
		},
	},
	{
		"b4-shares-may-be-oversubscribed",
		"The key limits may be deliberately oversubscribed. Their configured shares do not need to add up to 1.",
		setup{policy: "mode: serverless\nadmit_budget_tokens: 1000", keys: map[string]string{"a": "max_occupancy_share: 0.4", "b": "max_occupancy_share: 0.4", "c": "max_occupancy_share: 0.4"}},
		func(w *world) {
			w.settings.FractionPPM, w.settings.ParkMS = 1_000_000, 0
			w.chat("a", 400, "").admitted()
			w.chat("b", 400, "").admitted()
			w.chat("a", 1, "").refused(429, b4, "occupancy", "1", sharing)
			w.chat("c", 201, "").atCapacity() // the global budget remains the box's safety
			w.chat("c", 200, "").admitted()
		},
	},
	{
		"b4-itpm-refills-continuously-and-is-trued-up",
		"input_tokens_per_minute is a continuously refilling one-minute bucket charged from the shared input estimate before the daily budget.",
		setup{policy: "mode: serverless", keys: map[string]string{"alice": "quota: {input_tokens_per_minute: 6000, tokens_per_day: 6050}"}},
		func(w *world) {
			a := w.chat("alice", 6000, "").admitted()
			w.at(500)
			w.chat("alice", 100, "").refused(429, b4, "itpm", "1", "input token rate exceeded, please retry") // daily is over, too
			w.at(1000)
			w.chat("alice", 50, "").admitted() // 100 a second
			w.holds(w.key("alice", "itpm"), 5950)
			a.used(4000, 10)
			w.holds(w.key("alice", "itpm"), 3950)
			w.holds("org/alice/daily", 4060)
		},
	},
	{
		"b4-otpm-is-charged-after-and-drains-a-minute-at-most",
		"output_tokens_per_minute is charged after a local response. If recent output drains the bucket, the next request is rejected. One response can drain at most one minute of capacity.",
		setup{policy: "mode: serverless", keys: map[string]string{"alice": "quota: {output_tokens_per_minute: 600}"}},
		func(w *world) {
			a := w.chat("alice", 10, `"max_tokens":90000,`).admitted() // a declaration is not charged
			b := w.chat("alice", 10, "").admitted()
			w.holds(w.key("alice", "otpm"), 0)
			a.used(10, 90_000)
			a.end(events.Completed)
			w.holds(w.key("alice", "otpm"), 600)
			w.at(50)
			w.chat("alice", 10, "").refused(429, b4, "otpm", "1", "output token rate exceeded, please retry")
			w.at(100)
			w.chat("alice", 10, "").admitted() // a tenth of a second is a token
			b.used(10, 60)
			b.end(events.Completed)
			w.holds(w.key("alice", "otpm"), 659) // debt is kept
			w.at(1500)
			w.chat("alice", 10, "").refused(429, b4, "otpm", "1", "")
		},
	},
	{
		"b4-buckets-are-of-each-key-and-model",
		"The input and output buckets are independent for each key-and-model combination. A zero value disables the corresponding cap.",
		setup{
			policy: "mode: serverless\nadmit_budget_tokens: 1000", other: "mode: serverless",
			keys: map[string]string{"alice": "quota: {input_tokens_per_minute: 1000}", "bob": "quota: {input_tokens_per_minute: 1000, output_tokens_per_minute: 0}, max_occupancy_share: 0"},
		},
		func(w *world) {
			w.chat("alice", 900, "").admitted().end(events.Completed)
			w.chat("alice", 200, "").refused(429, b4, "itpm", "1", "")
			w.chat("bob", 900, "").admitted().used(900, 100_000) // static keys have states of their own
			w.send("alice", wire.Chat, chatBody("other", 900, "")).admitted()
			w.holds(w.key("alice", "itpm"), 900)
			w.holds(w.key("bob", "itpm"), 900)
			w.holds(w.key("bob", "otpm"), 0)
		},
	},
	{
		"daily-budget-is-of-the-utc-day",
		"Daily token admission: the existing tenant token budget.",
		setup{at: "2026-01-15T23:59:58Z", keys: map[string]string{"alice": "quota: {tokens_per_day: 1000}"}},
		func(w *world) {
			a := w.chat("alice", 600, `"max_tokens":400,`).admitted() // 1000 must fit, 600 are charged
			w.holds("org/alice/daily", 600)
			b := w.chat("alice", 100, `"max_tokens":300,`).admitted() // what a has declared is not charged yet
			a.used(500, 300)
			w.holds("org/alice/daily", 900)
			w.at(1999)
			w.chat("alice", 50, `"max_tokens":51,`).refused(429, "token_limit_exceeded", "daily", "1", "insufficient daily token budget for requested max_tokens")
			w.at(2000)
			w.chat("alice", 500, `"max_tokens":500,`).admitted() // a new day
			b.used(100, 300)
			w.holds("org/alice/daily", 500) // of the day on which it was charged
		},
	},
	{
		"fallback-to-a-provider-frees-the-pool-and-keeps-its-charges",
		"When routing leaves the local pool, the router releases the global and per-key occupancy reservations immediately. Request-rate, input-token-per-minute, and daily input charges taken before routing remain in place. Provider output does not charge the local OTPM bucket or train the local model's estimator, nor the daily budget.",
		setup{
			policy: "mode: serverless\nadmit_budget_tokens: 1000\nmax_inflight: 4",
			keys:   map[string]string{"alice": "max_occupancy_share: 0.5, quota: {requests_per_minute: 10, tokens_per_day: 1000, input_tokens_per_minute: 1000, output_tokens_per_minute: 100}"},
		},
		func(w *world) {
			a := w.chat("alice", 400, `"max_tokens":50,`).admitted()
			w.holds("model/qwen/occupancy", 450)
			w.at(20)
			a.leave()
			a.admitted()
			for _, gone := range []string{"model/qwen/occupancy", "model/qwen/inflight", w.key("alice", "occupancy")} {
				w.holds(gone, 0)
			}
			w.holds("pool/house/concurrency", 1)
			w.at(30)
			a.used(380, 500)
			if train := w.records[len(w.records)-1].Data.(*events.TrueUp).Train; train {
				w.t.Error("a provider teaches the local model's ratio")
			}
			a.end(events.Completed)
			w.holds("org/alice/rpm", 1)
			w.holds("org/alice/daily", 400)
			w.holds(w.key("alice", "otpm"), 0)
			w.holds("pool/house/concurrency", 0)
			w.holds("pool/house/tpm", 880)
			b := w.chat("alice", 100, "").admitted()
			w.holds(w.key("alice", "itpm"), 500) // 400 less what 30 ms refill, rounded
			b.end(events.Completed)
		},
	},
	{
		"idle-state-is-forgotten",
		"Every five minutes, the router removes full rate buckets, daily buckets from a past UTC day, and occupancy state that has held no requests for at least 15 minutes.",
		setup{
			policy: "mode: serverless\nadmit_budget_tokens: 1000", at: "2026-01-15T23:40:00Z",
			keys: map[string]string{"alice": "max_occupancy_share: 0.5, quota: {requests_per_minute: 5, tokens_per_day: 1000, input_tokens_per_minute: 1000, output_tokens_per_minute: 100}"},
		},
		func(w *world) {
			a := w.chat("alice", 100, "").admitted()
			a.used(100, 40)
			a.end(events.Completed)
			if meters, _, settled, _ := w.fold.Size(); meters == 0 || settled == 0 {
				w.t.Errorf("%d meters, %d settled requests right after", meters, settled)
			}
			w.at(14 * 60_000)
			if meters, _, _, _ := w.fold.Size(); meters == 0 {
				w.t.Error("forgotten too early")
			}
			w.at(40 * 60_000)
			w.apply("gw-a", events.Platform, &events.Tick{Gateway: "gw-a"})
			if meters, requests, settled, _ := w.fold.Size(); meters+requests+settled != 0 {
				w.t.Errorf("%d meters, %d requests, %d settled: nothing of it is in use", meters, requests, settled)
			}
			w.chat("alice", 100, "").admitted()
		},
	},
}

// exactInput is the true-up by which a gateway replaces an estimated input in mid-stream.
func exactInput(r *request, input int64) *events.TrueUp {
	c, ok := r.plan.Growth(input, 0)
	if !ok {
		r.w.t.Fatal("nothing to replace")
	}
	r.n++
	return &events.TrueUp{Request: r.id, Attempt: r.attempt, Gateway: r.gateway, N: r.n, Quality: events.QualityExact, Charges: []events.Charge{c}}
}

// TestSentences plays each scenario and compares it with its files.
func TestSentences(t *testing.T) {
	for _, s := range sentences {
		t.Run(s.name, func(t *testing.T) {
			t.Log(s.sentence)
			w := newWorld(t, s.setup)
			w.t = t
			s.play(w)
			w.keep(s.name)
		})
	}
}
