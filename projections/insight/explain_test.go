package insight

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/scenario"
)

// explain retells a request of a log.
func explain(log []events.Record, id string) (*Story, error) {
	f, err := NewFinder(id)
	if err != nil {
		return nil, err
	}
	for i := range log {
		if !f.Take(&log[i]) {
			break
		}
	}
	target, err := f.Target()
	if err != nil {
		return nil, err
	}
	e := NewExplainer(admission.New(), target)
	for i := range log {
		if e.Done() {
			break
		}
		if err := e.Apply(&log[i]); err != nil {
			return nil, err
		}
	}
	return e.Story(), nil
}

// TestExplain retells each request of a recorded log, as text and as JSON.
func TestExplain(t *testing.T) {
	log := recorded(t, "ten.jsonl")
	var text, values strings.Builder
	seen := map[events.RequestID]bool{}
	for i := range log {
		id := RequestOf(log[i].Data)
		if id == "" || seen[id] {
			continue
		}
		seen[id] = true
		s, err := explain(log, ShortID(id))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s\n----\n", s.Text())
		if len(seen) == 3 || len(seen) == 6 || len(seen) == 9 {
			b, err := json.MarshalIndent(s, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			values.Write(append(b, '\n'))
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d requests, want 9", len(seen))
	}
	golden(t, "ten.explained", text.String())
	golden(t, "ten.explained.json", values.String())
}

func TestFinderNamesWhatItCannotTell(t *testing.T) {
	log := recorded(t, "ten.jsonl")
	if _, err := explain(log, "00000000-0000-7000-8000-000000000000"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an id that is not there: %v", err)
	}
	if _, err := NewFinder("fee01"); err == nil || !strings.Contains(err.Error(), "at least its last 8") {
		t.Errorf("a short id: %v", err)
	}
	twin := log[5]
	d := *log[4].Data.(*events.Reserve)
	d.Request = "another-" + d.Request
	twin.Data = &d
	if _, err := explain(append(log[:5:5], twin), ShortID(d.Request)); err == nil || !strings.Contains(err.Error(), "is the end of") {
		t.Errorf("an id that two requests end with: %v", err)
	}
}

func TestMadeAt(t *testing.T) {
	log := recorded(t, "ten.jsonl")
	d := log[4].Data.(*events.Reserve)
	if at, ok := MadeAt(string(d.Request)); !ok || at != log[4].At {
		t.Errorf("made at %d, %v; want %d", at, ok, log[4].At)
	}
	for _, id := range []string{"", "r1", "0197e8c0-0000-4000-8000-000000000000", "0197E8C0-0000-7000-8000-00000000000G"} {
		if _, ok := MadeAt(id); ok {
			t.Errorf("%q is taken for a UUIDv7", id)
		}
	}
}

// TestExplainSaysWhatTheVerdictSaid: for each reserve of random logs, the claims show what the fold's verdict says, and a request's final
// charges are those that its meters hold.
func TestExplainSaysWhatTheVerdictSaid(t *testing.T) {
	explained := 0
	rapid.Check(t, func(t *rapid.T) {
		log := scenario.Log(t)
		fold := admission.New()
		verdicts := map[attemptID]events.Verdict{}
		var ids []events.RequestID
		for i := range log {
			for _, v := range fold.Apply(&log[i]) {
				if _, again := verdicts[attemptID{v.Request, v.Attempt}]; again {
					continue // it had been forgotten
				}
				v.Used = append([]int64(nil), v.Used...)
				verdicts[attemptID{v.Request, v.Attempt}] = v
				if v.Request != "" { // one that names no request is invalid
					ids = append(ids, v.Request)
				}
			}
		}
		if len(ids) == 0 {
			return
		}
		id := rapid.SampledFrom(ids).Draw(t, "request")
		f := &Finder{id: string(id)}
		for i := range log {
			if RequestOf(log[i].Data) == id {
				f.Take(&log[i])
			}
		}
		target, err := f.Target()
		if err != nil {
			t.Fatal(err)
		}
		e := NewExplainer(admission.New(), target)
		for i := range log {
			if e.Done() {
				break
			}
			if err := e.Apply(&log[i]); err != nil {
				t.Fatal(err)
			}
		}
		s := e.Story()
		if len(s.Text()) == 0 {
			t.Fatal("no text")
		}
		for i := range s.Decisions {
			explained++
			matches(t, &s.Decisions[i], verdicts[attemptID{id, s.Decisions[i].Attempt}])
		}
	})
	if explained == 0 {
		t.Error("nothing was explained")
	}
}

func matches(t *rapid.T, d *Decision, v events.Verdict) {
	if d.Decided == "" { // it waits at the end of what was read
		return
	}
	if (d.Outcome == "admitted") != v.Admitted || d.ParkedMS != v.ParkedMS || d.WaitMS != v.WaitMS || d.Seq != v.Seq || d.Decided != stamp(v.Time) {
		t.Fatalf("decision %+v, verdict %+v", d, v)
	}
	failed := 0
	for i := range d.Claims {
		c := &d.Claims[i]
		if c.Failed {
			failed++
			if v.Refusal.Claim != i || c.Used != v.Refusal.Used || string(v.Refusal.Meter) != c.Meter {
				t.Fatalf("claim %+v, refusal %+v", c, v.Refusal)
			}
			continue
		}
		if i < len(v.Used) && c.Used != v.Used[i] {
			t.Fatalf("claim %d shows %d, its verdict %d", i, c.Used, v.Used[i])
		}
		if v.Admitted && d.Mode == "" && !c.Fits && !c.Shadow {
			t.Fatalf("admitted over claim %+v", c)
		}
	}
	if want := v.Refusal != nil && v.Refusal.Claim >= 0; (failed == 1) != want {
		t.Fatalf("%d claims failed, refusal %+v", failed, v.Refusal)
	}
}

// TestAStoryForAnOrg names nobody else.
func TestAStoryForAnOrg(t *testing.T) {
	log := recorded(t, "ten.jsonl")
	s, err := explain(log, "c0ffee07") // of beta, refused for what acme holds
	if err != nil {
		t.Fatal(err)
	}
	text := func(s *Story) string {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + s.Text()
	}
	if !strings.Contains(text(s), `"org":"acme"`) {
		t.Fatal("the whole story does not name acme")
	}
	own := s.For("beta")
	if strings.Contains(text(own), "acme") || strings.Contains(text(own), "k1") {
		t.Errorf("beta's story names another org: %s", text(own))
	}
	if got, want := own.Decisions[0].Claims[2].By.Amount, s.Decisions[0].Claims[2].By.Amount; got != want || got != 3300 {
		t.Errorf("held %d, want %d", got, want)
	}
}

// TestExplainFromASnapshot: told from a snapshot, the numbers are the same, and who holds gauges is known by the request's id.
func TestExplainFromASnapshot(t *testing.T) {
	log := recorded(t, "ten.jsonl")
	const id, before = "c0ffee03", 12 // records before its reserve
	whole, err := explain(log, id)
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFinder(id)
	if err != nil {
		t.Fatal(err)
	}
	for i := range log {
		f.Take(&log[i])
	}
	target, err := f.Target()
	if err != nil {
		t.Fatal(err)
	}
	fold := admission.New()
	for i := range log[:before] {
		fold.Apply(&log[i])
	}
	if fold, err = admission.Restore(fold.Snapshot(nil)); err != nil {
		t.Fatal(err)
	}
	e := NewExplainer(fold, target)
	for i := range log[before:] {
		if err := e.Apply(&log[before+i]); err != nil {
			t.Fatal(err)
		}
	}
	s := e.Story()
	if s.Summary != whole.Summary || s.Cost.Nano != whole.Cost.Nano || len(s.Settlement) != len(whole.Settlement) {
		t.Errorf("%s, whole %s", s.Text(), whole.Text())
	}
	for i := range s.Decisions[0].Claims {
		c, w := &s.Decisions[0].Claims[i], &whole.Decisions[0].Claims[i]
		if c.Used != w.Used || c.Fits != w.Fits {
			t.Errorf("%s shows %d, whole %d", c.Meter, c.Used, w.Used)
		}
		if c.Kind != "bucket" && c.By.Amount+c.By.Rest != w.By.Amount {
			t.Errorf("%s: %d held and %d unknown, whole %d", c.Meter, c.By.Amount, c.By.Rest, w.By.Amount)
		}
	}
	wait := s.Decisions[0].WaitedFor
	if len(wait) != 1 || len(wait[0].By.Requests) != 1 || ShortID(events.RequestID(wait[0].By.Requests[0].Request)) != "c0ffee02" || wait[0].By.Rest != 0 {
		t.Errorf("waited for %+v", wait)
	}
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "snapshot") {
		t.Errorf("notes %v", s.Notes)
	}
}
