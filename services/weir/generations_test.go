package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/test/audittest"
)

type listAnswer struct {
	Generations []generation.Summary
	NextCursor  *string `json:"next_cursor"`
	Newest      int
}

func TestRequestsAreListedFromTheDatabase(t *testing.T) {
	url, _ := audittest.Database(t)
	if a := listedOverHTTP(t, startWhole(t, url)); a.Newest != 0 {
		t.Errorf("a database has all, and the answer says %d", a.Newest)
	}
}

func TestRequestsAreListedFromTheBucket(t *testing.T) {
	if a := listedOverHTTP(t, startWhole(t, "")); a.Newest == 0 {
		t.Error("the answer does not say how much of the bucket it looked through")
	}
}

func listedOverHTTP(t *testing.T, w *whole) (all listAnswer) {
	viewer, stranger := w.person("acme", "viewer"), w.person("beta", "owner")
	for range 4 {
		w.chat("acme", 200)
	}
	w.chat("acme", 429)
	w.chat("beta", 200)
	list := func(query string, header map[string]string) listAnswer {
		status, _, text := w.do("GET", "/api/generations?"+query, "", header)
		return parsed[listAnswer](t, status, text)
	}
	w.eventually("all five listed as ended", func() bool {
		status, _, text := w.do("GET", "/api/generations?", "", viewer)
		if status == http.StatusServiceUnavailable { // the auditor makes its tables when it starts
			return false
		}
		all = parsed[listAnswer](t, status, text)
		ended := 0
		for _, g := range all.Generations {
			if g.State == generation.Ended {
				ended++
			}
		}
		return ended == 5
	})
	refused := all.Generations[0]
	if refused.Outcome != generation.Refused || refused.Status != 429 || refused.LimitScope != "org" || refused.LimitKind != "rpm" || refused.CostNano != 0 {
		t.Errorf("the refusal is listed as %+v", refused)
	}
	if served := all.Generations[1]; served.Outcome != "completed" || served.Org != "acme" || served.Model != "m" || served.CostNano == 0 || !served.Settled || served.Tokens.OutputTokens != 7 {
		t.Errorf("what was served is listed as %+v", served)
	}
	page := list("limit=2", viewer)
	if len(page.Generations) != 2 || page.NextCursor == nil {
		t.Fatalf("a page is %+v", page)
	}
	if rest := list("limit=3&cursor="+*page.NextCursor, viewer); len(rest.Generations) != 3 || rest.NextCursor != nil || rest.Generations[2].ID != all.Generations[4].ID {
		t.Errorf("the rest is %+v", rest)
	}
	for query, want := range map[string]int{"outcome=refused": 1, "outcome=completed&model=m&key=" + refused.Key: 4, "model=other": 0, "outcome=in_progress": 0,
		"from=2020-01-01T00:00:00Z": 5, "to=2020-01-01T00:00:00Z": 0} {
		if got := list(query, viewer); len(got.Generations) != want {
			t.Errorf("%s: %d, want %d", query, len(got.Generations), want)
		}
	}
	if got := list("org=beta", operatorHeader()); len(got.Generations) != 1 || got.Generations[0].Org != "beta" {
		t.Errorf("an operator sees %+v", got)
	}
	recordOverHTTP(t, w, string(refused.ID), viewer, stranger)
	badListsOverHTTP(t, w, viewer)
	status, header, text := w.do("GET", "/api/generations?limit=2", "", with(viewer, "Accept", "text/csv"))
	if lines := strings.Split(strings.TrimSpace(text), "\n"); status != 200 || len(lines) != 3 || !strings.HasPrefix(lines[0], "id,created_at,") || !strings.HasPrefix(lines[1], string(refused.ID)+",") ||
		!strings.HasPrefix(header.Get("Content-Type"), "text/csv") {
		t.Errorf("as CSV: %d %v\n%s", status, header, text)
	}
	return all
}

// recordOverHTTP asks for one record in every way.
func recordOverHTTP(t *testing.T, w *whole, id string, viewer, stranger map[string]string) {
	for path, header := range map[string]map[string]string{"/api/generations/" + id: viewer, "/v1/generation?id=" + id: {"Authorization": "Bearer " + w.keys["acme"]}} {
		status, _, text := w.do("GET", path, "", header)
		var a struct{ Data generation.Record }
		if err := json.Unmarshal([]byte(text), &a); status != 200 || err != nil || string(a.Data.ID) != id || len(a.Data.AdmissionEvents) != 1 {
			t.Errorf("%s: %d %s", path, status, text)
			continue
		}
		if e := a.Data.AdmissionEvents[0]; e.Event != "refused" || e.Gate == "" || *e.Limit != 4 || *e.Used != 4 || *e.Requested != 1 || e.RetryAfterMS == nil {
			t.Errorf("%s: the refusal is %+v", path, e)
		}
	}
	for path, header := range map[string]map[string]string{"/api/generations/" + id: stranger, "/v1/generation?id=" + id: {"Authorization": "Bearer " + w.keys["beta"]}} {
		if status, _, text := w.do("GET", path, "", header); status != 404 || strings.Contains(text, "acme") {
			t.Errorf("%s as another org: %d %s", path, status, text)
		}
	}
	if status, _, _ := w.do("GET", "/api/generations", "", map[string]string{"Authorization": "Bearer " + w.keys["acme"]}); status != 401 {
		t.Errorf("an inference key: %d", status)
	}
}

func badListsOverHTTP(t *testing.T, w *whole, viewer map[string]string) {
	for query, field := range map[string]string{"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "cursor=x": "cursor", "outcome=good": "outcome",
		"from=yesterday": "from", "to=1": "to", "from=2026-03-02T10:00:00Z&to=2026-03-02T10:00:00Z": "from", "format=xml": "format", "key=" + strings.Repeat("k", 257): "key"} {
		status, _, text := w.do("GET", "/api/generations?"+query, "", viewer)
		if status != 400 || !strings.Contains(text, fmt.Sprintf(`"field":%q`, field)) || !strings.Contains(text, `"rule":`) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	if status, _, text := w.do("GET", "/api/generations", "", operatorHeader()); status != 400 || !strings.Contains(text, `"field":"org"`) {
		t.Errorf("an operator who names no org: %d %s", status, text)
	}
}
