package provider

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
)

// embeddings writes one vector for each input, as numbers or as base64 of little-endian floats.
func (a *answer) embeddings() {
	a.buf = append(a.buf, `{"object":"list","data":[`...)
	for i := range a.request.prompts {
		if i > 0 {
			a.buf = append(a.buf, ',')
		}
		a.buf = append(a.buf, `{"object":"embedding","index":`...)
		a.buf = append(strconv.AppendInt(a.buf, i, 10), `,"embedding":`...)
		a.vector(i)
		a.buf = append(a.buf, '}')
	}
	a.buf = append(append(a.buf, `],"model":`...), a.model...)
	a.inputUsage()
	a.buf = append(a.buf, '}')
}

func (a *answer) vector(n int64) {
	if a.request.base64 {
		raw := make([]byte, 0, 4*a.script.Dims)
		for d := range a.script.Dims {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(element(n, d)))
		}
		a.buf = append(a.buf, '"')
		a.buf = base64.StdEncoding.AppendEncode(a.buf, raw)
		a.buf = append(a.buf, '"')
		return
	}
	a.buf = append(a.buf, '[')
	for d := range a.script.Dims {
		if d > 0 {
			a.buf = append(a.buf, ',')
		}
		a.buf = strconv.AppendFloat(a.buf, float64(element(n, d)), 'f', -1, 32)
	}
	a.buf = append(a.buf, ']')
}

func element(n int64, d int) float32 { return float32((n*31+int64(d)*7)%64-32) / 64 }

// inputUsage appends the usage of an answer that has no output tokens.
func (a *answer) inputUsage() {
	if a.script.NoUsage {
		return
	}
	a.buf = strconv.AppendInt(append(a.buf, `,"usage":{"prompt_tokens":`...), a.input, 10)
	a.buf = strconv.AppendInt(append(a.buf, `,"total_tokens":`...), a.input, 10)
	a.buf = append(a.buf, '}')
}

// rerank writes the documents in their order, each less relevant than the one before.
func (a *answer) rerank() {
	a.buf = append(strconv.AppendInt(append(a.buf, `{"id":"rerank-`...), a.id, 10), `","model":`...)
	a.buf = append(append(a.buf, a.model...), `,"results":[`...)
	for i := range a.request.prompts {
		if i > 0 {
			a.buf = append(a.buf, ',')
		}
		a.buf = strconv.AppendInt(append(a.buf, `{"index":`...), i, 10)
		a.buf = append(a.buf, `,"relevance_score":`...)
		a.buf = append(strconv.AppendFloat(a.buf, 1/float64(i+1), 'f', 6, 64), '}')
	}
	a.buf = append(a.buf, ']')
	a.inputUsage()
	a.buf = append(a.buf, '}')
}
