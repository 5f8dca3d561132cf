package provider

import "strconv"

// response encodes a whole response of the Responses API with so many output tokens reported; status is completed,
// incomplete or in_progress.
func (a *answer) response(status string, output int64) []byte {
	if status == "completed" && a.short {
		status = "incomplete"
	}
	done := status != "in_progress"
	b := make([]byte, 0, 768+6*int(a.perChoice()))
	b = strconv.AppendInt(append(b, `{"id":"resp_`...), a.id, 10)
	b = append(append(b, `","object":"response","created_at":`...), a.created()...)
	b = append(append(append(b, `,"status":"`...), status...), `","error":null,"incomplete_details":`...)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = append(append(b, `,"instructions":null,"model":`...), a.model...)
	b = append(b, `,"output":[`...)
	if done {
		b = a.outputItems(b)
	}
	b = append(b, `],"parallel_tool_calls":true,"tools":[],"usage":`...)
	if done && !a.script.NoUsage {
		b = a.responseUsage(b, output)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"metadata":{}}`...)
}

func (a *answer) responseUsage(b []byte, output int64) []byte {
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), a.input, 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), int64(a.script.Cached), 10)
	b = strconv.AppendInt(append(b, `},"output_tokens":`...), output, 10)
	b = strconv.AppendInt(append(b, `,"output_tokens_details":{"reasoning_tokens":`...), int64(a.think), 10)
	return append(strconv.AppendInt(append(b, `},"total_tokens":`...), a.input+output, 10), '}')
}

func (a *answer) outputItems(b []byte) []byte {
	if a.think > 0 {
		b = append(a.reasoningItem(b, true), ',')
	}
	return a.outputItem(b, true)
}

func (a *answer) reasoningItem(b []byte, done bool) []byte {
	b = strconv.AppendInt(append(b, `{"id":"rs_`...), a.id, 10)
	b = append(b, `","type":"reasoning","summary":[`...)
	if done {
		b = append(appendWords(append(b, `{"type":"summary_text","text":"`...), a.think), `"}`...)
	}
	return append(b, `]}`...)
}

func (a *answer) outputItem(b []byte, done bool) []byte {
	status := `in_progress`
	if done {
		status = `completed`
	}
	if a.script.Tool {
		b = strconv.AppendInt(append(b, `{"id":"fc_`...), a.id, 10)
		b = append(append(append(b, `","type":"function_call","status":"`...), status...), `","call_id":"call_`...)
		b = append(strconv.AppendInt(b, a.id, 10), `","name":"get_weather","arguments":"`...)
		if done {
			b = append(b, toolArguments...)
		}
		return append(b, `"}`...)
	}
	b = strconv.AppendInt(append(b, `{"id":"msg_`...), a.id, 10)
	b = append(append(append(b, `","type":"message","status":"`...), status...), `","role":"assistant","content":[`...)
	if done {
		b = append(appendWords(append(b, `{"type":"output_text","annotations":[],"logprobs":[],"text":"`...), a.tokens), `"}`...)
	}
	return append(b, `]}`...)
}

func appendWords(b []byte, n int) []byte {
	for i := range n {
		b = append(b, words[i%len(words)]...)
	}
	return b
}

// typedEvents sends the events of the Responses API, numbered from 0.
type typedEvents struct {
	a    *answer
	next int64
}

// send sends one event; rest is what follows its number in the object, without the brace.
func (t *typedEvents) send(name, rest string, values ...[]byte) bool {
	data := make([][]byte, 0, 8)
	data = append(data, []byte(`{"type":"`+name+`","sequence_number":`), strconv.AppendInt(nil, t.next, 10), []byte(rest))
	data = append(append(data, values...), []byte("}"))
	t.next++
	return t.a.event(name, data...)
}

// responseEvents streams a response: created, in progress, each item with its parts and deltas, completed.
func (a *answer) responseEvents() {
	t := typedEvents{a: a}
	begun := a.response("in_progress", 0)
	if !t.send("response.created", `,"response":`, begun) || !t.send("response.in_progress", `,"response":`, begun) {
		return
	}
	index := 0
	if a.think > 0 {
		if !t.reasoning() {
			return
		}
		index = 1
	}
	if !t.item(index) {
		return
	}
	name := "response.completed"
	if a.short {
		name = "response.incomplete"
	}
	a.last(name, []byte(`{"type":"`+name+`","sequence_number":`), strconv.AppendInt(nil, t.next, 10), []byte(`,"response":`),
		a.response("completed", a.sent), []byte("}"))
}

func (t *typedEvents) reasoning() bool {
	a := t.a
	at := `,"item_id":"rs_` + strconv.FormatInt(a.id, 10) + `","output_index":0,"summary_index":0`
	if !t.send("response.output_item.added", `,"output_index":0,"item":`, a.reasoningItem(nil, false)) {
		return false
	}
	for i := range a.think {
		a.sent++
		if !t.send("response.reasoning_summary_text.delta", at+`,"delta":"`+words[i%len(words)]+`"`) {
			return false
		}
	}
	return t.send("response.reasoning_summary_text.done", at+`,"text":"`, appendWords(nil, a.think), []byte(`"`)) &&
		t.send("response.output_item.done", `,"output_index":0,"item":`, a.reasoningItem(nil, true))
}

// item streams the message or the tool call.
func (t *typedEvents) item(index int) bool {
	a := t.a
	place := `,"output_index":` + strconv.Itoa(index)
	if !t.send("response.output_item.added", place+`,"item":`, a.outputItem(nil, false)) {
		return false
	}
	id := `,"item_id":"msg_` + strconv.FormatInt(a.id, 10) + `"` + place
	if a.script.Tool {
		if !t.arguments(`,"item_id":"fc_` + strconv.FormatInt(a.id, 10) + `"` + place) {
			return false
		}
	} else if !t.text(id + `,"content_index":0`) {
		return false
	}
	return t.send("response.output_item.done", place+`,"item":`, a.outputItem(nil, true))
}

func (t *typedEvents) arguments(at string) bool {
	a := t.a
	half := int64(a.tokens) / 2
	a.sent += half
	if !t.send("response.function_call_arguments.delta", at+`,"delta":"{\"city\":\"Bern\","`) {
		return false
	}
	a.sent += int64(a.tokens) - half
	return t.send("response.function_call_arguments.delta", at+`,"delta":"\"unit\":\"c\"}"`) &&
		t.send("response.function_call_arguments.done", at+`,"arguments":"`+toolArguments+`"`)
}

func (t *typedEvents) text(at string) bool {
	a := t.a
	const part = `,"part":{"type":"output_text","annotations":[],"logprobs":[],"text":"`
	if !t.send("response.content_part.added", at+part+`"}`) {
		return false
	}
	for i := range a.tokens {
		a.sent++
		if !t.send("response.output_text.delta", at+`,"delta":"`+words[i%len(words)]+`","logprobs":[]`) {
			return false
		}
	}
	whole := appendWords(nil, a.tokens)
	return t.send("response.output_text.done", at+`,"logprobs":[],"text":"`, whole, []byte(`"`)) &&
		t.send("response.content_part.done", at+part, whole, []byte(`"}`))
}
