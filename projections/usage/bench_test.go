package usage

import (
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
)

// BenchmarkRequest folds a reserve, its final and its release.
func BenchmarkRequest(b *testing.B) {
	log, u := eventstest.NewLog(began), New(admission.New())
	ids := make([]events.RequestID, 4096)
	for n := range ids {
		ids[n] = id(n)
	}
	lines := 0
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%len(ids) == 0 {
			log.Now += 25 * minute // what was is forgotten
		}
		request := ids[n%len(ids)]
		for _, d := range []events.Data{eventstest.Reserve(request, eventstest.Tokens("org/acme/tpm", 1, 1<<40), eventstest.Slot("org/acme/concurrency", 1<<20)),
			eventstest.Final(request, 250, 40, 91_000), eventstest.Release(request)} {
			r := log.Add(d)
			lines += len(u.Apply(&r))
		}
	}
	if lines != b.N {
		b.Fatalf("%d lines of %d requests", lines, b.N)
	}
}
