package bedrock

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

func TestKeysAndRegions(t *testing.T) {
	for key, want := range map[string]Credentials{
		"AKIAIOSFODNN7EXAMPLE:secret/+=":           {"AKIAIOSFODNN7EXAMPLE", "secret/+=", ""},
		" ASIAIOSFODNN7EXAMPLE:secret:to/ken== \n": {"ASIAIOSFODNN7EXAMPLE", "secret", "to/ken=="},
		"ABSKQmVkcm9ja0FQSUtleS1leGFtcGxl":         {}, // one of Bedrock's own
		"AKIAIOSFODNN7EXAMPLE:":                    {},
		"akiaiosfodnn7example:secret":              {},
		"":                                         {},
	} {
		if c, ok := ParseKey(key); c != want || ok != (want != Credentials{}) {
			t.Errorf("%q is read as %+v, %t", key, c, ok)
		}
	}
	for host, want := range map[string]string{
		"bedrock-runtime.us-west-2.amazonaws.com":                     "us-west-2",
		"bedrock-runtime-fips.us-gov-west-1.amazonaws.com":            "us-gov-west-1",
		"vpce-0a1-b2.bedrock-runtime.eu-central-1.vpce.amazonaws.com": "eu-central-1",
		"bedrock-mantle.eu-west-1.api.aws":                            "eu-west-1",
		"proxy.example.com":                                           "",
		"notbedrock-runtime.us-west-2.example.com":                    "",
	} {
		if got := Region(&url.URL{Host: host}); got != want {
			t.Errorf("%s names the region %q, want %q", host, got, want)
		}
	}
}

func prepared(t *testing.T, model, key string, c *relay.Call) *relay.Call {
	t.Helper()
	base, _ := url.Parse("https://bedrock-runtime.us-east-1.amazonaws.com")
	d := (&Target{Base: base, Model: model, Key: key}).Dialect(c.Operation)
	if d == nil {
		t.Fatal("there is no dialect")
	}
	if err := d.Prepare(c, time.Unix(1700000000, 0)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestInvoke(t *testing.T) {
	const body = `{"model":"claude","messages":[{"role":"user","content":"the model says \"stream\":true"}],"stream":true,"max_tokens":9}`
	c := prepared(t, "arn:aws:bedrock:us-east-1:1:inference-profile/us.x-v1:0", "api-key", &relay.Call{Operation: wire.Messages, Stream: true, Body: []byte(body),
		Header: http.Header{"Anthropic-Version": {"2023-06-01"}, "Anthropic-Beta": {"a-1, b-2", "c-3"}}})
	if want := "https://bedrock-runtime.us-east-1.amazonaws.com/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.x-v1%3A0/invoke-with-response-stream"; c.URL != want {
		t.Errorf("the URL is %s", c.URL)
	}
	if want := `{"messages":[{"role":"user","content":"the model says \"stream\":true"}],"max_tokens":9,"anthropic_version":"bedrock-2023-05-31","anthropic_beta":["a-1","b-2","c-3"]}`; string(c.Body) != want {
		t.Errorf("the body is %s", c.Body)
	}
	if len(c.Header) != 1 || c.Header.Get("Accept") != eventStream {
		t.Errorf("the headers are %v", c.Header)
	}
	c = prepared(t, "m", "AKIAIOSFODNN7EXAMPLE:secret:token", &relay.Call{Operation: wire.Messages, Body: []byte(`{"model":"m","anthropic_version":"mine"}`), Header: http.Header{"Content-Type": {"application/json"}}})
	if !strings.HasSuffix(c.URL, "/model/m/invoke") || string(c.Body) != `{"anthropic_version":"mine"}` {
		t.Errorf("%s %s", c.URL, c.Body)
	}
	if a := c.Header.Get("Authorization"); !strings.HasPrefix(a, "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20231114/us-east-1/bedrock/aws4_request, ") || strings.Contains(a, "secret") ||
		c.Header.Get("X-Amz-Security-Token") != "token" {
		t.Errorf("the headers are %v", c.Header)
	}
	// What needs nothing has no dialect.
	base, _ := url.Parse("https://bedrock-runtime.us-east-1.amazonaws.com")
	if d := (&Target{Base: base, Model: "m", Key: "api-key"}).Dialect(wire.Chat); d != nil {
		t.Error("a chat with an API key is changed")
	}
}

func answered(t *testing.T, op wire.Operation, status int, header http.Header, body io.Reader) (*http.Response, []byte, error) {
	t.Helper()
	r := &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(body)}
	(&dialect{op: op, invoke: true}).Response(r)
	b, err := io.ReadAll(r.Body)
	return r, b, err
}

func frameOf(t *testing.T, payload string, headers ...string) []byte {
	t.Helper()
	m := eventstream.Message{Payload: []byte(payload)}
	for i := 0; i < len(headers); i += 2 {
		m.Headers.Set(headers[i], eventstream.StringValue(headers[i+1]))
	}
	var b bytes.Buffer
	if err := eventstream.NewEncoder().Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFrames(t *testing.T) {
	// {"type":"ping"} and {"type":"message_stop",\n"x":1}
	one := frameOf(t, `{"bytes":"eyJ0eXBlIjoicGluZyJ9","p":"abc"}`, ":message-type", "event", ":event-type", "chunk")
	two := frameOf(t, `{"bytes":"eyJ0eXBlIjoibWVzc2FnZV9zdG9wIiwKIngiOjF9"}`, ":message-type", "event", ":event-type", "chunk")
	other := frameOf(t, `{}`, ":message-type", "event", ":event-type", "metadata")
	exception := frameOf(t, `{"message":"too \"many\""}`, ":message-type", "exception", ":exception-type", "throttlingException")
	fault := frameOf(t, ``, ":message-type", "error", ":error-code", "internal", ":error-message", "broke")
	const ping, stop = "event: ping\ndata: {\"type\":\"ping\"}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\",\"x\":1}\n\n"
	flipped := bytes.Clone(two)
	flipped[len(flipped)-6] ^= 1
	header := func() http.Header { return http.Header{"Content-Type": {eventStream}} }
	for name, c := range map[string]struct {
		frames [][]byte
		want   string
		broken bool
	}{
		"whole":        {[][]byte{one, other, two}, ping + stop, false},
		"exception":    {[][]byte{one, exception}, ping + `event: error` + "\n" + `data: {"error":{"message":"too \"many\"","type":"rate_limit_error"},"type":"error"}` + "\n\n", false},
		"error":        {[][]byte{fault}, "event: error\n" + `data: {"error":{"message":"broke","type":"api_error"},"type":"error"}` + "\n\n", false},
		"cut":          {[][]byte{one, two[:20]}, ping, true},
		"cut early":    {[][]byte{one, two[:3]}, ping, true},
		"flipped":      {[][]byte{one, flipped}, ping, true},
		"no base64":    {[][]byte{frameOf(t, `{"bytes":"%"}`, ":message-type", "event", ":event-type", "chunk")}, "", true},
		"no JSON":      {[][]byte{frameOf(t, `{"bytes":"e30="}`, ":message-type", "event", ":event-type", "chunk"), frameOf(t, `{"bytes":"ew=="}`, ":message-type", "event", ":event-type", "chunk")}, "event: \ndata: {}\n\n", true},
		"not of AWS":   {[][]byte{[]byte("data: {\"type\":\"ping\"}\n\n")}, "", true},
		"nothing sent": {nil, "", false},
	} {
		for _, body := range []io.Reader{bytes.NewReader(bytes.Join(c.frames, nil)), iotest.OneByteReader(bytes.NewReader(bytes.Join(c.frames, nil)))} {
			r, b, err := answered(t, wire.Messages, 200, header(), body)
			if string(b) != c.want || (err != nil) != c.broken || errors.Is(err, io.EOF) || r.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		}
	}
	// A frame that is there is given before the next one comes.
	in, out := io.Pipe()
	f := &frames{in: bufio.NewReader(in), body: in, decoder: eventstream.NewDecoder()}
	go func() { _, _ = out.Write(one) }()
	b := make([]byte, 1024)
	if n, err := f.Read(b); err != nil || string(b[:n]) != ping {
		t.Errorf("%q, %v", b[:n], err)
	}
	_ = out.Close()
}

func TestErrorsAndCounts(t *testing.T) {
	header := http.Header{"X-Amzn-Errortype": {"ThrottlingException:http://internal/"}}
	for _, c := range []struct {
		op     wire.Operation
		status int
		body   string
		path   string
		want   string
	}{
		{wire.Messages, 429, `{"message":"slow \"down\""}`, "error.type", "rate_limit_error"},
		{wire.Messages, 429, `{"Message":"slow"}`, "error.message", "slow"},
		{wire.Messages, 429, `<html>`, "error.message", "the provider answered with status 429"},
		{wire.Messages, 429, `{"type":"error","error":{"type":"mine"}}`, "error.type", "mine"},
		{wire.Chat, 429, `{"message":"slow"}`, "error.code", "ThrottlingException"},
		{wire.CountTokens, 200, `{"inputTokens":7}`, "@this", `{"input_tokens":7}`},
		{wire.CountTokens, 200, `{"other":7}`, "@this", `{"other":7}`},
	} {
		if _, b, err := answered(t, c.op, c.status, header.Clone(), strings.NewReader(c.body)); err != nil || !gjson.ValidBytes(b) || gjson.GetBytes(b, c.path).String() != c.want {
			t.Errorf("%d %s: %s, %v", c.status, c.body, b, err)
		}
	}
	if _, _, err := answered(t, wire.Messages, 500, http.Header{}, iotest.ErrReader(io.ErrUnexpectedEOF)); err == nil {
		t.Error("an error that broke off is whole")
	}
}

// Signatures as they were made by another implementation of AWS's.
func TestSignatures(t *testing.T) {
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.FixedZone("", 3600)).Add(time.Hour)
	for _, c := range []struct{ model, token, signature string }{
		{"anthropic.claude-3-5-sonnet-20240620-v1:0", "", "1c296346637e071dee78b5cf6e8efa136e98f11d251a786170bd3a3970ddd59c"},
		{"anthropic.claude-3-5-sonnet-20240620-v1:0", "TOK/+=", "9811ee361b0e22fcfc45ddfc3f4fe16f671f5cdfaad8ddccdd3692d4a26b4b84"},
	} {
		s := signature{credentials: aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret/+x", SessionToken: c.token}, service: runtimeService, region: "us-west-2"}
		call := &relay.Call{URL: "https://bedrock-runtime.us-west-2.amazonaws.com/model/" + escaped(c.model) + "/invoke", Body: []byte(`{"a":1}`), Header: http.Header{"Content-Type": {"application/json"}}}
		if err := s.sign(call, at); err != nil || !strings.HasSuffix(call.Header.Get("Authorization"), "Signature="+c.signature) {
			t.Errorf("%v: %v", call.Header, err)
		}
	}
}
