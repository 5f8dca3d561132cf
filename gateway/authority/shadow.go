package authority

import (
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/gate"
)

// Rates are the limits that can stand in a scope's shadow: they are counted, and what they would have refused is recorded, but they
// refuse nothing. 0 is no limit.
type Rates struct {
	RPM         int64 `json:"rpm,omitempty"`
	RPS         int64 `json:"rps,omitempty"`
	TPM         int64 `json:"tpm,omitempty"`
	Concurrency int64 `json:"concurrency,omitempty"`
}

// Shadow names the meter on which a shadow limit counts, beside the meter of the limit itself: org/acme/rpm has org/acme/shadow-rpm.
func Shadow(m events.Meter) events.Meter {
	at := strings.LastIndexByte(string(m), '/') + 1
	return m[:at] + gate.ShadowPrefix + m[at:]
}
