package provider

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/tidwall/sjson"

	"github.com/weirhq/weir/gateway/wire"
)

// azure answers as an Azure resource does: /openai/v1/… with the deployment in the body, and with an api-version the older
// /openai/deployments/<deployment>/… and /openai/responses. It reports false for any other path.
func (s *Server) azure(w http.ResponseWriter, r *http.Request) bool {
	path, ours := strings.CutPrefix(r.URL.EscapedPath(), "/openai")
	if !ours {
		return false
	}
	deployment := ""
	if r.URL.Query().Get("api-version") != "" {
		if rest, old := strings.CutPrefix(path, "/deployments/"); old {
			deployment, path, _ = strings.Cut(rest, "/")
			path = "/" + path
		}
		path = "/v1" + path
	}
	op, found := wire.ByPath(path)
	if !found {
		fail(w, wire.OpenAI, http.StatusNotFound, "Resource not found")
		return true
	}
	inner := r.Clone(r.Context())
	if deployment != "" { // whatever the body says
		model, err := url.PathUnescape(deployment)
		if err != nil {
			fail(w, wire.OpenAI, http.StatusBadRequest, err.Error())
			return true
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody))
		if err == nil {
			body, err = sjson.SetBytes(body, "model", model)
		}
		if err != nil {
			fail(w, wire.OpenAI, http.StatusBadRequest, err.Error())
			return true
		}
		inner.Body, inner.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	s.serve(w, inner, op)
	return true
}
