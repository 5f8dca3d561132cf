package store_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// BenchmarkMirror measures 100,000 keys of 100 orgs: what they take, how long a gateway needs to start with them, and how long one changed
// key takes from the call until another gateway decides on it.
func BenchmarkMirror(b *testing.B) {
	const keys, orgs = 100_000, 100
	br := newBroker(b)
	op := newOperator(b, br)
	var records []authority.Record
	for i := range orgs {
		records = append(records, &authority.OrgRecord{Org: events.Org(fmt.Sprint("o", i)), Made: true})
	}
	for i := range keys {
		k := key(events.Org(fmt.Sprint("o", i%orgs)), uuid.NewString())
		k.Name, k.RPMCeiling = "a key", 60
		records = append(records, k)
	}
	begin := time.Now()
	op.put(b, records...)
	b.Logf("%d keys were put in one change in %s", keys, time.Since(begin).Round(time.Millisecond))
	records = nil
	before := heap()
	begin = time.Now()
	gate := mirror(b, gates1(b, br))
	b.Logf("a gateway starts with them in %s and takes %d MiB", time.Since(begin).Round(time.Millisecond), (heap()-before)>>20)
	if got := len(gate.Current().Keys); got != keys {
		b.Fatalf("%d keys", got)
	}
	b.ResetTimer()
	for i := range b.N {
		k := key("o5", "changing")
		k.RPMCeiling = int64(i + 1)
		done := op.put(b, k)
		check(b, gate.Reached(within(b), done.Mark))
	}
	runtime.KeepAlive(gate)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
