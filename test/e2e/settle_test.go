package e2e

import (
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

// lastOf is the id of the newest request that reached the upstream.
func lastOf(s *stack.Stack) string {
	calls := s.Provider.Ledger().Calls()
	return calls[len(calls)-1].RequestID
}

// settledOnce checks that a request of one attempt was reserved once, settled once and released once, and as what.
func settledOnce(t *testing.T, trail *stack.Trail, outcome events.Outcome, dispatched events.Dispatched, quality events.Quality) {
	t.Helper()
	ends, finals := trail.Ended(), trail.Finals()
	if len(trail.Reserves) != 1 || len(ends) != 1 || len(trail.Releases) != 1 {
		t.Fatalf("%d reserves, %d releases (%d of the request): want one of each", len(trail.Reserves), len(trail.Releases), len(ends))
	}
	if ends[0].Outcome != outcome || ends[0].Dispatched != dispatched {
		t.Errorf("released as %s, dispatched %s: want %s, %s", ends[0].Outcome, ends[0].Dispatched, outcome, dispatched)
	}
	if dispatched == events.DispatchedNo {
		if len(finals) != 0 {
			t.Errorf("%d finals of a request that was never sent", len(finals))
		}
		return
	}
	if len(finals) != 1 {
		t.Fatalf("%d finals: want one", len(finals))
	}
	if finals[0].Quality != quality {
		t.Errorf("usage is %s: want %s", finals[0].Quality, quality)
	}
}
