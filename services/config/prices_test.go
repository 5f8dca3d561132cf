package config

import (
	"strings"
	"testing"
	"time"
)

func TestPricesByDate(t *testing.T) {
	c, _ := load(t, `
models:
  - id: m
    local: {replicas: [http://a]}
    price:
      - {from: 2026-07-01T12:00:00+02:00, input: 2, output: 5, reasoning: 9, version: summer}
      - {input: 1, output: 4}
      - {from: 2026-01-01, input: "1.5", output: 4}
  - {id: n, local: {replicas: [http://b]}, price: {from: 2026-01-01, input: 1, output: 4}}
`, vars{})
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	m, n := c.Models[0], c.Models[1]
	for text, want := range map[string]int64{"2025-12-31T23:59:59Z": 1_000_000_000, "2026-01-01T00:00:00Z": 1_500_000_000, "2026-07-01T09:59:59Z": 1_500_000_000, "2026-07-01T10:00:00Z": 2_000_000_000} {
		if p := m.PriceAt(at(text)); p.Input != want {
			t.Errorf("at %s input costs %d, want %d", text, p.Input, want)
		}
	}
	if p := m.PriceAt(at("2027-01-01T00:00:00Z")); p.Version != "summer" || p.Reasoning != 9_000_000_000 {
		t.Errorf("%+v", p)
	}
	// The same price has the same name wherever it is declared, and a price for reasoning is part of what it is.
	first, second := n.PriceAt(at("2026-02-01T00:00:00Z")), m.Price
	if n.PriceAt(at("2025-12-31T00:00:00Z")) != nil || first.Version != second.Version || first.Version != "p-"+first.Name()[2:] {
		t.Errorf("%+v, %+v", first, second)
	}
	other := *first
	if other.Reasoning = 1; other.Name() == first.Version {
		t.Error("two prices have one name")
	}
	_, _, err := Parse("weir.yaml", []byte("models: [{id: m, local: {replicas: [http://a]}, price: [{input: 1, output: 1}, {from: 2027-13-01, input: 1, output: 1}]}]"), func(string) string { return "" })
	if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "from is 2027-13-01: must be a day") {
		t.Errorf("one price without a readable beginning is more than one fault: %v", err)
	}
	for text, want := range map[string]string{
		"[{input: 1, output: 1}, {input: 2, output: 2}]":                                     "begins when another does",
		"[{from: 2026-01-01, input: 1, output: 1}, {from: 2026-01-02, input: 1, output: 1}]": "has the version of another",
		"{from: soon, input: 1, output: 1}":                                                  "must be a day, such as 2026-01-01, or an RFC 3339 time",
		"{input: 1, output: 1, reasoning: 0}":                                                "must be greater than 0",
	} {
		_, _, err := Parse("weir.yaml", []byte("models: [{id: m, local: {replicas: [http://a]}, price: "+text+"}]"), func(string) string { return "" })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
