package bedrock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// service is the name that requests to the runtime are signed for.
const service = "bedrock"

// Credential is an AWS access key.
type Credential struct {
	ID     string
	Secret string
	Token  string // of a session; empty: a lasting key
}

// ParseCredential reads an access key, ID:SECRET or ID:SECRET:TOKEN. Anything else is an API key of Bedrock's, which is sent as it is: ok is
// false.
func ParseCredential(text string) (c Credential, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return c, false
	}
	c.ID, c.Secret = parts[0], parts[1]
	if len(parts) == 3 {
		c.Token = parts[2]
	}
	return c, true
}

const (
	algorithm  = "AWS4-HMAC-SHA256"
	timeFormat = "20060102T150405Z"
	dateFormat = "20060102"
)

// Sign adds AWS's signature, version 4, to the headers of a POST to u with a body. The content type must be among the headers already, and
// neither it nor the body may change afterwards.
func Sign(h http.Header, u *url.URL, body []byte, c Credential, region string, at time.Time) {
	h["X-Amz-Date"] = []string{at.UTC().Format(timeFormat)}
	if c.Token != "" {
		h["X-Amz-Security-Token"] = []string{c.Token}
	}
	h["Authorization"] = []string{authorization(http.MethodPost, u, h, body, c, region, service, at.UTC())}
}

// Time is when a signed request says that it was signed.
func Time(h http.Header) (time.Time, error) { return time.Parse(timeFormat, h.Get("X-Amz-Date")) }

// signed are the headers that a signature covers, if they are there, in order.
var signed = []string{"content-type", "host", "x-amz-date", "x-amz-security-token"}

func authorization(method string, u *url.URL, h http.Header, body []byte, c Credential, region, service string, at time.Time) string {
	var names []string
	var canonical strings.Builder
	canonical.WriteString(method + "\n" + path(u) + "\n" + query(u) + "\n")
	for _, name := range signed {
		value := h.Get(name)
		if name == "host" {
			value = u.Host
		}
		if value == "" {
			continue
		}
		names = append(names, name)
		canonical.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	headers := strings.Join(names, ";")
	canonical.WriteString("\n" + headers + "\n" + sum(body))
	scope := at.Format(dateFormat) + "/" + region + "/" + service + "/aws4_request"
	text := algorithm + "\n" + at.Format(timeFormat) + "\n" + scope + "\n" + sum([]byte(canonical.String()))
	key := []byte("AWS4" + c.Secret)
	for _, part := range []string{at.Format(dateFormat), region, service, "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return algorithm + " Credential=" + c.ID + "/" + scope + ", SignedHeaders=" + headers + ", Signature=" + hex.EncodeToString(key)
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// path is the path as it is sent, escaped once more.
func path(u *url.URL) string {
	sent := u.EscapedPath()
	if sent == "" {
		return "/"
	}
	parts := strings.Split(sent, "/")
	for i, p := range parts {
		parts[i] = escape(p)
	}
	return strings.Join(parts, "/")
}

func query(u *url.URL) string {
	var pairs []string
	for name, values := range u.Query() {
		for _, v := range values {
			pairs = append(pairs, escape(name)+"="+escape(v))
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

// escape writes as %XX all but what AWS leaves as it is.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
