// Package bedrock is what a call to Amazon Bedrock's own runtime takes beside the wire format that its models speak: a signature over
// every request, a body without the model's name, streams framed as AWS frames events, and errors in AWS's shape.
package bedrock

import (
	"net/url"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// version is the version of Anthropic's format that the runtime's bodies name.
const version = "bedrock-2023-05-31"

// Path is where the runtime takes a call of Anthropic's format for a model, an id or the ARN of an inference profile. It comes escaped.
func Path(model string) string { return "/model/" + escape(model) + "/invoke" }

// StreamSuffix is what the path of a call that is answered as a stream ends in.
const StreamSuffix = "-with-response-stream"

// Body makes the runtime's body of one in Anthropic's format: the path names the model and says whether the answer is a stream, and the
// betas of the client's header stand in it. body is an object, and is not changed itself.
func Body(body []byte, betas []string) []byte {
	edited := func(out []byte, err error) { // it fails for no object, and names have nothing in them that means something else
		if err == nil {
			body = out
		}
	}
	edited(sjson.DeleteBytes(body, "model"))
	edited(sjson.DeleteBytes(body, "stream"))
	if len(betas) > 0 && !gjson.GetBytes(body, "anthropic_beta").Exists() {
		edited(sjson.SetBytes(body, "anthropic_beta", betas))
	}
	if !gjson.GetBytes(body, "anthropic_version").Exists() {
		edited(sjson.SetBytes(body, "anthropic_version", version))
	}
	return body
}

// Betas are the values of Anthropic-Beta headers, one by one.
func Betas(headers []string) (all []string) {
	for _, h := range headers {
		for _, one := range strings.Split(h, ",") {
			if one = strings.TrimSpace(one); one != "" {
				all = append(all, one)
			}
		}
	}
	return all
}

// Region is the region of a runtime's host: bedrock-runtime.us-west-2.amazonaws.com, or of a private endpoint.
func Region(base *url.URL) string {
	labels := strings.Split(base.Hostname(), ".")
	for i, label := range labels[:len(labels)-1] {
		if strings.HasPrefix(label, "bedrock-") {
			return labels[i+1]
		}
	}
	return defaultRegion
}

// defaultRegion is signed for where the host does not say: behind a proxy, for one.
const defaultRegion = "us-east-1"

// Fault reads an error in AWS's shape. kind is the header x-amzn-errortype.
func Fault(kind string, body []byte) (code, message string) {
	code, _, _ = strings.Cut(kind, ":")
	for _, name := range []string{"message", "Message"} {
		if m := gjson.GetBytes(body, name); m.Type == gjson.String && m.Str != "" {
			return code, m.Str
		}
	}
	return code, code
}
