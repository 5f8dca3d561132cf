package scan

import "bytes"

// Keeper reads a JSON object that arrives in pieces and keeps a smaller one: the values of the top-level keys named in
// Drop, and any top-level value longer than Max, are replaced by null. Bulk such as embedding vectors so passes through
// without being held.
type Keeper struct {
	Drop func(key []byte) bool // may be nil
	Max  int                   // bytes kept of any one value

	kept    []byte
	depth   int
	quoted  bool // inside a string
	escaped bool // right after a backslash
	value   bool // after the colon of a top-level key
	skip    bool // inside a top-level value that is not kept
	key     int  // where in kept the last top-level string began
	from    int  // where in kept the current top-level value began
	dropped int64
}

// Write reads the next piece.
func (k *Keeper) Write(b []byte) {
	for i := 0; i < len(b); {
		if k.quoted {
			n := k.inString(b[i:])
			i += n
			continue
		}
		if k.skip && k.depth > 1 {
			n := past(b[i:])
			k.dropped += int64(n)
			if i += n; i == len(b) {
				return
			}
		}
		ch := b[i]
		i++
		switch ch {
		case '"':
			if k.depth == 1 && !k.value {
				k.key = len(k.kept)
			}
			k.quoted = true
		case '{', '[':
			k.depth++
		case '}', ']':
			k.depth--
			if k.depth == 0 {
				k.endValue()
			}
		case ',':
			if k.depth == 1 {
				k.endValue()
			}
		case ':':
			if k.depth == 1 && !k.value {
				k.keep(ch)
				k.beginValue()
				continue
			}
		}
		k.keep(ch)
	}
}

// inString reads on to the end of the string or of b and returns how much that was.
func (k *Keeper) inString(b []byte) int {
	i, quote := 0, -1
	for i < len(b) {
		if k.escaped {
			k.escaped = false
			i++
			continue
		}
		if quote < i { // searched for once per quote, not once per backslash
			if quote = bytes.IndexByte(b[i:], '"'); quote < 0 {
				quote = len(b)
			} else {
				quote += i
			}
		}
		if s := bytes.IndexByte(b[i:quote], '\\'); s >= 0 {
			i += s + 1
			k.escaped = true
			continue
		}
		i = quote
		if quote < len(b) {
			i++
			k.quoted = false
		}
		break
	}
	if k.skip {
		k.dropped += int64(i)
		return i
	}
	k.kept = append(k.kept, b[:i]...)
	k.bound()
	return i
}

var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// past returns how many bytes at the start of b cannot end a value that is being left out.
func past(b []byte) int {
	i := 0
	for i < len(b) && !structural[b[i]] {
		i++
	}
	return i
}

func (k *Keeper) keep(ch byte) {
	if k.skip {
		k.dropped++
		return
	}
	k.kept = append(k.kept, ch)
	k.bound()
}

func (k *Keeper) bound() {
	if k.value && len(k.kept)-k.from > k.Max {
		k.discard()
	}
}

func (k *Keeper) beginValue() {
	k.value, k.from = true, len(k.kept)
	if k.Drop == nil {
		return
	}
	c := New(k.kept[k.key:])
	if raw, _ := c.Str(); k.Drop(raw) {
		k.discard()
	}
}

// discard replaces what was kept of the current value by null.
func (k *Keeper) discard() {
	k.dropped += int64(len(k.kept) - k.from)
	k.kept = append(k.kept[:k.from], "null"...)
	k.skip = true
}

func (k *Keeper) endValue() { k.value, k.skip = false, false }

// Kept returns the object as far as it was read.
func (k *Keeper) Kept() []byte { return k.kept }

// Dropped counts the bytes of values that were not kept.
func (k *Keeper) Dropped() int64 { return k.dropped }
