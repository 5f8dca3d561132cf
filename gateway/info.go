package gateway

import (
	"encoding/json"
	"net/http"
	"sort"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/anthropic"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/openai"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
)

func (c *client) json(v any) {
	c.w.Header()["Content-Type"] = jsonContent
	_ = json.NewEncoder(c.w).Encode(v) // a client that is gone needs no answer
}

func (c *client) raw(body []byte) {
	c.w.Header()["Content-Type"] = jsonContent
	_, _ = c.w.Write(body) // a client that is gone needs no answer
}

// serveModels lists the models that the key may ask for.
func (s *Server) serveModels(w http.ResponseWriter, r *http.Request) {
	c := s.begin(w, r, formatOf(r))
	if c == nil {
		return
	}
	var models []wire.Model
	for id, m := range c.snap.Models {
		if c.key.May(id) {
			models = append(models, listed(m))
		}
	}
	sort.Slice(models, func(i, j int) bool { return models[i].ID < models[j].ID })
	if c.format == wire.Anthropic {
		c.raw(anthropic.ModelList(models))
		return
	}
	c.raw(openai.ModelList(models))
}

// serveModelInfo describes one model.
func (s *Server) serveModelInfo(w http.ResponseWriter, r *http.Request) {
	c := s.begin(w, r, formatOf(r))
	if c == nil {
		return
	}
	m, local := policy.Lookup(c.snap, c.key, r.PathValue("id"))
	if local != nil {
		a := refusal.OfLocal(local)
		c.write(&a)
		return
	}
	if c.format == wire.Anthropic {
		c.raw(anthropic.ModelBody(listed(m)))
		return
	}
	c.raw(openai.ModelBody(listed(m)))
}

func listed(m *authority.Model) wire.Model {
	out := wire.Model{ID: m.ID, OwnedBy: "weir", Created: time.Unix(m.Created, 0), ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutputTokens}
	if m.Local != nil {
		out.OwnedBy = m.Local.Engine
	}
	return out
}

// limitInfo is one limit in the answer of /v1/limits.
type limitInfo struct {
	Meter     events.Meter `json:"meter"`
	Scope     string       `json:"scope"`
	ID        string       `json:"id,omitempty"`
	Kind      string       `json:"kind"`
	Limit     int64        `json:"limit"`
	Used      int64        `json:"used"`
	Remaining int64        `json:"remaining"`
	ResetMS   int64        `json:"reset_ms,omitempty"`
	Shadow    bool         `json:"shadow,omitempty"` // it refuses nothing
}

// limitsInfo is the answer of /v1/limits. A null limit is none.
type limitsInfo struct {
	Object                 string      `json:"object"`
	Org                    events.Org  `json:"org"`
	Key                    string      `json:"key"`
	Model                  *string     `json:"model"`
	RPM                    *int64      `json:"rpm"` // the strictest that applies
	RPS                    *int64      `json:"rps"`
	TPM                    *int64      `json:"tpm"`
	Concurrency            *int64      `json:"concurrency"`
	OutageMode             string      `json:"outage_mode"`
	MaxOutputTokens        int64       `json:"max_output_tokens"`
	DefaultMaxOutputTokens int64       `json:"default_max_output_tokens"`
	QuotaMaxOutputTokens   int64       `json:"quota_max_output_tokens"`
	Limits                 []limitInfo `json:"limits"`
}

// serveLimits shows the limits that apply to the key, inherited ones included, with what is left of them as far as this gateway knows.
func (s *Server) serveLimits(w http.ResponseWriter, r *http.Request) {
	c := s.begin(w, r, formatOf(r))
	if c == nil {
		return
	}
	info := limitsInfo{Object: "limits", Org: c.key.Org, Key: c.key.ID, OutageMode: "bounded_open", QuotaMaxOutputTokens: estimate.MaxCounted,
		MaxOutputTokens: estimate.DefaultMaxOutput, DefaultMaxOutputTokens: estimate.DefaultMaxOutput}
	model := &authority.Model{}
	if id := r.URL.Query().Get("model"); id != "" {
		m, local := policy.Lookup(c.snap, c.key, id)
		if local != nil {
			a := refusal.OfLocal(local)
			c.write(&a)
			return
		}
		model, info.Model = m, &m.ID
		shape := policy.Shape(m)
		if bound := shape.Max(); bound > 0 {
			info.MaxOutputTokens = bound
		}
		info.DefaultMaxOutputTokens = shape.Default()
	}
	s.fillLimits(&info, c, model)
	c.json(info)
}

// usual is an operation that a model serves: one that generates, if it serves any.
func (s *Server) usual(model string, org events.Org) wire.Operation {
	served := wire.Chat
	for _, op := range wire.All() {
		if routes, _ := s.config.Upstream.Routes(model, op, string(org)); len(routes) == 0 {
			continue
		}
		if served = op; op.Generates() {
			break
		}
	}
	return served
}

// fillLimits adds every limit that a small request of the key would claim.
func (s *Server) fillLimits(info *limitsInfo, c *client, model *authority.Model) {
	now := s.config.Now()
	claims := policy.Limits(&policy.Input{Snapshot: c.snap, Key: c.key, Model: model, Request: &wire.Request{Op: s.usual(model.ID, c.key.Org), Model: model.ID, Choices: 1},
		Target: policy.Target{Local: true}, Healthy: int64(s.config.Upstream.Healthy(model.ID)), Settings: s.config.Settings, Now: now})
	info.Limits = []limitInfo{}
	for i := range claims {
		claim := &claims[i]
		if !claim.HasLimit {
			continue
		}
		words := gate.Which(claim.Meter)
		l := limitInfo{Meter: claim.Meter, Scope: words.Scope, ID: words.LimitID, Kind: words.Kind, Limit: claim.Limit, Remaining: claim.Limit,
			Shadow: claim.Shadow}
		if s.config.View != nil {
			left, _ := s.config.View.Remaining(claim.Meter, claim.Limit, now)
			l.Used, l.Remaining, l.ResetMS = left.Used, left.Remaining, left.ResetMS
		}
		info.Limits = append(info.Limits, l)
		for kind, strictest := range map[string]**int64{"rpm": &info.RPM, "rps": &info.RPS, "tpm": &info.TPM, "concurrency": &info.Concurrency} {
			if words.Kind == kind && !claim.Shadow && (*strictest == nil || claim.Limit < **strictest) {
				*strictest = &claim.Limit
			}
		}
	}
	if closed(c.snap, c.key, model) {
		info.OutageMode = "closed"
	}
}

// serveGeneration answers what became of a request, to keys of the same org.
func (s *Server) serveGeneration(w http.ResponseWriter, r *http.Request) {
	c := s.begin(w, r, formatOf(r))
	if c == nil {
		return
	}
	id := r.URL.Query().Get("id")
	if id == "" {
		a := refusal.OfField(&wire.BadRequest{Param: "id", Message: "id is missing: which request? (x-request-id of its answer)", Code: wire.CodeParameter})
		c.write(&a)
		return
	}
	record, found, err := s.config.Generations.Generation(r.Context(), c.key.Org, events.RequestID(id))
	switch {
	case err != nil:
		s.config.Logger.Warn("a generation could not be read", "request", id, "error", err)
		a := refusal.OfLog("the audit records cannot be read now, please retry", 0)
		c.write(&a)
	case !found:
		a := refusal.For(refusal.GenerationNotFound, "there is no such request of this org")
		c.write(&a)
	default:
		c.json(map[string]any{"data": priced(record, c.snap)})
	}
}

// prices are what a record's tokens were counted at, in nano-dollars: per million tokens of a kind, and per request.
type prices struct {
	Input       int64 `json:"input"`
	CachedInput int64 `json:"cached_input"`
	CacheWrite  int64 `json:"cache_write"`
	Output      int64 `json:"output"` // reasoning included
	Request     int64 `json:"request"`
}

// priced adds cost.prices_nano to a record: those of its price version, where that is the version that the model has now. Earlier ones are
// not known here, and left out.
func priced(record json.RawMessage, snap *authority.Snapshot) json.RawMessage {
	m := snap.Models[gjson.GetBytes(record, "model").Str]
	version := gjson.GetBytes(record, "cost.price_version").Str
	if m == nil || m.Price == nil || version == "" || m.Price.Version != version {
		return record
	}
	p := prices{m.Price.Input, m.Price.CachedInput, m.Price.CacheWrite, m.Price.Output, m.Price.Request}
	with, err := sjson.SetBytes(record, "cost.prices_nano", p)
	if err != nil { // cannot be: the record is an object
		return record
	}
	return with
}

// serveHealth says that the process serves.
func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	(&client{w: w}).json(map[string]string{"status": "ok"})
}

// serveReady says whether requests can be admitted, and if not, why.
func (s *Server) serveReady(w http.ResponseWriter, _ *http.Request) {
	c := &client{w: w}
	why := s.config.Ready()
	if s.closed.Load() {
		why = "the gateway stops"
	}
	body := map[string]any{"ready": true}
	if s.config.Degraded != nil {
		if degraded := s.config.Degraded(); len(degraded) > 0 {
			body["degraded"] = degraded
		}
	}
	if why == "" && s.without() {
		if s.config.Now().Before(s.config.Allowance.Until()) {
			body["mode"] = events.BoundedLocal
			c.json(body)
			return
		}
		why = "the log is out of reach"
	}
	if why == "" {
		c.json(body)
		return
	}
	body["ready"], body["why"] = false, why
	w.Header()["Content-Type"] = jsonContent
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
}

// serveUnknown answers paths that there are not.
func (s *Server) serveUnknown(w http.ResponseWriter, r *http.Request) {
	id, _ := r.Context().Value(idKey{}).(events.RequestID)
	c := &client{id: id, format: formatOf(r), w: w, r: r}
	for _, op := range wire.All() {
		if r.URL.Path == op.Path() {
			w.Header().Set("Allow", http.MethodPost)
			a := refusal.For(refusal.MethodNotAllowed, r.Method+" "+r.URL.Path+": use POST")
			c.write(&a)
			return
		}
	}
	message := "there is nothing at " + r.Method + " " + r.URL.Path
	for _, under := range []string{"/console", "/admin", "/api"} {
		if r.URL.Path == under || strings.HasPrefix(r.URL.Path, under+"/") { // where it is served it does not come here
			message += ": that takes api.mode dynamic in auth.yaml, and is served by the process that keeps the log"
		}
	}
	a := refusal.For(refusal.NotFound, message)
	c.write(&a)
}
