// Package wire is what the gateway needs to know of a request body, whatever SDK sent it, and the few changes it makes to
// it. Bodies are read in one pass over their bytes and never built anew: everything that is not changed goes upstream
// byte for byte.
package wire

import "strconv"

// Format is the API family whose shapes a request and its answers have.
type Format uint8

// The two wire formats. There is no translation between them.
const (
	OpenAI Format = iota
	Anthropic
)

// String names the format as configuration and events do.
func (f Format) String() string {
	if f == Anthropic {
		return "anthropic"
	}
	return "openai"
}

// Operation is one endpoint that takes a body for a model.
type Operation uint8

// The operations, by endpoint.
const (
	Chat        Operation = iota + 1 // POST /v1/chat/completions
	Completions                      // POST /v1/completions
	Embeddings                       // POST /v1/embeddings
	Rerank                           // POST /v1/rerank
	Responses                        // POST /v1/responses
	Messages                         // POST /v1/messages
	CountTokens                      // POST /v1/messages/count_tokens
)

var operations = [...]struct{ name, path string }{
	{"", ""},
	{"chat", "/v1/chat/completions"},
	{"completions", "/v1/completions"},
	{"embeddings", "/v1/embeddings"},
	{"rerank", "/v1/rerank"},
	{"responses", "/v1/responses"},
	{"messages", "/v1/messages"},
	{"count_tokens", "/v1/messages/count_tokens"},
}

// All lists every operation.
func All() []Operation {
	return []Operation{Chat, Completions, Embeddings, Rerank, Responses, Messages, CountTokens}
}

// Named finds the operation of a name.
func Named(name string) (Operation, bool) {
	for op := Chat; op <= CountTokens; op++ {
		if operations[op].name == name {
			return op, true
		}
	}
	return 0, false
}

// ByPath finds the operation that a request path stands for.
func ByPath(path string) (Operation, bool) {
	for op := Chat; op <= CountTokens; op++ {
		if operations[op].path == path {
			return op, true
		}
	}
	return 0, false
}

// String is the name that events carry.
func (o Operation) String() string { return operations[o].name }

// Path is the endpoint, here and at an upstream of the same format.
func (o Operation) Path() string { return operations[o].path }

// Format is the wire format of the endpoint.
func (o Operation) Format() Format {
	if o == Messages || o == CountTokens {
		return Anthropic
	}
	return OpenAI
}

// Generates says whether the operation produces output tokens, and so passes the gates that model generation.
func (o Operation) Generates() bool {
	switch o {
	case Chat, Completions, Responses, Messages:
		return true
	}
	return false
}

// Streams says whether the endpoint can answer as a stream.
func (o Operation) Streams() bool { return o.Generates() }

// boundField is the field that an output bound is written to when the body has none.
func (o Operation) boundField() string {
	switch o {
	case Chat:
		return "max_completion_tokens"
	case Responses:
		return "max_output_tokens"
	}
	return "max_tokens"
}

// Codes of a BadRequest.
const (
	CodeMalformed = "request_invalid"   // the body as a whole cannot be read
	CodeParameter = "invalid_parameter" // one field has a wrong type or value
)

// BadRequest is a fault of the client's in a body: status 400.
type BadRequest struct {
	Param   string // the field, as "messages[2].content"; "" when the body as a whole is at fault
	Message string // names the field, the value and the rule
	Code    string
}

// Error returns the message.
func (e *BadRequest) Error() string { return e.Message }

// Parameter makes the BadRequest for one field.
func Parameter(param, message string) *BadRequest {
	return &BadRequest{Param: param, Message: message, Code: CodeParameter}
}

// Limit is the output limit that a request sent.
type Limit struct {
	Field    string // where it stood; "" when the request sent none
	Value    int64  // tokens for each choice, as sent
	Declared bool   // sent, and not negative: a negative one is forwarded but declares nothing
}

// Request is one parsed body. Its offsets refer to Body, which must not change.
type Request struct {
	Op     Operation
	Body   []byte
	Model  string
	Stream bool

	Output  Limit
	Choices int64 // n × best_of × prompts: what multiplies a declared output; at least 1

	Messages    int64 // messages, input items, prompts or documents to rank
	TextBytes   int64 // UTF-8 bytes of prompt text, tool schemas included
	TokenIDs    int64 // input given as token numbers rather than text
	Images      int64
	Documents   int64
	Audio       int64
	Base64Bytes int64 // inline image and document data inside Body

	IncludeUsage bool   // the client asked for usage in its stream
	Background   bool   // background: true
	UnknownInput string // the field that refers to input kept elsewhere, such as previous_response_id; "" for none

	at offsets
}

// Trainable says whether the exact input of this request may teach the text estimator.
func (r *Request) Trainable() bool {
	return r.Images+r.Documents+r.Audio+r.TokenIDs == 0 && r.UnknownInput == "" && r.TextBytes > 0
}

// mul multiplies two numbers that are not negative, up to the largest int64.
func mul(a, b int64) int64 {
	if a > 0 && b > (1<<63-1)/a {
		return 1<<63 - 1
	}
	return a * b
}

func itoa(v int64) string { return strconv.FormatInt(v, 10) }
