package bedrock

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func address(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestTheSignature: the first is an example that AWS publishes, the others are what AWS's own SDK makes.
func TestTheSignature(t *testing.T) {
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	key := Credential{ID: "AKIDEXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
	h := http.Header{"X-Amz-Date": {"20150830T123600Z"}}
	const published = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, " +
		"Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
	if got := authorization(http.MethodGet, address(t, "https://example.amazonaws.com/"), h, nil, key, "us-east-1", "service", at); got != published {
		t.Errorf("got %s", got)
	}
	runtime := "https://bedrock-runtime.us-west-2.amazonaws.com"
	for _, c := range []struct{ url, token, signature string }{
		{runtime + Path("anthropic.claude-3-5-sonnet-20240620-v1:0"), "", "1c296346637e071dee78b5cf6e8efa136e98f11d251a786170bd3a3970ddd59c"},
		{runtime + Path("anthropic.claude-3-5-sonnet-20240620-v1:0"), "TOK/+=", "9811ee361b0e22fcfc45ddfc3f4fe16f671f5cdfaad8ddccdd3692d4a26b4b84"},
		{runtime + Path("arn:aws:bedrock:us-west-2:1:inference-profile/us.x-v1:0") + StreamSuffix, "TOK/+=", "0f60021e66397c97b1e41ac2715d1f4c9a5d46dcccd09c50b0bde0dbc46e0281"},
		{"http://127.0.0.1:4444/openai/v1/chat/completions?b=2&a=1 x", "", "b30b00ce72ad3619928da8c496c5834578e9e9323d7e0201db515f0a452c383f"},
	} {
		h := http.Header{"Content-Type": {"application/json"}}
		Sign(h, address(t, c.url), []byte(`{"a":1}`), Credential{"AKIDEXAMPLE", "secret/+x", c.token}, "us-west-2", at.In(time.FixedZone("", 3600)))
		if got := h.Get("Authorization"); !strings.HasSuffix(got, "Signature="+c.signature) || h.Get("X-Amz-Date") != "20150830T123600Z" || h.Get("X-Amz-Security-Token") != c.token {
			t.Errorf("%s: %v", c.url, h)
		}
	}
}

func TestCredentials(t *testing.T) {
	for text, want := range map[string]Credential{
		"AKID:sec/ret+=": {"AKID", "sec/ret+=", ""}, "AKID:secret:tok/en==": {"AKID", "secret", "tok/en=="},
		"ABSKQmVkcm9ja0FQSUtleQ==": {}, "": {}, ":": {}, "a:": {}, ":b": {}, "a:b:": {}, "a:b:c:d": {},
	} {
		if got, ok := ParseCredential(text); got != want && ok || ok != (want.ID != "") {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
}

func TestRegion(t *testing.T) {
	for host, want := range map[string]string{
		"https://bedrock-runtime.eu-west-3.amazonaws.com": "eu-west-3", "https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com": "us-gov-west-1",
		"https://vpce-1.bedrock-runtime.us-west-2.vpce.amazonaws.com/x": "us-west-2", "http://127.0.0.1:8080": "us-east-1", "http://proxy": "us-east-1",
	} {
		if got := Region(address(t, host)); got != want {
			t.Errorf("%s: %s", host, got)
		}
	}
}

func TestBody(t *testing.T) {
	body := `{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"a \u00e9 <"}]}`
	kept := body
	for _, c := range []struct {
		body  string
		betas []string
		want  string
	}{
		{body, nil, `{"max_tokens":5,"messages":[{"role":"user","content":"a \u00e9 <"}],"anthropic_version":"bedrock-2023-05-31"}`},
		{`{"max_tokens":5,"model":"m","anthropic_version":"bedrock-2030-01-01"}`, nil, `{"max_tokens":5,"anthropic_version":"bedrock-2030-01-01"}`},
		{`{"model":"m","max_tokens":5}`, Betas([]string{"a-1, b-2", "c"}), `{"max_tokens":5,"anthropic_beta":["a-1","b-2","c"],"anthropic_version":"bedrock-2023-05-31"}`},
		{`{"model":"m","anthropic_beta":["own"]}`, []string{"x"}, `{"anthropic_beta":["own"],"anthropic_version":"bedrock-2023-05-31"}`},
	} {
		if got := string(Body([]byte(c.body), c.betas)); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.body, got, c.want)
		}
	}
	raw := []byte(body)
	if Body(raw, nil); string(raw) != kept {
		t.Errorf("the body itself became %s", raw)
	}
}

func TestFault(t *testing.T) {
	for _, c := range []struct{ kind, body, code, message string }{
		{"ThrottlingException:http://internal.amazon.com/", `{"message":"Too many"}`, "ThrottlingException", "Too many"},
		{"AccessDeniedException", `{"Message":"No"}`, "AccessDeniedException", "No"}, {"X", `<html>`, "X", "X"}, {"X", ``, "X", "X"},
	} {
		if code, message := Fault(c.kind, []byte(c.body)); code != c.code || message != c.message {
			t.Errorf("%s %s: %s, %s", c.kind, c.body, code, message)
		}
	}
}

// framed is a frame of text headers and a payload.
func framed(payload string, headers ...string) []byte {
	var h []byte
	for i := 0; i < len(headers); i += 2 {
		h = append(append(h, byte(len(headers[i]))), headers[i]...)
		h = append(binary.BigEndian.AppendUint16(append(h, 7), uint16(len(headers[i+1]))), headers[i+1]...)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(prelude+len(h)+len(payload)+trailer))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, h...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func chunk(event string) []byte {
	return framed(`{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(event))+`","p":"abc"}`, ":event-type", "chunk", ":content-type", "application/json", ":message-type", "event")
}

func TestStream(t *testing.T) {
	start := chunk(`{"type":"message_start","message":{}}`)
	events := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n"
	broken := func(at int) []byte {
		b := bytes.Clone(start)
		b[at] ^= 1
		return b
	}
	long := binary.BigEndian.AppendUint32(nil, maxFrame+1)
	long = binary.BigEndian.AppendUint32(long, 0)
	long = binary.BigEndian.AppendUint32(long, crc32.ChecksumIEEE(long))
	for name, c := range map[string]struct {
		in, want, err string
	}{
		"nothing":           {"", "", ""},
		"two events":        {string(start) + string(chunk("{\"type\":\n\"message_stop\"}")), events + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", ""},
		"an exception":      {string(start) + string(framed(`{"message":"slow \"down\""}`, ":exception-type", "throttlingException", ":message-type", "exception")), events + `event: error` + "\n" + `data: {"type":"error","error":{"type":"rate_limit_error","message":"slow \"down\"","code":"throttlingException"}}` + "\n\n", ""},
		"an error":          {string(framed("", ":message-type", "error", ":error-code", "InternalFailure", ":error-message", "oh")), `event: error` + "\n" + `data: {"type":"error","error":{"type":"api_error","message":"oh","code":"InternalFailure"}}` + "\n\n", ""},
		"a kind to come":    {string(framed("{}", ":message-type", "event", ":event-type", "initial-response")) + string(start), events, ""},
		"cut in a frame":    {string(start) + string(start[:20]), events, "unexpected EOF"},
		"cut in lengths":    {string(start[:7]), "", "unexpected EOF"},
		"wrong lengths":     {string(broken(3)), "", "the checksum of its lengths is wrong"},
		"wrong payload":     {string(broken(len(start) - 9)), "", "its checksum is wrong"},
		"too long":          {string(long), "", "at most 16777216"},
		"headers cut short": {string(shortHeaders()), "", "cut short"},
		"no base64":         {string(framed(`{"bytes":"*"}`, ":message-type", "event")), "", "illegal base64"},
	} {
		got, err := io.ReadAll(NewStream(io.NopCloser(strings.NewReader(c.in))))
		if string(got) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// shortHeaders is a frame whose headers end within one.
func shortHeaders() []byte {
	b := binary.BigEndian.AppendUint32(nil, prelude+5+trailer)
	b = binary.BigEndian.AppendUint32(b, 5)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(b, 9, 'a', 'b', 'c', 'd')
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// Whatever is read, nothing panics, and every frame that is whole comes through in pieces of any size.
func TestAnyBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		headers := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "headers")
		_, _ = readHeaders(headers)
		n := rapid.IntRange(0, 5).Draw(t, "events")
		in := bytes.Repeat(chunk(`{"type":"ping"}`), n)
		junk := rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "junk")
		s := NewStream(io.NopCloser(bytes.NewReader(append(in, junk...))))
		piece := make([]byte, rapid.IntRange(1, 64).Draw(t, "piece"))
		var got []byte
		for {
			k, err := s.Read(piece)
			got = append(got, piece[:k]...)
			if err != nil {
				if len(junk) == 0 && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				break
			}
		}
		if want := strings.Repeat("event: ping\ndata: {\"type\":\"ping\"}\n\n", n); string(got) != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
