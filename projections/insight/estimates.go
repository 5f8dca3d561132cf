package insight

import (
	"slices"
	"strings"

	"github.com/weirhq/weir/events"
)

// The dimensions of meters whose claims are made of an estimate of tokens.
const (
	dimensionTPM       = "tpm"
	dimensionShadowTPM = "shadow-tpm"
	dimensionITPM      = "itpm"
)

// learned are the dimensions that count learned input, with what they are called.
var learned = map[string]string{"occupancy": "occupancy", dimensionITPM: "input a minute", "daily": "tokens a day"}

// estimateWords says of which estimate a reserve's claims were made, as far as it has claims of tokens: a minute's tokens and an account's
// are claimed for the most that the input can come to, by its bytes, and the gates of models and keys for what was learned.
func estimateWords(d *events.Reserve) string {
	var most *events.Claim
	var by []string
	output := false
	for i := range d.Claims {
		c := &d.Claims[i]
		switch _, _, dimension := c.Meter.Split(); {
		case dimension == dimensionTPM, dimension == dimensionShadowTPM:
			if most == nil {
				most = c
			}
		case learned[dimension] != "" && !slices.Contains(by, learned[dimension]):
			by = append(by, learned[dimension])
			output = output || dimension != dimensionITPM
		}
	}
	var said []string
	if most != nil {
		said = append(said, mostWords(most))
	}
	if len(by) > 0 {
		text := "for " + joined(by) + " " + Number(d.Estimate.InputTokens) + " in, as learned"
		if output && d.Estimate.OutputDeclared {
			text += ", and " + Number(d.Estimate.OutputTokens) + " out, as declared"
		}
		said = append(said, text)
	}
	return strings.Join(said, "; ")
}

// mostWords says what a claim of a minute's tokens is made of.
func mostWords(c *events.Claim) string {
	text := "for tokens a minute it counts " + Number(c.Amount)
	if c.Basis != events.BasisTotal {
		text += " by the weights of kinds"
	}
	return text + ", the input at most by its bytes"
}

// joined writes names as a list: a, b and c.
func joined(names []string) string {
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " and " + names[last]
	}
	return names[0]
}
