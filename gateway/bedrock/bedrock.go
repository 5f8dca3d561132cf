// Package bedrock is what differs at Amazon Bedrock: requests can be signed with AWS's Signature Version 4, the runtime host takes
// Anthropic's requests under paths that name the model, its streams are event-stream frames around Anthropic's events, and its errors
// have a shape of their own. Towards the client all of it is what Anthropic's API sends; no content is translated.
package bedrock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

// Credentials are an access key of AWS. Neither is ever logged.
type Credentials struct {
	AccessKeyID, SecretAccessKey string
	SessionToken                 string // of temporary ones; "" for none
}

var accessKeyID = regexp.MustCompile(`^[A-Z0-9]{16,128}$`)

// ParseKey reads a connection's key: ACCESS_KEY_ID:SECRET_ACCESS_KEY, or with :SESSION_TOKEN behind it. Any other key is one of Bedrock's
// own API keys, which are sent as they are; ok is then false.
func ParseKey(key string) (c Credentials, ok bool) {
	id, rest, ok := strings.Cut(strings.TrimSpace(key), ":")
	if !ok || rest == "" || !accessKeyID.MatchString(id) {
		return c, false
	}
	secret, session, _ := strings.Cut(rest, ":")
	return Credentials{id, secret, session}, true
}

// The services of the two hosts, as signatures name them.
const (
	runtimeService = "bedrock"
	mantleService  = "bedrock-mantle"
)

// Mantle says whether base is the host that speaks the SDKs' formats natively rather than the runtime's.
func Mantle(base *url.URL) bool { return strings.HasPrefix(base.Hostname(), mantleService+".") }

var region = regexp.MustCompile(`(?:^|\.)bedrock-(?:runtime|mantle)(?:-fips)?\.([a-z0-9-]+)\.`)

// Region is the region that a host's name says; "" when it says none.
func Region(base *url.URL) string {
	if m := region.FindStringSubmatch(base.Hostname()); m != nil {
		return m[1]
	}
	return ""
}

// Unsigned says whether key is one to sign with although neither the region nor the host of baseURL says for which region.
func Unsigned(key, region, baseURL string) bool {
	if _, signs := ParseKey(key); !signs || region != "" {
		return false
	}
	base, err := url.Parse(baseURL)
	return err == nil && Region(base) == ""
}

// Target is where and how an account is called.
type Target struct {
	Base   *url.URL
	Region string // "" for the one that Base names
	Model  string
	Key    string
}

// Dialect is how one call to an account differs; nil when it does not, beyond URL and headers of a Target that sends its key as it is.
func (t *Target) Dialect(op wire.Operation) relay.Dialect {
	c, signed := ParseKey(t.Key)
	invoke := op.Format() == wire.Anthropic && !Mantle(t.Base)
	if !signed && !invoke {
		return nil
	}
	d := &dialect{op: op, invoke: invoke}
	if invoke {
		d.model = t.Base.JoinPath("model", escaped(t.Model)).String()
	}
	if signed {
		s := &signature{credentials: aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}}
		if s.service, s.region = runtimeService, t.Region; Mantle(t.Base) {
			s.service = mantleService
		}
		if s.region == "" {
			s.region = Region(t.Base)
		}
		d.signature = s
	}
	return d
}

// escaped is a model's id or ARN as one piece of a path, as AWS's own clients write it.
func escaped(model string) string { return strings.ReplaceAll(url.PathEscape(model), ":", "%3A") }

type dialect struct {
	op        wire.Operation
	invoke    bool
	model     string // the URL of the model
	signature *signature
}

// Prepare makes the call one of Bedrock's.
func (d *dialect) Prepare(c *relay.Call, now time.Time) error {
	if d.invoke {
		if err := d.rewrite(c); err != nil {
			return err
		}
	}
	if d.signature != nil {
		return d.signature.sign(c, now)
	}
	return nil
}

type signature struct {
	credentials     aws.Credentials
	service, region string
}

// sign signs the method, the URL, the body and its type. Other headers may change on their way and are not signed.
func (s *signature) sign(c *relay.Call, now time.Time) error {
	r, err := http.NewRequest(http.MethodPost, c.URL, http.NoBody) //nolint:noctx // it is signed, not sent
	if err != nil {
		return err
	}
	r.Header["Content-Type"] = c.Header["Content-Type"]
	sum := sha256.Sum256(c.Body)
	// A signer of its own: one keeps what it derived from a secret by the id alone, and would go on with a wrong secret that was corrected.
	if err := v4.NewSigner().SignHTTP(context.Background(), s.credentials, r, hex.EncodeToString(sum[:]), s.service, s.region, now.UTC()); err != nil {
		return fmt.Errorf("sign a request: %w", err)
	}
	for _, name := range [...]string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		if v := r.Header[name]; len(v) > 0 {
			c.Header[name] = v
		}
	}
	return nil
}
