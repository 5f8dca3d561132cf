package gateway

import (
	"net/http"
	"strings"

	"github.com/weirhq/weir/gateway/authority"
)

// Headers that let scripts of other origins call the API and read what it answers. Any origin may: what it needs is a key, which no
// browser adds by itself. Cookies count for nothing here, and where they do, other origins are refused.
const (
	allowOrigin  = "Access-Control-Allow-Origin"
	askedMethod  = "Access-Control-Request-Method"
	askedHeaders = "Access-Control-Request-Headers"
	preflightFor = "7200" // seconds, the most that browsers believe
)

var (
	anyOrigin = []string{"*"}
	apiCalls  = []string{"GET, POST"}
)

// open says whether scripts of other origins may use a path: those of the API for applications, unless everybody is let in without a key.
// Then any page that somebody looks at could use the models of a gateway within that browser's reach.
func (s *Server) open(path string) bool {
	return strings.HasPrefix(path, "/v1/") && s.config.Authority().Mode != authority.ModeNone
}

// preflight answers a browser that asks whether a script may make a call, and says whether that was it.
func preflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Origin") == "" || r.Header.Get(askedMethod) == "" {
		return false
	}
	h := w.Header()
	h["Access-Control-Allow-Methods"] = apiCalls
	if asked := r.Header.Values(askedHeaders); len(asked) > 0 { // SDKs have many of their own
		h["Access-Control-Allow-Headers"] = asked
	}
	h["Access-Control-Max-Age"] = []string{preflightFor}
	h["Vary"] = []string{askedHeaders}
	w.WriteHeader(http.StatusNoContent)
	return true
}
