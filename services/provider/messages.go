package provider

import "strconv"

func (a *answer) stopReason() string {
	switch {
	case a.short:
		return "max_tokens"
	case a.script.Tool:
		return "tool_use"
	}
	return "end_turn"
}

// messageUsage appends the usage as messages report it: what is cached or written stands beside input_tokens.
func (a *answer) messageUsage(b []byte, output int64) []byte {
	cached, written := int64(a.script.Cached), int64(a.script.CacheWrite)
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), max(a.input-cached-written, 0), 10)
	b = strconv.AppendInt(append(b, `,"cache_creation_input_tokens":`...), written, 10)
	b = strconv.AppendInt(append(b, `,"cache_read_input_tokens":`...), cached, 10)
	b = strconv.AppendInt(append(b, `,"cache_creation":{"ephemeral_5m_input_tokens":`...), written, 10)
	b = strconv.AppendInt(append(b, `,"ephemeral_1h_input_tokens":0},"output_tokens":`...), output, 10)
	return append(b, `,"service_tier":"standard"}`...)
}

// messageHead begins a message up to its content.
func (a *answer) messageHead(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"id":"msg_`...), a.id, 10)
	b = append(append(b, `","type":"message","role":"assistant","model":`...), a.model...)
	return append(b, `,"content":[`...)
}

// message writes a whole message.
func (a *answer) message() {
	a.buf = a.messageHead(a.buf)
	if a.think > 0 {
		a.buf = append(appendWords(append(a.buf, `{"type":"thinking","thinking":"`...), a.think), `","signature":"c2lnbmVk"},`...)
	}
	if a.script.Tool {
		a.buf = strconv.AppendInt(append(a.buf, `{"type":"tool_use","id":"toolu_`...), a.id, 10)
		a.buf = append(a.buf, `","name":"get_weather","input":{"city":"Bern","unit":"c"}}`...)
	} else {
		a.buf = append(appendWords(append(a.buf, `{"type":"text","text":"`...), a.tokens), `"}`...)
	}
	a.buf = append(append(append(a.buf, `],"stop_reason":"`...), a.stopReason()...), `","stop_sequence":null`...)
	if !a.script.NoUsage {
		a.buf = a.messageUsage(append(a.buf, `,"usage":`...), a.output())
	}
	a.buf = append(a.buf, '}')
}

// messageEvents streams a message: input in message_start, output cumulative in message_delta.
func (a *answer) messageEvents() {
	start := a.messageHead([]byte(`{"type":"message_start","message":`))
	start = append(start, `],"stop_reason":null,"stop_sequence":null`...)
	if !a.script.NoUsage {
		start = a.messageUsage(append(start, `,"usage":`...), 1)
	}
	if !a.event("message_start", start, []byte("}}")) {
		return
	}
	index := 0
	if a.think > 0 {
		if !a.thinking() {
			return
		}
		index = 1
	}
	if !a.contentBlock(index) {
		return
	}
	end := append([]byte(`{"type":"message_delta","delta":{"stop_reason":"`), a.stopReason()...)
	end = append(end, `","stop_sequence":null}`...)
	if !a.script.NoUsage {
		end = a.messageUsage(append(end, `,"usage":`...), a.sent)
	}
	if !a.event("message_delta", end, []byte("}")) {
		return
	}
	a.last("message_stop", []byte(`{"type":"message_stop"}`))
}

func (a *answer) thinking() bool {
	if !a.event("content_block_start", []byte(`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`)) {
		return false
	}
	for i := range a.think {
		a.sent++
		if !a.event("content_block_delta", []byte(`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"`+words[i%len(words)]+`"}}`)) {
			return false
		}
	}
	return a.event("content_block_delta", []byte(`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2lnbmVk"}}`)) &&
		a.event("content_block_stop", []byte(`{"type":"content_block_stop","index":0}`))
}

// contentBlock streams the text or the tool call.
func (a *answer) contentBlock(index int) bool {
	at := `,"index":` + strconv.Itoa(index)
	block := `{"type":"text","text":""}`
	if a.script.Tool {
		block = `{"type":"tool_use","id":"toolu_` + strconv.FormatInt(a.id, 10) + `","name":"get_weather","input":{}}`
	}
	if !a.event("content_block_start", []byte(`{"type":"content_block_start"`+at+`,"content_block":`+block+`}`)) ||
		!a.event("ping", []byte(`{"type":"ping"}`)) {
		return false
	}
	if !a.blockDeltas([]byte(`{"type":"content_block_delta"` + at + `,"delta":{"type":"`)) {
		return false
	}
	return a.event("content_block_stop", []byte(`{"type":"content_block_stop"`+at+`}`))
}

func (a *answer) blockDeltas(head []byte) bool {
	if a.script.Tool {
		half := int64(a.tokens) / 2
		a.sent += half
		if !a.event("content_block_delta", head, []byte(`input_json_delta","partial_json":"{\"city\":\"Bern\","}}`)) {
			return false
		}
		a.sent += int64(a.tokens) - half
		return a.event("content_block_delta", head, []byte(`input_json_delta","partial_json":"\"unit\":\"c\"}"}}`))
	}
	for i := range a.tokens {
		a.sent++
		if !a.event("content_block_delta", head, []byte(`text_delta","text":"`+words[i%len(words)]+`"}}`)) {
			return false
		}
	}
	return true
}
