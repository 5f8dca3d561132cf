package biller

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/projections/usage"
)

// No name becomes a formula in what opens the file; amounts stay numbers.
func TestNoFormulaInACSV(t *testing.T) {
	r := Record{ID: "id", Line: usage.Line{Workspace: "=1+1", Principal: "+1", Key: "-1", Model: "@m", Deployment: "\t=1", Reason: "=HYPERLINK(1)", PriceVersion: "=p", Change: usage.Amounts{CostNano: -5}}}
	for i, value := range row(&r) {
		if value != "" && strings.ContainsRune("=+-@\t\r", rune(value[0])) != (columns[i] == "change_cost_nano") {
			t.Errorf("%s is %q", columns[i], value)
		}
	}
}
