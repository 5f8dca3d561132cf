package insight

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
)

// turnedAway is a log in which two requests of a limit of two are admitted, and gateways refuse one and then three together; one more is too
// large for its model.
func turnedAway() []events.Record {
	log := eventstest.NewLog(1_780_000_000 * secondNS)
	var all []events.Record
	add := func(d events.Data) { all = append(all, log.Add(d)) }
	two := int64(2)
	for k := range 2 {
		d := eventstest.Reserve(eventstest.RequestID(k), eventstest.Rate("org/acme/rpm", two), eventstest.Tokens("org/acme/tpm", 10, 1000))
		add(d)
		add(eventstest.Final(d.Request, 5, 5, 100))
		add(eventstest.Release(d.Request))
	}
	refused := func(k int, gate, scope, kind, id string, count int64) {
		add(&events.Refused{Request: eventstest.RequestID(k), Org: eventstest.Org, Gateway: eventstest.Gateway, Key: eventstest.Key, Model: eventstest.Model, Gate: gate, Origin: "gateway_admission",
			Scope: scope, LimitKind: kind, LimitID: id, Limit: &two, Used: 2, Requested: 1, Status: 429, Code: "rate_limit_exceeded", Count: count})
	}
	refused(10, "limits", "org", "rpm", "acme", 0)
	refused(11, "limits", "org", "rpm", "acme", 3)
	refused(12, "b1", "model", "input", eventstest.Model, 0)
	return all
}

// What gateways refused before the log comes under other limits, too.
func TestWhatGatewaysRefusedIsAskedAgain(t *testing.T) {
	type outcome struct {
		recorded, simulated Outcomes
		admitted, refused   int64
		replayed, left      int64
	}
	for name, c := range map[string]struct {
		config SimulationConfig
		want   outcome
	}{
		"a limit of five":    {SimulationConfig{Limits: limits(t, map[string]int64{"org/acme/rpm": 5})}, outcome{Outcomes{Asked: 6, Admitted: 2, Refused: 4}, Outcomes{Asked: 6, Admitted: 5, Refused: 1}, 3, 0, 4, 1}},
		"a limit of one":     {SimulationConfig{Limits: limits(t, map[string]int64{"org/acme/rpm": 1})}, outcome{Outcomes{Asked: 6, Admitted: 2, Refused: 4}, Outcomes{Asked: 6, Admitted: 1, Refused: 5}, 0, 1, 4, 1}},
		"another limit":      {SimulationConfig{Limits: limits(t, map[string]int64{"org/acme/tpm": 999})}, outcome{Outcomes{Asked: 6, Admitted: 2, Refused: 4}, Outcomes{Asked: 6, Admitted: 2, Refused: 4}, 0, 0, 4, 1}},
		"twice the load":     {SimulationConfig{Scale: 2 * ScaleOnce}, outcome{Outcomes{Asked: 6, Admitted: 2, Refused: 4}, Outcomes{Asked: 12, Admitted: 2, Refused: 10}, 0, 2, 4, 1}},
		"as it was":          {SimulationConfig{}, outcome{Outcomes{Asked: 2, Admitted: 2}, Outcomes{Asked: 2, Admitted: 2}, 0, 0, 0, 5}},
		"of another org":     {SimulationConfig{Org: "beta", Scale: 2 * ScaleOnce}, outcome{}},
		"no limit of a kind": {SimulationConfig{Limits: limits(t, map[string]int64{"key/*/rpm": 5})}, outcome{Outcomes{Asked: 6, Admitted: 2, Refused: 4}, Outcomes{Asked: 6, Admitted: 2, Refused: 4}, 0, 0, 4, 1}},
	} {
		s, _ := simulate(t, turnedAway(), c.config)
		r := s.Report()
		got := outcome{recorded: r.Recorded, simulated: r.Simulated, admitted: r.Changed.NowAdmitted, refused: r.Changed.NowRefused, replayed: r.Replayed}
		for _, row := range r.Turned {
			got.left += row.Count
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(outcome{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%s", name, diff, r.Text())
		}
		if told := strings.Contains(r.Text(), "asks what the last one of its key and model asked"); told != (r.Replayed > 0) {
			t.Errorf("%s: that it assumes so is told: %t", name, told)
		}
	}
}
