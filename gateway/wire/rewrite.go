package wire

import (
	"strconv"

	"github.com/weirhq/weir/gateway/wire/scan"
)

// Edit is what must differ upstream. The zero value changes nothing.
type Edit struct {
	Model    string // the upstream's name for the model; "" leaves it
	Usage    bool   // ask for usage in a stream where the client did not (see NeedsUsage)
	Bound    int64  // the output limit to write when the body has none; 0 writes none
	OldField bool   // write a chat's bound to max_tokens, for servers that do not know max_completion_tokens
}

// splice replaces body[from:to] by text.
type splice struct {
	span
	text []byte
}

// Rewrite returns the body to send upstream. A body that needs no change is returned itself; the original is never
// changed.
func (r *Request) Rewrite(e Edit) []byte {
	var room [4]splice
	edits := room[:0]
	if e.Model != "" && e.Model != r.Model {
		edits = append(edits, splice{r.at.model, scan.AppendString(make([]byte, 0, len(e.Model)+8), e.Model)})
	}
	var space [96]byte
	tail := space[:0]
	if e.Usage && r.NeedsUsage() {
		if s, found := r.askUsage(); found {
			edits = append(edits, s)
		} else {
			tail = append(tail, `,"stream_options":{"include_usage":true}`...)
		}
	}
	if e.Bound > 0 && r.Output.Field == "" && r.Op.Generates() {
		if s, found := r.writeBound(e); found {
			edits = append(edits, s)
		} else {
			tail = append(append(append(tail, `,"`...), r.boundField(e)...), `":`...)
			tail = strconv.AppendInt(tail, e.Bound, 10)
		}
	}
	if len(tail) > 0 {
		edits = append(edits, splice{span{r.at.end, r.at.end}, tail})
	}
	if len(edits) == 0 {
		return r.Body
	}
	return apply(r.Body, edits)
}

// NeedsUsage says whether this is a stream that carries usage only on request, and the client did not request it: an
// upstream has to be asked, and the answer kept from the client.
func (r *Request) NeedsUsage() bool {
	return r.Stream && !r.IncludeUsage && (r.Op == Chat || r.Op == Completions)
}

func (r *Request) boundField(e Edit) string {
	if e.OldField && r.Op == Chat {
		return "max_tokens"
	}
	return r.Op.boundField()
}

// askUsage sets include_usage where stream_options stand already.
func (r *Request) askUsage() (splice, bool) {
	at := &r.at
	switch {
	case at.includeUsage.to != 0:
		return splice{at.includeUsage, []byte("true")}, true
	case at.openOpts != 0 && at.emptyOpts:
		return splice{span{at.openOpts, at.openOpts}, []byte(`"include_usage":true`)}, true
	case at.openOpts != 0:
		return splice{span{at.openOpts, at.openOpts}, []byte(`"include_usage":true,`)}, true
	case at.streamOpts.to != 0: // null
		return splice{at.streamOpts, []byte(`{"include_usage":true}`)}, true
	}
	return splice{}, false
}

// writeBound replaces the null of the very field; any other body gets the field at its end.
func (r *Request) writeBound(e Edit) (splice, bool) {
	slot := 0
	if r.boundField(e) == "max_tokens" {
		slot = 1
	}
	null := r.at.nullBound[slot]
	if null.to == 0 {
		return splice{}, false
	}
	return splice{null, []byte(itoa(e.Bound))}, true
}

// apply makes the new body. Edits do not overlap; there are at most four.
func apply(body []byte, edits []splice) []byte {
	size := len(body)
	for i := range edits {
		size += len(edits[i].text)
		for j := i; j > 0 && edits[j].from < edits[j-1].from; j-- {
			edits[j], edits[j-1] = edits[j-1], edits[j]
		}
	}
	out := make([]byte, 0, size)
	at := 0
	for _, e := range edits {
		out = append(append(out, body[at:e.from]...), e.text...)
		at = e.to
	}
	return append(out, body[at:]...)
}
