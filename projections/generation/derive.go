package generation

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/gate"
)

// settle says where the request stands.
func (rec *Record) settle() {
	rec.State, rec.Outcome, rec.Status, rec.Error, rec.EndedAt = InProgress, "", 0, nil, 0
	refusal := rec.lastRefusal()
	switch {
	case rec.Released != nil:
		rec.endedBy(rec.Released)
	case rec.Lapsed != 0:
		rec.State, rec.EndedAt, rec.Outcome = Ended, rec.Lapsed, events.Abandoned
		rec.Error = &Error{Code: CodeLost, Origin: gate.OriginInfrastructure, Message: "its gateway was lost, or did not say in time how it ended"}
	case refusal == nil || rec.admitted():
		rec.settleEarly()
	default:
		rec.State, rec.EndedAt, rec.Outcome, rec.Status = Ended, refusal.Time, Refused, int64(refusal.Status)
		if refusal.Code != "" {
			rec.Error = &Error{Code: refusal.Code, Origin: refusal.Origin, Message: refusal.Message}
		}
		if last := len(rec.Attempts) - 1; last >= 0 && refusal.Reason == events.Released && rec.Attempts[last].Released != nil {
			rec.endedBy(rec.Attempts[last].Released) // as when the client left while it waited
		}
	}
}

func (rec *Record) endedBy(r *Released) {
	rec.State, rec.EndedAt, rec.Outcome, rec.Status, rec.Error = Ended, r.At, r.Outcome, r.Status, r.Error
}

// settleEarly says that a request has ended whose release came, but no reserve: it may never have reached the log.
func (rec *Record) settleEarly() {
	if len(rec.Attempts) > 0 {
		return
	}
	for i := range rec.Early {
		d, err := events.DecodeData(rec.Early[i].Type, []byte(rec.Early[i].Data))
		if release, ok := d.(*events.Release); ok && err == nil && release.Of != events.OfLocal {
			rec.endedBy(releasedBy(int64(rec.Early[i].At), release))
		}
	}
}

func (rec *Record) lastRefusal() *AdmissionEvent {
	for i := len(rec.AdmissionEvents) - 1; i >= 0; i-- {
		if e := &rec.AdmissionEvents[i]; e.Event == EventRefused {
			return e
		}
	}
	return nil
}

// serving finds the attempt that served the request: the one that its release names, else the last that was admitted.
func (rec *Record) serving() *Attempt {
	if rec.Released != nil {
		if a := rec.attempt(rec.Released.Attempt); a != nil && a.Verdict != VerdictRefused {
			return a
		}
	}
	for i := len(rec.Attempts) - 1; i >= 0; i-- {
		if a := &rec.Attempts[i]; a.Verdict != VerdictRefused {
			return a
		}
	}
	return nil
}

// derive fills in what follows from the rest.
func (rec *Record) derive() {
	rec.settle()
	slices.SortStableFunc(rec.AdmissionEvents, func(a, b AdmissionEvent) int { return cmp.Compare(a.Time, b.Time) })
	rec.APIType = textOrNull(apiTypes[rec.Operation])
	rec.Cancelled = rec.Outcome == events.Cancelled
	rec.deriveAnswer()
	rec.deriveCost()
	rec.ProviderResponses = rec.ProviderResponses[:0]
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		if a.Verdict == VerdictRefused || a.unsent() {
			continue
		}
		p := ProviderResponse{EndpointID: a.Deployment, ProviderName: provider(a.Deployment)}
		if r := a.Released; r != nil {
			p.Status, p.Latency = known(r.Status), known(r.LatencyMS)
		}
		rec.ProviderResponses = append(rec.ProviderResponses, p)
	}
}

// apiTypes are OpenRouter's words for the operations.
var apiTypes = map[string]string{
	"chat": "completions", "completions": "completions", "responses": "completions", "messages": "completions",
	"embeddings": "embeddings", "rerank": "rerank",
}

// local is the provider of a deployment that is a replica of one's own: its host and port.
const local = "local"

// provider gives the connection of a deployment, connection/model.
func provider(deployment string) string {
	if connection, _, has := strings.Cut(deployment, "/"); has {
		return connection
	}
	return local
}

func (rec *Record) deriveAnswer() {
	rec.ProviderName, rec.UsageQuality, rec.FinishReason, rec.Latency, rec.GenerationTime = nil, nil, nil, nil, nil
	rec.TokensPrompt, rec.TokensCompletion, rec.NativeTokensReasoning, rec.NativeTokensCached = nil, nil, nil, nil
	a := rec.serving()
	if a != nil {
		rec.UsageQuality = textOrNull(a.UsageQuality)
		if a.Deployment != "" {
			rec.ProviderName = textOrNull(provider(a.Deployment))
		}
		if u := a.used(); u != nil {
			rec.TokensPrompt, rec.TokensCompletion = number(u.InputTokens), number(u.OutputTokens)
			rec.NativeTokensReasoning, rec.NativeTokensCached = number(u.ReasoningTokens), number(u.CachedTokens)
		}
	}
	rec.NativeTokensPrompt, rec.NativeTokensCompletion = rec.TokensPrompt, rec.TokensCompletion
	if r := rec.Released; r != nil {
		rec.FinishReason, rec.Latency = textOrNull(r.FinishReason), known(r.LatencyMS)
		if r.TTFTMS > 0 && r.LatencyMS >= r.TTFTMS {
			rec.GenerationTime = number(r.LatencyMS - r.TTFTMS)
		}
	}
	rec.NativeFinishReason = rec.FinishReason
}

// used gives what an attempt used, as corrected.
func (a *Attempt) used() *events.Usage {
	if a.Correction != nil {
		return &a.Correction.Usage
	}
	return a.Usage
}

func (rec *Record) deriveCost() {
	rec.Cost = Cost{Settled: rec.State == Ended}
	list := int64(0)
	rec.IsBYOK, rec.UpstreamInferenceCost = false, nil
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		if a.Verdict == VerdictRefused {
			continue
		}
		if a.PriceVersion != "" {
			rec.Cost.PriceVersion = a.PriceVersion
		}
		if a.BYOK {
			rec.IsBYOK = true
			list += a.ListNano
		}
		if u := a.used(); u != nil {
			t := &rec.Cost.Tokens
			t.InputTokens += u.InputTokens
			t.CachedTokens += u.CachedTokens
			t.CacheWriteTokens += u.CacheWriteTokens
			t.OutputTokens += u.OutputTokens
			t.ReasoningTokens += u.ReasoningTokens
		}
		switch {
		case a.Correction != nil:
			rec.Cost.Nano += a.Correction.CostNano
			rec.Cost.Corrected = true
		case a.CostNano != nil:
			rec.Cost.Nano += *a.CostNano
		case !a.unsent():
			rec.Cost.Settled = false
		}
	}
	rec.TotalCost, rec.Usage = USD(rec.Cost.Nano), USD(rec.Cost.Nano)
	if rec.IsBYOK {
		upstream := USD(list)
		rec.UpstreamInferenceCost = &upstream
	}
}

// known gives a number that is 0 when it is not known.
func known(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}
