package gateway

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/events"
)

// TestMetricsOfManyOrgs: however many orgs and models there are, the series are bounded, nothing that is counted is lost, and who was
// shown before the bound stays so.
func TestMetricsOfManyOrgs(t *testing.T) {
	if events.Org(otherOrgs).Valid() {
		t.Fatalf("%s can be an org", otherOrgs)
	}
	m := NewMetrics()
	count := func(org events.Org, model string) { m.cost.WithLabelValues(m.org(org, model), model).Inc() }
	const orgs = maxOrgModels // with two models each twice what is shown
	for range 2 {
		for i := range orgs {
			for _, model := range []string{"a", "b"} {
				count(events.Org(fmt.Sprintf("org%d", i)), model)
			}
		}
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.cost)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := families[0].GetMetric()
	if want := maxOrgModels + 2; len(series) != want {
		t.Errorf("%d series, not %d", len(series), want)
	}
	for _, s := range series {
		want := 2.0
		if s.GetLabel()[1].GetValue() == otherOrgs {
			want = 2 * orgs / 2 // of each model, half of the orgs twice
		}
		if got := s.GetCounter().GetValue(); got != want {
			t.Errorf("%v: %v, not %v", s.GetLabel(), got, want)
		}
	}
}
