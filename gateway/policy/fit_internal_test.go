package policy

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/events"
)

// A reserve has at most so many claims: shadows give way, the last first, and nothing else does.
func TestShadowsGiveWay(t *testing.T) {
	p := &Plan{Rates: 6}
	for i := range events.MaxClaims + 5 {
		p.Claims = append(p.Claims, events.Claim{Meter: events.Meter(fmt.Sprintf("org/%d/rpm", i)), Shadow: i%2 == 1 && i < 13})
	}
	p.fit()
	shadows := 0
	for _, c := range p.Claims {
		if c.Shadow {
			shadows++
		}
	}
	if len(p.Claims) != events.MaxClaims || shadows != 1 || p.Rates != 4 {
		t.Errorf("%d claims, %d shadows, %d rates", len(p.Claims), shadows, p.Rates)
	}
	if c := p.Claims[len(p.Claims)-1]; c.Meter != events.Meter(fmt.Sprintf("org/%d/rpm", events.MaxClaims+4)) {
		t.Errorf("the last is %s", c.Meter)
	}
}
