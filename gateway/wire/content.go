package wire

import (
	"bytes"
	"fmt"

	"github.com/weirhq/weir/gateway/wire/scan"
)

// messages reads the messages of chat and Anthropic requests.
func (p *parser) messages() {
	if _, ok := p.want("messages", scan.Array); !ok {
		return
	}
	p.have |= fMessages
	i := int64(0)
	for more := p.Open('['); more; more = p.More(']') {
		if k := p.Kind(); k != scan.Object {
			if k != scan.Invalid {
				p.wrong(index("messages", i), fmt.Sprintf("%s must be an object, got %s", index("messages", i), k))
			}
			p.Skip()
		} else {
			p.message(i)
		}
		i++
	}
	p.r.Messages += i
}

func index(name string, i int64) string { return name + "[" + itoa(i) + "]" }

func (p *parser) message(i int64) {
	for more := p.Open('{'); more; more = p.More('}') {
		key := p.Key()
		if string(key) != "content" {
			p.text(key)
			continue
		}
		switch k := p.Kind(); k {
		case scan.String, scan.Array, scan.Object, scan.Null, scan.Invalid:
			p.parts()
		default:
			name := index("messages", i) + ".content"
			p.wrong(name, fmt.Sprintf("%s must be a string or an array, got %s", name, k))
			p.Skip()
		}
	}
}

// content reads a top-level field that is a string or an array of parts.
func (p *parser) content(name string) {
	if _, ok := p.want(name, scan.String, scan.Array); ok {
		p.parts()
	}
}

// items reads the input of the Responses API: one string, or items that are messages, calls or their outputs.
func (p *parser) items() {
	kind, ok := p.want("input", scan.String, scan.Array)
	if !ok {
		return
	}
	if kind == scan.String {
		p.r.Messages++
		p.r.TextBytes += p.StrLen()
		return
	}
	for more := p.Open('['); more; more = p.More(']') {
		p.r.Messages++
		p.parts()
	}
}

// parts reads content: text, one part, or a list of them.
func (p *parser) parts() {
	switch p.Kind() {
	case scan.String:
		p.r.TextBytes += p.StrLen()
	case scan.Object:
		p.part()
	case scan.Array:
		for more := p.Open('['); more; more = p.More(']') {
			p.parts()
		}
	default:
		p.Skip()
	}
}

// media is what one part holds besides text. Its type may stand behind its data, so it is judged at its end.
type media struct {
	image, document, audio, reference bool
	base64                            int64
}

// part reads one content part, message or item, whatever its type: what counts is which fields it has.
func (p *parser) part() {
	var m media
	for more := p.Open('{'); more; more = p.More('}') {
		switch key := p.Key(); string(key) {
		case "type":
			p.partType(&m)
		case "image_url":
			m.image = true
			p.link(&m)
		case "source":
			p.source(&m)
		case "file", "file_data":
			m.document = true
			p.link(&m)
		case "input_audio":
			m.audio = true
			p.Skip()
		case "content", "output", "summary":
			p.parts()
		default:
			p.text(key)
		}
	}
	if m.base64 > 0 && !m.image && !m.document { // bytes are left out only for what is counted instead
		m.document = true
	}
	r := p.r
	r.Base64Bytes += m.base64
	switch {
	case m.image:
		r.Images++
	case m.document:
		r.Documents++
	case m.audio:
		r.Audio++
	}
	if m.reference {
		r.UnknownInput = "input"
	}
}

func (p *parser) partType(m *media) {
	if p.Kind() != scan.String {
		p.Skip()
		return
	}
	raw, _ := p.Str()
	switch string(raw) {
	case "image", "image_url", "input_image":
		m.image = true
	case "document", "file", "input_file":
		m.document = true
	case "input_audio":
		m.audio = true
	case "item_reference":
		m.reference = true
	}
}

// text reads a field that is the same in messages, parts and items.
func (p *parser) text(key []byte) {
	switch string(key) {
	case "text", "name", "thinking", "refusal", "reasoning", "reasoning_content", "arguments", "title", "context":
		p.r.TextBytes += p.StrLen()
	case "input": // of a tool call: any JSON, or a string
		if p.Kind() == scan.String {
			p.r.TextBytes += p.StrLen()
			return
		}
		p.r.TextBytes += int64(len(p.Raw()))
	case "tool_calls":
		if p.OpenIf('[') {
			for more := true; more; more = p.More(']') {
				p.call()
			}
		}
	case "function_call":
		p.call()
	default:
		p.Skip()
	}
}

// call reads a tool call: its function, or itself in the older form.
func (p *parser) call() {
	if !p.OpenIf('{') {
		return
	}
	for more := true; more; more = p.More('}') {
		switch string(p.Key()) {
		case "function", "custom":
			p.call()
		case "name", "arguments", "input":
			p.r.TextBytes += p.StrLen()
		default:
			p.Skip()
		}
	}
}

// link reads an image_url, a file or a file_data: a string, or an object that holds one.
func (p *parser) link(m *media) {
	if p.Kind() == scan.String {
		raw, _ := p.Str()
		m.base64 += inline(raw)
		return
	}
	if !p.OpenIf('{') {
		return
	}
	for more := true; more; more = p.More('}') {
		switch string(p.Key()) {
		case "url":
			if p.Kind() == scan.String {
				raw, _ := p.Str()
				m.base64 += inline(raw)
				continue
			}
		case "file_data":
			if p.Kind() == scan.String {
				raw, _ := p.Str()
				if n := inline(raw); n > 0 {
					m.base64 += n
				} else {
					m.base64 += int64(len(raw))
				}
				continue
			}
		}
		p.Skip()
	}
}

var (
	dataScheme = []byte("data:")
	base64Mark = []byte(";base64,")
)

// inline returns how many bytes of a data URL are base64.
func inline(url []byte) int64 {
	if !bytes.HasPrefix(url, dataScheme) {
		return 0
	}
	i := bytes.Index(url[:min(len(url), imagePrefix)], base64Mark)
	if i < 0 {
		return 0
	}
	return int64(len(url) - i - len(base64Mark))
}

// source reads the source of an Anthropic image or document: base64, a URL, a file id, text, or blocks.
func (p *parser) source(m *media) {
	if !p.OpenIf('{') {
		return
	}
	var data []byte
	var escaped, encoded bool
	for more := true; more; more = p.More('}') {
		switch string(p.Key()) {
		case "type":
			if p.Kind() != scan.String {
				p.Skip()
				continue
			}
			raw, _ := p.Str()
			encoded = string(raw) == "base64"
		case "data":
			if p.Kind() != scan.String {
				p.Skip()
				continue
			}
			data, escaped = p.Str()
		case "content":
			p.parts()
		default:
			p.Skip()
		}
	}
	if encoded {
		m.base64 += int64(len(data))
		return
	}
	p.r.TextBytes += scan.TextLen(data, escaped)
}

// prompt reads a legacy prompt or the input of embeddings: text, token numbers, or a list of either.
func (p *parser) prompt(name string) {
	kind, ok := p.want(name, scan.String, scan.Array)
	if !ok {
		return
	}
	p.have |= fInput
	prompts := int64(1)
	if kind == scan.String {
		p.r.TextBytes += p.StrLen()
	} else {
		prompts = p.promptList(name)
	}
	p.r.Messages += prompts
	if p.r.Op == Completions {
		if prompts > MaxChoices {
			p.wrong(name, fmt.Sprintf("%s has %d entries, at most %d are allowed", name, prompts, MaxChoices))
		}
		p.prompts = max(1, prompts)
	}
}

// promptList reads a list of prompts and returns their number: a plain list of token numbers is one prompt.
func (p *parser) promptList(name string) int64 {
	tokens, prompts := int64(0), int64(0)
	for more := p.Open('['); more; more = p.More(']') {
		switch k := p.Kind(); k {
		case scan.Number:
			p.Num()
			tokens++
		case scan.String:
			p.r.TextBytes += p.StrLen()
			prompts++
		case scan.Array:
			for inner := p.Open('['); inner; inner = p.More(']') {
				p.Skip()
				tokens++
			}
			prompts++
		case scan.Object: // multimodal input of some servers
			p.part()
			prompts++
		default:
			if k != scan.Invalid {
				p.wrong(name, fmt.Sprintf("%s must hold strings or token numbers, got %s", name, k))
			}
			p.Skip()
		}
	}
	p.r.TokenIDs += tokens
	if prompts == 0 && tokens > 0 {
		return 1
	}
	return prompts
}

// documents reads the documents to rank: strings, or objects with a text.
func (p *parser) documents() {
	if _, ok := p.want("documents", scan.Array); !ok {
		return
	}
	p.have |= fDocuments
	for more := p.Open('['); more; more = p.More(']') {
		p.r.Messages++
		p.parts()
	}
}
