package admission

import "sort"

// slot is what was charged to one bucket of a window.
type slot struct {
	bucket int64
	n      int64
}

// grain gives a window's bucket in ns, and how many buckets back are still live.
func (m *meter) grain() (size, live int64) {
	if m.windowMS == 1000 {
		return 20 * ms, 50
	}
	return second, 60
}

// roll drops the buckets that are no longer live.
func (f *Fold) roll(m *meter) {
	size, live := m.grain()
	oldest := f.now/size - live
	i := 0
	for i < len(m.slots) && m.slots[i].bucket < oldest {
		if n := m.slots[i].n; n != 0 {
			if m.sum -= n; m.sum == 0 {
				m.emptied = (m.slots[i].bucket + live + 1) * size
			}
		}
		i++
	}
	if i == 0 {
		return
	}
	if i == len(m.slots) {
		m.slots = nil // an idle window holds no buckets
		return
	}
	m.slots = append(m.slots[:0], m.slots[i:]...)
	m.resum()
}

// resum counts the buckets again: a sum that was stopped at the end of the range does not come down by subtraction.
func (m *meter) resum() {
	if m.sum < saturatedLimit/2 {
		return
	}
	m.sum = 0
	for _, s := range m.slots {
		m.sum = add(m.sum, s.n)
	}
}

// pour changes a bucket by n, if it is live; a bucket of the future is not.
func (f *Fold) pour(m *meter, bucket, n int64) {
	f.roll(m)
	size, live := m.grain()
	current := f.now / size
	if bucket < current-live || bucket > current || n == 0 {
		return
	}
	last := len(m.slots) - 1
	switch {
	case last >= 0 && m.slots[last].bucket == bucket:
		m.slots[last].n = add(m.slots[last].n, n)
	case last < 0 || m.slots[last].bucket < bucket:
		m.slots = append(m.slots, slot{bucket, n})
	default:
		i := sort.Search(len(m.slots), func(i int) bool { return m.slots[i].bucket >= bucket })
		if m.slots[i].bucket != bucket {
			m.slots = append(m.slots, slot{})
			copy(m.slots[i+1:], m.slots[i:])
			m.slots[i] = slot{bucket: bucket}
		}
		m.slots[i].n = add(m.slots[i].n, n)
	}
	if m.sum = add(m.sum, n); m.sum == 0 {
		m.emptied = f.now
	}
	m.resum()
}

// windowRetry gives the ms until enough of the oldest buckets have aged out for need to fit.
func (f *Fold) windowRetry(m *meter, need, limit int64) int64 {
	size, live := m.grain()
	left := m.sum
	for _, s := range m.slots {
		left -= s.n
		if s.n != 0 && add(left, need) <= limit {
			return ceilMS((s.bucket+live+1)*size - f.now)
		}
	}
	return 0
}
