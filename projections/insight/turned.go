package insight

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/gate"
)

// metersOf gives the meters that a refusal by a gateway may be about: it names a limit in the words of headers, not a meter. Those come
// first that are of the scope alone.
func metersOf(d *events.Refused) (all []events.Meter) {
	scope, dimensions := events.Scope(d.Scope), []string{d.LimitKind}
	switch d.LimitKind {
	case "":
		return nil
	case "spend":
		dimensions = []string{"spend-day", "spend-month", "balance"}
	case "rps_queue":
		scope, dimensions = events.ScopeEndpoint, []string{"pace"}
	case "cooldown":
		dimensions = []string{"pause"}
	case "fairness":
		dimensions = []string{"rpm", "tpm", "concurrency"}
	}
	subjects := [][]string{{d.LimitID}, {string(d.Org), d.LimitID}, {d.LimitID, d.Model}, {d.LimitID, string(d.Org)}}
	if d.LimitID == "" {
		subjects = [][]string{{string(events.Platform)}, {string(d.Org)}}
	}
	for _, subject := range subjects {
		for _, dimension := range dimensions {
			m := events.NewMeter(scope, dimension, subject...)
			if w := gate.Which(m); w.Scope == d.Scope && w.Kind == d.LimitKind && w.LimitID == d.LimitID {
				all = append(all, m)
			}
		}
	}
	return all
}
