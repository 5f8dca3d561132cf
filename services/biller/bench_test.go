package biller

import (
	"testing"
)

// BenchmarkCatchUp bills a log that is there: three messages a request, each alone, which is the most that a log costs to read.
func BenchmarkCatchUp(b *testing.B) {
	n := newNode(b)
	const each = 10_000
	for b.Loop() {
		b.StopTimer()
		from := n.ids / 3
		n.requests(from, from+each)
		want := n.count() + each*4/5
		b.StartTimer()
		r := n.run("", nil)
		n.eventually("all billed", func() bool { return n.count() >= want })
		b.StopTimer()
		if err := r.stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*each*4/5/b.Elapsed().Seconds(), "lines/s")
}
