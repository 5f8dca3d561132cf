package insight

import (
	"testing"

	"github.com/weirhq/weir/events"
)

// What is said of estimates is what the claims were made of.
func TestEstimatesAreTold(t *testing.T) {
	tpm := events.Claim{Meter: "org/acme/tpm", Kind: events.Window, Basis: events.BasisTotal, Amount: 127}
	pool := events.Claim{Meter: "pool/house/tpm", Kind: events.Window, Basis: events.BasisTotal, Amount: 127, Life: events.LifeAttempt}
	weighted := events.Claim{Meter: "org/acme/tpm", Kind: events.Window, Basis: "weighted", Amount: 2000}
	occupancy := events.Claim{Meter: "model/m/occupancy", Kind: events.Gauge, Basis: events.BasisFootprint, Amount: 54}
	itpm := events.Claim{Meter: "key/k.m/itpm", Kind: events.Bucket, Basis: events.BasisInput, Amount: 4}
	daily := events.Claim{Meter: "key/k/daily", Kind: events.Budget, Basis: events.BasisTotal, Amount: 4, Check: 54, HasCheck: true}
	rpm := events.Claim{Meter: "org/acme/rpm", Kind: events.Window, Basis: events.BasisRequest, Amount: 1}
	shadow := events.Claim{Meter: "org/acme/shadow-tpm", Kind: events.Window, Basis: events.BasisTotal, Amount: 127, Shadow: true}
	for _, c := range []struct {
		declared bool
		claims   []events.Claim
		want     string
	}{
		{true, []events.Claim{rpm}, ""},
		{true, []events.Claim{rpm, tpm, pool}, "for tokens a minute it counts 127, the input at most by its bytes"},
		{false, []events.Claim{shadow}, "for tokens a minute it counts 127, the input at most by its bytes"},
		{true, []events.Claim{weighted}, "for tokens a minute it counts 2,000 by the weights of kinds, the input at most by its bytes"},
		{true, []events.Claim{occupancy, tpm}, "for tokens a minute it counts 127, the input at most by its bytes; for occupancy 4 in, as learned, and 50 out, as declared"},
		{false, []events.Claim{occupancy, daily, tpm}, "for tokens a minute it counts 127, the input at most by its bytes; for occupancy and tokens a day 4 in, as learned"},
		{true, []events.Claim{occupancy, itpm, daily}, "for occupancy, input a minute and tokens a day 4 in, as learned, and 50 out, as declared"},
		{true, []events.Claim{itpm}, "for input a minute 4 in, as learned"},
	} {
		d := &events.Reserve{Claims: c.claims, Estimate: events.Estimate{InputTokens: 4, OutputTokens: 50, OutputDeclared: c.declared}}
		if got := estimateWords(d); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
