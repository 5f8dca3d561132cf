package admission_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
)

// Lapses are told when they happen, to the nanosecond, and from any snapshot.
func TestLapses(t *testing.T) {
	begin := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC).UnixNano()
	log := eventstest.NewLog(begin)
	fold := admission.New()
	apply := func(after time.Duration, d events.Data) (got []events.Lapse) {
		t.Helper()
		for end := log.Now + int64(after); log.Now < end; { // a log that is not silent
			log.Step = min(int64(time.Second), end-log.Now)
			r := log.Add(&events.Tick{})
			fold.Apply(&r)
			got = append(got, fold.Lapses()...)
		}
		log.Step = 0
		r := log.Add(d)
		var err error
		if fold, err = admission.Restore(fold.Snapshot(nil)); err != nil {
			t.Fatal(err)
		}
		fold.Apply(&r)
		return append(got, fold.Lapses()...)
	}
	is := func(what string, got []events.Lapse, want ...events.Lapse) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (- want, + got):\n%s", what, diff)
		}
	}
	lapse := func(n int, state events.LapseState, at int64) events.Lapse {
		return events.Lapse{Request: eventstest.RequestID(n), State: state, Time: at}
	}
	reserve := func(n int) *events.Reserve {
		return eventstest.Reserve(eventstest.RequestID(n), eventstest.Slot("org/acme/concurrency", 10))
	}
	lease := func(epoch int64) *events.Lease { return &events.Lease{Gateway: eventstest.Gateway, Epoch: epoch} }

	is("admitted", apply(0, reserve(1)))
	is("released in time", apply(0, reserve(2)))
	is("the release", apply(time.Second, eventstest.Release(eventstest.RequestID(2))))
	renewed := log.Now
	is("renewed", apply(0, lease(1)))
	is("not yet", apply(10*time.Second-1, &events.Tick{}))
	is("the lease ends", apply(1, &events.Tick{}), lapse(1, events.LapseBegan, renewed+int64(10*time.Second)))
	is("and is renewed", apply(5*time.Second, lease(1)), lapse(1, events.LapseOver, log.Now))
	ends := log.Now + int64(10*time.Second)
	is("and ends for good", apply(10*time.Second+15*time.Minute, &events.Tick{}), lapse(1, events.LapseBegan, ends), lapse(1, events.LapseEnded, ends+int64(15*time.Minute)))

	is("another", apply(0, reserve(3)))
	is("a new epoch", apply(time.Second, lease(2)), lapse(3, events.LapseEnded, log.Now))
	long := reserve(4)
	long.Epoch, long.MaxMS = 2, 2000
	is("a short one", apply(0, long))
	until := log.Now + int64(2*time.Second)
	is("its time is up", apply(3*time.Second, lease(2)), lapse(4, events.LapseEnded, until))
}
