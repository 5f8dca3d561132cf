package kv

import (
	"container/heap"

	"github.com/weirhq/weir/events"
)

// state is a meter that the writer knows. It is in one of the two queues.
type state struct {
	meter  events.Meter
	entry  Entry
	dirty  bool  // changed since it was put
	gone   bool  // to be deleted
	put    bool  // has been put in this term
	at     int64 // when it was last put, ns
	level  uint8 // as last put
	queued int   // requests that waited, as last put

	urgent bool  // is to be put at once
	heat   int64 // its place in hot
	due    int64 // its place in later, ns
	in     *queue
	place  int
}

// later orders meters by when they are due, hot by how pressing they are.
func later(a, b *state) bool  { return a.due < b.due }
func hotter(a, b *state) bool { return a.heat > b.heat }

// queue is a heap of states that know their places.
type queue struct {
	all    []*state
	before func(a, b *state) bool
}

func (q *queue) Len() int           { return len(q.all) }
func (q *queue) Less(i, j int) bool { return q.before(q.all[i], q.all[j]) }
func (q *queue) Swap(i, j int) {
	q.all[i], q.all[j] = q.all[j], q.all[i]
	q.all[i].place, q.all[j].place = i, j
}

// Push is heap.Interface's.
func (q *queue) Push(x any) {
	s := x.(*state)
	s.place = len(q.all)
	q.all = append(q.all, s)
}

// Pop is heap.Interface's.
func (q *queue) Pop() any {
	last := len(q.all) - 1
	s := q.all[last]
	q.all[last] = nil
	q.all = q.all[:last]
	return s
}

// move puts s into q, or to its new place there.
func (q *queue) move(s *state) {
	if s.in == q {
		heap.Fix(q, s.place)
		return
	}
	s.leave()
	s.in = q
	heap.Push(q, s)
}

// leave takes s out of its queue.
func (s *state) leave() {
	if s.in != nil {
		heap.Remove(s.in, s.place)
		s.in = nil
	}
}

// first gives the state that stands first, nil if there is none.
func (q *queue) first() *state {
	if len(q.all) == 0 {
		return nil
	}
	return q.all[0]
}
