package gates

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/estimator"
)

const (
	samples    = 30
	sampleSize = 2400 // bytes of a prompt, about
	shorter    = 700  // where there is less text
	asked      = 10   // prompts after what was learned, over which the error is taken
)

// corpora are real texts, by kind: Newton's Opticks, this module, the Art of War, noise, and logs of scenarios.
func corpora(t *testing.T) map[string][]string {
	t.Helper()
	read := func(patterns ...string) (text string) {
		for _, p := range patterns {
			files, err := filepath.Glob(p)
			if err != nil || len(files) == 0 {
				t.Fatalf("no file is %s: %v", p, err)
			}
			for _, f := range files {
				data, err := os.ReadFile(f)
				check(t, err)
				text += string(data)
			}
		}
		return text
	}
	random := rand.New(rand.NewPCG(7, 7))
	blob := make([]byte, samples*sampleSize)
	for i := range blob {
		blob[i] = byte(random.Uint32())
	}
	return map[string][]string{
		"English": cut(t, read("testdata/english.txt"), sampleSize),
		"Go code": cut(t, read("../../projections/admission/[a-z]*.go", "../../gateway/[a-z]*.go"), sampleSize),
		"Chinese": cut(t, read("testdata/chinese.txt"), shorter),
		"base64":  cut(t, base64.StdEncoding.EncodeToString(blob), sampleSize),
		"JSON":    cut(t, read("../scenario/testdata/*.jsonl"), sampleSize),
	}
}

// cut makes prompts of a text, without tearing a character.
func cut(t *testing.T, text string, size int) (prompts []string) {
	t.Helper()
	for len(prompts) < samples {
		if len(text) <= size {
			t.Fatalf("the text is too short for %d prompts: it gave %d", samples, len(prompts))
		}
		end := size
		for !utf8.RuneStart(text[end]) {
			end--
		}
		prompts = append(prompts, text[:end])
		text = text[end:]
	}
	return prompts
}

// most is the error, in percent of the exact count, that is let pass after so many observations of one kind of text. Of what is wrong
// at first an EWMA of 0.2 keeps a third after five observations, and a hundredth after twenty; what then is left is how prompts of
// one kind differ among themselves.
var most = map[string]map[int]float64{
	"English": {1: 22, 5: 17, 20: 5},
	"Go code": {1: 15, 5: 15, 20: 15},
	"Chinese": {1: 6, 5: 5, 20: 6},
	"base64":  {1: 45, 5: 20, 20: 3},
	"JSON":    {1: 30, 5: 15, 20: 8},
}

// TestTheEstimateConverges sends real prompts through the parser and the estimate, as a gateway does, and folds what a real tokenizer
// counts into the ratio, as the log does.
func TestTheEstimateConverges(t *testing.T) {
	codec, err := tokenizer.Get(tokenizer.O200kBase)
	check(t, err)
	texts := corpora(t)
	t.Logf("%-8s %12s %28s %28s", "", "bytes/token", "mean error after 0, 1, 5, 20", "worst prompt after 20")
	for _, kind := range []string{"English", "Go code", "Chinese", "base64", "JSON"} {
		learned := estimator.New()
		var all []int64
		var requests []*wire.Request
		total := int64(0)
		for _, p := range texts[kind] {
			exact, err := codec.Count(p)
			check(t, err)
			all = append(all, int64(exact))
			total += int64(exact)
			requests = append(requests, prompt(t, p))
		}
		// the mean over prompts that come next, and the worst of them
		off := func(from int) (mean, worst float64) {
			for i := from; i < from+asked; i++ {
				e, err := estimate.Of(requests[i], learned.Ratio("qwen"), estimate.Model{Local: true})
				check(t, err)
				wrong := 100 * math.Abs(float64(e.Learned-all[i])) / float64(all[i])
				mean, worst = mean+wrong/asked, max(worst, wrong)
			}
			return mean, worst
		}
		errorAfter, worst := map[int]float64{}, 0.0
		for i := 0; i <= 20; i++ {
			switch i {
			case 0, 1, 5, 20:
				errorAfter[i], worst = off(i)
			}
			teach(learned, uint64(2*i+1), requests[i], all[i])
		}
		t.Logf("%-8s %12.2f %9.1f %5.1f %5.1f %5.1f %% %25.1f %%", kind, float64(len(strings.Join(texts[kind], "")))/float64(total),
			errorAfter[0], errorAfter[1], errorAfter[5], errorAfter[20], worst)
		for n, limit := range most[kind] {
			if errorAfter[n] > limit {
				t.Errorf("%s: %.1f %% off after %d observations, more than %.0f %%", kind, errorAfter[n], n, limit)
			}
		}
		if start := errorAfter[0]; start > 10 && errorAfter[20] > start/2 {
			t.Errorf("%s: %.1f %% off at first, and still %.1f %% after 20", kind, start, errorAfter[20])
		}
	}
}

// prompt is a chat of one message, parsed from the body that an SDK sends.
func prompt(t *testing.T, text string) *wire.Request {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "qwen", "messages": []map[string]string{{"role": "user", "content": text}}})
	check(t, err)
	r, err := wire.Parse(wire.Chat, body)
	check(t, err)
	if r.TextBytes != int64(len(text)) {
		t.Fatalf("%d bytes of text were read as %d", len(text), r.TextBytes)
	}
	return r
}

// teach puts a request and its exact usage into the log.
func teach(e *estimator.Estimator, seq uint64, r *wire.Request, exact int64) {
	id := events.RequestID(fmt.Sprintf("r%d", seq))
	e.Apply(&events.Record{Seq: seq, Event: events.Event{Data: &events.Reserve{Request: id, Model: "qwen", Estimate: events.Estimate{TextBytes: r.TextBytes, Images: r.Images}}}})
	e.Apply(&events.Record{Seq: seq + 1, Event: events.Event{Data: &events.TrueUp{Request: id, N: 1, Final: true, Quality: events.QualityExact, Train: r.Trainable(),
		Usage: events.Usage{InputTokens: exact, OutputTokens: 1}}}})
}

// TestOneAbnormalReportDoesNotPoison: what a backend reports is clamped to 0.05 through 1.0 tokens per byte before it weighs 0.2.
func TestOneAbnormalReportDoesNotPoison(t *testing.T) {
	r := prompt(t, text(1000))
	for _, c := range []struct{ exact, want int64 }{{1, 250_000 + 10_000}, {1 << 40, 250_000 + 200_000}} {
		e := estimator.New()
		teach(e, 1, r, c.exact)
		if got := e.Ratio("qwen"); got != estimator.Ratio(c.want) {
			t.Errorf("after a report of %d tokens for %d bytes the ratio is %d millionths, want %d", c.exact, r.TextBytes, got, c.want)
		}
		for i := range 20 {
			teach(e, uint64(10+2*i), r, 1000)
		}
		if got := e.Ratio("qwen"); got < 308_000 || got > 317_000 {
			t.Errorf("20 usual ones later it is %d millionths", got)
		}
	}
}
