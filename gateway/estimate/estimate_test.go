package estimate

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/estimator"
)

func TestLearned(t *testing.T) {
	for _, c := range []struct {
		ratio           Ratio
		bytes, messages int64
		want            int64
	}{
		{FirstRatio, 3200, 1, 1000}, {FirstRatio, 100, 1, 32}, {FirstRatio, 0, 3, 12}, {FirstRatio, 1, 1, 4},
		{FirstRatio, 3201, 0, 1001}, {estimator.MaxRatio, 7, 0, 7}, {estimator.MaxRatio, math.MaxInt64, math.MaxInt64, MaxTokens},
		{estimator.MinRatio, 100, 2, 8},
	} {
		if got := Learned(c.ratio, c.bytes, c.messages); got != c.want {
			t.Errorf("%d bytes in %d messages at %d: got %d, want %d", c.bytes, c.messages, c.ratio, got, c.want)
		}
	}
}

func TestReservation(t *testing.T) {
	for _, c := range []struct{ body, base64, parts, want int64 }{
		{1000, 0, 0, 1000}, {1_000_000, 999_000, 1, 1000 + 65_536}, {10, 20, 0, 0}, {math.MaxInt64, 0, math.MaxInt64, MaxTokens},
	} {
		if got := Reservation(c.body, c.base64, c.parts); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

func TestStreamed(t *testing.T) {
	for bytes, want := range map[int64]int64{0: 0, -1: 0, 1: 1, 3: 1, 7: 1, 8: 2, 300: 75} {
		if got := Streamed(bytes); got != want {
			t.Errorf("%d bytes: got %d, want %d", bytes, got, want)
		}
	}
}

func TestOf(t *testing.T) {
	gpt := Model{MaxOutput: 16_384, ContextWindow: 128_000}
	claude := Model{MaxOutput: 128_000, ContextWindow: 200_000}
	local := Model{ContextWindow: 32_768, Local: true}
	cases := []struct {
		name, body string
		op         wire.Operation
		m          Model
		want       Estimate // the body's own length is added to Reservation
		refused    string
	}{
		{"the model's maximum is written in", `{"model":"m","messages":[{}]}`, wire.Chat, gpt,
			Estimate{Learned: 4, Bound: 16_384, Counted: 16_384, Held: 16_384}, ""},
		{"a large default counts at most 32,768", `{"model":"m","messages":[{}]}`, wire.Messages, claude,
			Estimate{Learned: 4, Bound: 128_000, Counted: 32_768, Held: 32_768}, ""},
		{"a sent limit is held whole", `{"model":"m","messages":[{}],"max_tokens":100000}`, wire.Messages, claude,
			Estimate{Learned: 4, Declared: 100_000, IsDeclared: true, Counted: 32_768, Held: 100_000}, ""},
		{"a model that declares none", `{"model":"m","messages":[{}]}`, wire.Chat, Model{},
			Estimate{Learned: 4, Bound: 32_768, Counted: 32_768, Held: 32_768}, ""},
		{"a local model without a maximum gets no bound", `{"model":"m","messages":[{}]}`, wire.Chat, local,
			Estimate{Learned: 4, Counted: 32_764, Held: 32_764}, ""},
		{"and no cap", `{"model":"m","messages":[{}],"max_tokens":1000000000000000000,"n":9}`, wire.Chat, local,
			Estimate{Learned: 4, Declared: MaxTokens, IsDeclared: true, Counted: 9 * 32_768, Held: MaxTokens}, ""},
		{"choices multiply", `{"model":"m","prompt":["a","b"],"n":2,"best_of":3,"max_tokens":10}`, wire.Completions, gpt,
			Estimate{Learned: 8, Declared: 120, IsDeclared: true, Counted: 120, Held: 120}, ""},
		{"choices multiply what is not declared too", `{"model":"m","messages":[{}],"n":3}`, wire.Chat, gpt,
			Estimate{Learned: 4, Bound: 16_384, Counted: 3 * 16_384, Held: 3 * 16_384}, ""},
		{"a negative limit is forwarded and declares nothing", `{"model":"m","messages":[{}],"max_tokens":-1000}`, wire.Chat, gpt,
			Estimate{Learned: 4, Counted: 16_384, Held: 16_384}, ""},
		{"lowered to the context window", `{"model":"m","messages":[{"content":"` + strings.Repeat("x", 3200) + `"}]}`, wire.Chat, Model{MaxOutput: 2000, ContextWindow: 1500},
			Estimate{Learned: 1000, Bound: 500, Counted: 500, Held: 500}, ""},
		{"never below one", `{"model":"m","messages":[{"content":"` + strings.Repeat("x", 3200) + `"}]}`, wire.Chat, Model{MaxOutput: 2000, ContextWindow: 900},
			Estimate{Learned: 1000, Bound: 1, Counted: 1, Held: 1}, ""},
		{"an endpoint's default, capped", `{"model":"m","messages":[{}]}`, wire.Chat, Model{MaxOutput: 2000, DefaultOutput: 4096},
			Estimate{Learned: 4, Bound: 2000, Counted: 2000, Held: 2000}, ""},
		{"an endpoint's default of a local model", `{"model":"m","messages":[{}]}`, wire.Chat, Model{DefaultOutput: 4096, Local: true},
			Estimate{Learned: 4, Bound: 4096, Counted: 4096, Held: 4096}, ""},
		{"lowered, all choices together", `{"model":"m","messages":[{}],"n":3}`, wire.Chat, Model{MaxOutput: 16_384, MaxUndeclared: 4096},
			Estimate{Learned: 4, Bound: 1365, Counted: 4095, Held: 4095}, ""},
		{"lowered where nothing else bounds it", `{"model":"m","messages":[{}]}`, wire.Chat, Model{ContextWindow: 32_768, Local: true, MaxUndeclared: 4096},
			Estimate{Learned: 4, Bound: 4096, Counted: 4096, Held: 4096}, ""},
		{"lowered to one at least", `{"model":"m","messages":[{}],"n":9}`, wire.Chat, Model{MaxUndeclared: 4},
			Estimate{Learned: 4, Bound: 1, Counted: 9, Held: 9}, ""},
		{"a smaller maximum is not raised", `{"model":"m","messages":[{}]}`, wire.Chat, Model{MaxOutput: 100, MaxUndeclared: 4096},
			Estimate{Learned: 4, Bound: 100, Counted: 100, Held: 100}, ""},
		{"declared output is not lowered", `{"model":"m","messages":[{}],"max_tokens":9000}`, wire.Chat, Model{MaxUndeclared: 4096},
			Estimate{Learned: 4, Declared: 9000, IsDeclared: true, Counted: 9000, Held: 9000}, ""},
		{"nor one that is forwarded and declares nothing", `{"model":"m","messages":[{}],"max_tokens":-1}`, wire.Chat, Model{MaxUndeclared: 4096},
			Estimate{Learned: 4, Counted: 32_768, Held: 32_768}, ""},
		{"unknown input reserves the window", `{"model":"m","previous_response_id":"r"}`, wire.Responses, gpt,
			Estimate{Learned: 128_000, Reservation: 128_000, Bound: 16_384, Counted: 16_384, Held: 16_384}, ""},
		{"or all that is admitted", `{"model":"m","previous_response_id":"r"}`, wire.Responses, Model{MaxOutput: 16_384, ContextWindow: 128_000, MaxInput: 1000},
			Estimate{Learned: 1000, Reservation: 1000, Bound: 16_384, Counted: 16_384, Held: 16_384}, ""},
		{"embeddings have no output", `{"model":"m","input":[1,2,3,4,5,6]}`, wire.Embeddings, gpt, Estimate{Learned: 4 + 6}, ""},
		{"above the maximum", `{"model":"m","messages":[{}],"max_tokens":16385}`, wire.Chat, gpt, Estimate{}, "max_tokens is 16385: it must be at most 16384"},
		{"above what an undeclared model takes", `{"model":"m","messages":[{}],"max_completion_tokens":2147483648}`, wire.Chat, Model{}, Estimate{},
			"max_completion_tokens is 2147483648: it must be at most 32768"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, err := wire.Parse(c.op, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Of(r, FirstRatio, c.m)
			if c.refused != "" {
				var bad *wire.BadRequest
				if !errors.As(err, &bad) || !strings.Contains(bad.Message, c.refused) || bad.Param == "" {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.want.Reservation == 0 {
				c.want.Reservation = int64(len(c.body))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// Whatever the numbers, nothing overflows or turns negative, and the ratio stays in its bounds.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ratio := Ratio(rapid.Int64Range(int64(estimator.MinRatio), int64(estimator.MaxRatio)).Draw(t, "ratio"))
		a := rapid.Int64Range(0, math.MaxInt64).Draw(t, "a")
		b := rapid.Int64Range(0, math.MaxInt64).Draw(t, "b")
		for name, v := range map[string]int64{"learned": Learned(ratio, a, b), "reservation": Reservation(a, b, a), "add": Add(a, b), "multiply": Multiply(a, b)} {
			if v < 0 || v > MaxTokens {
				t.Fatalf("%s of %d and %d: %d", name, a, b, v)
			}
		}
		if r := estimator.Observe(ratio, a, b); r < estimator.MinRatio || r > estimator.MaxRatio {
			t.Fatalf("ratio %d", r)
		}
	})
}
