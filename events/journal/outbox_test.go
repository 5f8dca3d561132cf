package journal

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
)

// TestOutboxKeepsOrderAndCount drives an outbox against a plain list: by class, first in first out, none lost, none twice.
func TestOutboxKeepsOrderAndCount(t *testing.T) {
	data := []events.Data{&events.Lease{}, &events.Release{}, &events.TrueUp{}, &events.Reserve{}, &events.Tick{}}
	start := time.Unix(0, 0)
	rapid.Check(t, func(t *rapid.T) {
		var o outbox
		var want [classes][]string
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 1500).Draw(t, "n") {
					c := rapid.IntRange(0, len(data)-1).Draw(t, "class")
					it := item{event: events.Event{ID: fmt.Sprint(n), Data: data[c]}, since: start.Add(time.Duration(n))}
					if c == int(classReserve) {
						it.by = start.Add(time.Duration(n % 50))
					}
					o.push(it)
					want[c] = append(want[c], it.event.ID)
					n++
				}
			},
			"take": func(t *rapid.T) {
				batch := o.take()
				if rapid.Bool().Draw(t, "put back") {
					o.putBack(batch)
					return
				}
				for _, it := range batch {
					c := slices.IndexFunc(want[:], func(q []string) bool { return len(q) > 0 })
					if c < 0 || want[c][0] != it.event.ID {
						t.Fatalf("took %s, want the head of %v", it.event.ID, want)
					}
					want[c] = want[c][1:]
				}
			},
			"expire": func(t *rapid.T) {
				now := start.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "now")))
				late := o.expire(now)
				var kept []string
				gone := 0
				for _, id := range want[classReserve] {
					var i int
					fmt.Sscan(id, &i)
					if i%50 <= int(now.Sub(start)) {
						gone++
					} else {
						kept = append(kept, id)
					}
				}
				if len(late) != gone {
					t.Fatalf("%d expired, want %d", len(late), gone)
				}
				want[classReserve] = kept
			},
			"": func(t *rapid.T) {
				total := 0
				for _, q := range want {
					total += len(q)
				}
				if o.n != total || o.reserves() != len(want[classReserve]) || o.oldest().IsZero() != (total == 0) {
					t.Fatalf("holds %d with %d reserves, want %d with %d", o.n, o.reserves(), total, len(want[classReserve]))
				}
			},
		})
		if rest := o.empty(); o.n != 0 || o.take() != nil || len(rest) != len(slices.Concat(want[:]...)) {
			t.Fatalf("%d left over", len(rest))
		}
	})
}
