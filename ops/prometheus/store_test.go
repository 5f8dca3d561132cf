package prometheus

import (
	"context"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// store holds the series of one test in memory; Prometheus's own storage would bring in much that has nothing to do with rules.
type store struct {
	series map[uint64]*held
}

type held struct {
	labels labels.Labels
	points []chunks.Sample
}

// point is one number at an instant, ms since 1970.
type point struct {
	t int64
	v float64
}

func (p point) T() int64                      { return p.t }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

func (s *store) add(l labels.Labels, at int64, v float64) {
	if s.series == nil {
		s.series = map[uint64]*held{}
	}
	h := s.series[l.Hash()]
	if h == nil {
		h = &held{labels: l}
		s.series[l.Hash()] = h
	}
	h.points = append(h.points, point{at, v})
}

// Querier is storage.Queryable's.
func (s *store) Querier(from, to int64) (storage.Querier, error) { return querier{s, from, to}, nil }

type querier struct {
	s        *store
	from, to int64
}

// Select gives the series that match, sorted, with their points within the querier's time.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, h := range q.s.series {
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(h.labels.Get(m.Name)) }) {
			continue
		}
		from := sort.Search(len(h.points), func(i int) bool { return h.points[i].T() >= q.from })
		to := sort.Search(len(h.points), func(i int) bool { return h.points[i].T() > q.to })
		if from < to {
			found = append(found, storage.NewListSeries(h.labels, h.points[from:to]))
		}
	}
	sort.Slice(found, func(i, j int) bool { return labels.Compare(found[i].Labels(), found[j].Labels()) < 0 })
	return &set{found, -1}
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil // no rule asks
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil // no rule asks
}

func (querier) Close() error { return nil }

type set struct {
	found []storage.Series
	at    int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.found) }
func (s *set) At() storage.Series                { return s.found[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }
