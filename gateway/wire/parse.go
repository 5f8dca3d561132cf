package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/weirhq/weir/gateway/wire/scan"
)

const (
	// MaxModelName bounds a model's name in bytes: it becomes part of meters and metrics.
	MaxModelName = 256
	// MaxChoices bounds n, best_of and the prompts of one request each: no server accepts more, and their product with an
	// output limit has to stay a sensible number.
	MaxChoices = 2048
	// imagePrefix is how far into a data URL its ";base64," is looked for.
	imagePrefix = 256
)

// span is a piece of the body; to is 0 when there is none.
type span struct{ from, to int }

// offsets are where Rewrite may change the body.
type offsets struct {
	model        span // the string with its quotes
	streamOpts   span // the value of stream_options
	openOpts     int  // behind the { of stream_options; 0 when it is no object
	emptyOpts    bool
	includeUsage span    // the value of stream_options.include_usage
	nullBound    [2]span // the null of each output limit, by its slot in parser.limits
	end          int     // the } that ends the body
	empty        bool    // the body has no fields
}

// field numbers the top-level keys that are read, to find those that occur twice.
type field uint32

const (
	fModel field = 1 << iota
	fStream
	fStreamOptions
	fMaxTokens
	fMaxCompletion
	fMaxOutput
	fN
	fBestOf
	fMessages
	fPrompt
	fInput
	fSystem
	fTools
	fFunctions
	fBackground
	fPrevious
	fConversation
	fQuery
	fDocuments
)

// parser is one pass over one body.
type parser struct {
	scan.Cursor
	r       *Request
	seen    field // keys that occurred
	have    field // of the required ones, those with a value
	err     *BadRequest
	n       int64
	bestOf  int64
	prompts int64
	limits  [2]Limit // max_completion_tokens (or the format's only field), max_tokens
}

// Parse reads the body of op. The error, if any, is a *BadRequest. It keeps body, which must not change while the
// Request is in use.
func Parse(op Operation, body []byte) (*Request, error) {
	p := parser{Cursor: scan.New(body), r: &Request{Op: op, Body: body}, n: 1, bestOf: 1, prompts: 1}
	if p.Kind() == scan.Invalid && p.Start() == len(body) {
		return nil, malformed("the body is empty: it must be a JSON object")
	}
	if !utf8.Valid(body) {
		return nil, malformed("the body is not valid UTF-8 at byte " + itoa(int64(invalidUTF8(body))))
	}
	if p.Kind() != scan.Object && p.Kind() != scan.Invalid {
		return nil, malformed("the body must be a JSON object, got " + p.Kind().String())
	}
	p.object()
	p.End()
	if what, at := p.Fault(); what != "" {
		return nil, malformed("the body is not valid JSON: " + what + " at byte " + itoa(int64(at)))
	}
	if p.err == nil {
		p.finish()
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.r, nil
}

func malformed(message string) *BadRequest { return &BadRequest{Message: message, Code: CodeMalformed} }

func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// wrong notes the first fault of a field. Reading goes on, so that malformed JSON is reported as such.
func (p *parser) wrong(param, message string) {
	if p.err == nil {
		p.err = Parameter(param, message)
	}
}

// want reads the kind of the next value and skips it unless it is the wanted one. null counts as absent.
func (p *parser) want(param string, kinds ...scan.Kind) (scan.Kind, bool) {
	got := p.Kind()
	for _, k := range kinds {
		if got == k {
			return got, true
		}
	}
	if got != scan.Null && got != scan.Invalid {
		names := kinds[0].String()
		for _, k := range kinds[1:] {
			names += " or " + k.String()
		}
		from := p.Start()
		p.Skip()
		p.wrong(param, fmt.Sprintf("%s must be %s, got %s", param, names, p.described(got, from, len(kinds) == 1 && (kinds[0] == scan.Number || kinds[0] == scan.Bool))))
		return got, false
	}
	p.Skip()
	return got, false
}

// maxShown bounds a value in a message, in bytes.
const maxShown = 40

// described names a value that was just read, and shows it: numbers and booleans, and texts where no text belongs. What may be of the prompt is
// not repeated.
func (p *parser) described(got scan.Kind, from int, textToo bool) string {
	if got != scan.Number && got != scan.Bool && !(got == scan.String && textToo) {
		return got.String()
	}
	value := string(p.r.Body[from:p.Pos()])
	if len(value) > maxShown {
		value = strings.ToValidUTF8(value[:maxShown], "") + "…"
	}
	return "the " + strings.TrimPrefix(got.String(), "a ") + " " + value
}

func (p *parser) object() {
	p.r.at.empty = true
	for more := p.Open('{'); more; more = p.More('}') {
		p.r.at.empty = false
		p.member(p.Key())
	}
	p.r.at.end = p.Pos() - 1
}

// member reads the value of one top-level key.
func (p *parser) member(key []byte) {
	op := p.r.Op
	switch string(key) {
	case "model":
		p.once(fModel, "model")
		p.model()
	case "stream":
		p.once(fStream, "stream")
		p.flag("stream", &p.r.Stream)
	case "stream_options":
		p.once(fStreamOptions, "stream_options")
		p.streamOptions()
	case "max_completion_tokens":
		p.once(fMaxCompletion, "max_completion_tokens")
		p.limit(0, op == Chat, "max_completion_tokens")
	case "max_output_tokens":
		p.once(fMaxOutput, "max_output_tokens")
		p.limit(0, op == Responses, "max_output_tokens")
	case "max_tokens":
		p.once(fMaxTokens, "max_tokens")
		p.limit(1, op == Chat || op == Completions || op == Messages, "max_tokens")
	case "n":
		p.once(fN, "n")
		p.count("n", op == Chat || op == Completions, &p.n)
	case "best_of":
		p.once(fBestOf, "best_of")
		p.count("best_of", op == Completions, &p.bestOf)
	default:
		p.input(key)
	}
}

// input reads the fields that make up the prompt, and the few that refer to input kept elsewhere. Those of other
// operations are not looked at.
func (p *parser) input(key []byte) {
	op := p.r.Op
	chat := op == Chat || op == Messages || op == CountTokens
	switch k := string(key); {
	case chat && k == "messages":
		p.once(fMessages, "messages")
		p.messages()
	case chat && k == "tools", op == Responses && k == "tools":
		p.once(fTools, "tools")
		p.raw("tools")
	case op == Chat && k == "functions":
		p.once(fFunctions, "functions")
		p.raw("functions")
	case op.Format() == Anthropic && k == "system":
		p.once(fSystem, "system")
		p.content("system")
	case op == Completions && k == "prompt":
		p.once(fPrompt, "prompt")
		p.prompt("prompt")
	case op == Embeddings && k == "input":
		p.once(fInput, "input")
		p.prompt("input")
	case op == Responses && k == "instructions", op == Completions && k == "suffix":
		p.r.TextBytes += p.StrLen()
	case op == Responses:
		p.responses(key)
	case op == Rerank:
		p.rerank(key)
	default:
		p.Skip()
	}
}

func (p *parser) responses(key []byte) {
	switch string(key) {
	case "input":
		p.once(fInput, "input")
		p.items()
	case "background":
		p.once(fBackground, "background")
		p.flag("background", &p.r.Background)
	case "prompt":
		p.once(fPrompt, "prompt")
		p.elsewhere("prompt", scan.Object)
	case "previous_response_id":
		p.once(fPrevious, "previous_response_id")
		p.elsewhere("previous_response_id", scan.String)
	case "conversation":
		p.once(fConversation, "conversation")
		p.elsewhere("conversation", scan.String, scan.Object)
	default:
		p.Skip()
	}
}

func (p *parser) rerank(key []byte) {
	switch string(key) {
	case "query":
		p.once(fQuery, "query")
		if _, ok := p.want("query", scan.String); ok {
			p.have |= fQuery
			p.r.TextBytes += p.StrLen()
		}
	case "documents":
		p.once(fDocuments, "documents")
		p.documents()
	default:
		p.Skip()
	}
}

// once refuses a key that occurs twice: the two ends could each believe another one.
func (p *parser) once(f field, name string) {
	if p.seen&f != 0 {
		p.wrong(name, name+" occurs twice in the body: it may stand there once")
	}
	p.seen |= f
}

func (p *parser) model() {
	from := p.Start()
	if _, ok := p.want("model", scan.String); !ok {
		return
	}
	raw, escaped := p.Str()
	p.r.at.model = span{from, p.Pos()}
	p.r.Model = scan.Text(raw, escaped)
	if n := len(p.r.Model); n > MaxModelName {
		p.wrong("model", fmt.Sprintf("model is %d bytes long, at most %d are allowed", n, MaxModelName))
	}
}

func (p *parser) flag(name string, into *bool) {
	if _, ok := p.want(name, scan.Bool); ok {
		*into = p.Bool()
	}
}

func (p *parser) streamOptions() {
	at := &p.r.at
	at.streamOpts.from = p.Start()
	if _, ok := p.want("stream_options", scan.Object); ok {
		at.openOpts = p.Pos() + 1
		at.emptyOpts = true
		for more := p.Open('{'); more; more = p.More('}') {
			at.emptyOpts = false
			if string(p.Key()) != "include_usage" {
				p.Skip()
				continue
			}
			if at.includeUsage.to != 0 {
				p.wrong("stream_options.include_usage", "stream_options.include_usage occurs twice in the body: it may stand there once")
			}
			at.includeUsage.from = p.Start()
			p.flag("stream_options.include_usage", &p.r.IncludeUsage)
			at.includeUsage.to = p.Pos()
		}
	}
	at.streamOpts.to = p.Pos()
}

// whole reads an integer field. ok is false for null and for anything wrong, which is noted.
func (p *parser) whole(name string) (v int64, ok bool) {
	if _, ok := p.want(name, scan.Number); !ok {
		return 0, false
	}
	num := p.Num()
	v, whole, fits := scan.ParseInt(num)
	switch {
	case len(num) > 40:
		p.wrong(name, fmt.Sprintf("%s is a number of %d characters: it must be a whole number that fits 64 bits", name, len(num)))
	case !whole:
		p.wrong(name, fmt.Sprintf("%s is %s: it must be a whole number, without fraction or exponent", name, num))
	case !fits:
		p.wrong(name, fmt.Sprintf("%s is %s: it must be a whole number that fits 64 bits", name, num))
	default:
		return v, true
	}
	return 0, false
}

// limit reads an output limit into its slot; used says whether the operation has such a field.
func (p *parser) limit(slot int, used bool, name string) {
	if !used {
		p.Skip()
		return
	}
	from := p.Start()
	null := p.Kind() == scan.Null
	v, ok := p.whole(name)
	if null {
		p.r.at.nullBound[slot] = span{from, p.Pos()}
	}
	if ok {
		p.limits[slot] = Limit{Field: name, Value: v, Declared: v >= 0}
	}
}

func (p *parser) count(name string, used bool, into *int64) {
	if !used {
		p.Skip()
		return
	}
	v, ok := p.whole(name)
	if !ok {
		return
	}
	if v < 1 || v > MaxChoices {
		p.wrong(name, fmt.Sprintf("%s is %d: it must be between 1 and %d", name, v, MaxChoices))
		return
	}
	*into = v
}

func (p *parser) elsewhere(name string, kinds ...scan.Kind) {
	if _, ok := p.want(name, kinds...); ok {
		p.Skip()
		p.r.UnknownInput = name
	}
}

// raw counts a value's own bytes as prompt text: tool schemas become part of the prompt.
func (p *parser) raw(name string) {
	if _, ok := p.want(name, scan.Array); ok {
		p.r.TextBytes += int64(len(p.Raw()))
	}
}

type need struct {
	field field
	name  string
}

// required are the fields without which there is nothing to estimate. Others are left to the upstream to demand.
var required = [...][]need{
	Chat:        {{fMessages, "messages"}},
	Messages:    {{fMessages, "messages"}},
	CountTokens: {{fMessages, "messages"}},
	Responses:   nil,
	Embeddings:  {{fInput, "input"}},
	Rerank:      {{fQuery, "query"}, {fDocuments, "documents"}},
}

// finish checks what only the whole body shows.
func (p *parser) finish() {
	r := p.r
	if r.at.model.to == 0 || r.Model == "" {
		p.wrong("model", "model is missing: it must name the model to call")
		return
	}
	for _, need := range required[r.Op] {
		if p.have&need.field == 0 {
			p.wrong(need.name, need.name+" is missing")
			return
		}
	}
	p.choose()
	r.Choices = mul(mul(p.n, p.bestOf), p.prompts)
}

// choose settles which of the output limits counts.
func (p *parser) choose() {
	a, b := p.limits[0], p.limits[1]
	switch {
	case a.Field == "":
		p.r.Output = b
	case b.Field != "" && a.Value != b.Value:
		p.wrong(b.Field, fmt.Sprintf("%s is %d and %s is %d: they must not differ", b.Field, b.Value, a.Field, a.Value))
	default:
		p.r.Output = a
	}
}
