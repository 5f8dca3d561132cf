package manage

import (
	"net/http"
	"sort"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/kv"
)

// Meters shows what the fold's meters hold; it is a kv.View.
type Meters interface {
	Ready() bool
	Get(m events.Meter, now time.Time) (kv.Entry, bool)
	Remaining(m events.Meter, limit int64, now time.Time) (left kv.Allowance, known bool)
}

// maxHeadroom is how many scopes of a kind a list of headroom has: those with the least left.
const maxHeadroom = 50

// meterBody is one limit with what is left of it.
type meterBody struct {
	Kind      string `json:"kind"` // rpm, rps, tpm, concurrency, daily, spend_day, spend_month; of money in nano-dollars
	Limit     int64  `json:"limit"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_ms,omitempty"` // until nothing is used any more if nothing is added
	Waiting   int    `json:"waiting,omitempty"`  // requests that wait for it to fall
}

// roomBody is one scope with what is left of its limits.
type roomBody struct {
	Scope    events.Scope `json:"scope"`
	Subject  string       `json:"subject"`
	Name     string       `json:"name,omitempty"`
	PausedMS int64        `json:"paused_ms,omitempty"` // of a pool, after a provider's 429
	Meters   []meterBody  `json:"meters"`

	full int64 // of the fullest, in millionths
}

// headroomBody is what an org has left.
type headroomBody struct {
	At        time.Time  `json:"at"`
	Known     bool       `json:"known"`          // false: what is used has not been read yet
	Available *int64     `json:"available_nano"` // of a prepaid balance, holds taken off; null: there is none, or none is known
	LeftOff   int        `json:"left_off"`       // scopes with more left than those listed
	Scopes    []roomBody `json:"scopes"`
}

// room adds one meter.
func (h *Handler) room(b *roomBody, m events.Meter, kind string, limit int64, now time.Time) {
	if limit == 0 {
		return
	}
	left, _ := h.config.Meters.Remaining(m, limit, now)
	entry, _ := h.config.Meters.Get(m, now)
	b.Meters = append(b.Meters, meterBody{kind, limit, left.Used, left.Remaining, left.ResetMS, entry.Waiting})
	b.full = max(b.full, authority.ScaleDown(min(max(left.Used, 0), limit), millionths, limit))
}

func (h *Handler) roomOf(org events.Org, s *subject, now time.Time) roomBody {
	b := roomBody{Scope: s.scope, Subject: s.named(), Name: s.name}
	for _, m := range []struct {
		kind, dimension string
		limit           int64
	}{
		{"rpm", "rpm", s.limits.RPM}, {"rps", "rps", s.limits.RPS}, {"tpm", "tpm", s.limits.TPM}, {"concurrency", "concurrency", s.limits.Concurrency},
		{"daily", "daily", s.daily}, {"spend_day", "spend-day", s.limits.SpendDay}, {"spend_month", "spend-month", s.limits.SpendMonth},
	} {
		h.room(&b, s.meter(org, m.dimension), m.kind, m.limit, now)
	}
	return b
}

func (h *Handler) roomOfPool(p *authority.Pool, now time.Time) roomBody {
	b := roomBody{Scope: events.ScopePool, Subject: p.ID, Name: p.Provider}
	name := func(dimension string) events.Meter { return events.NewMeter(events.ScopePool, dimension, p.ID) }
	h.room(&b, name("rpm"), "rpm", p.RPM, now)
	h.room(&b, name("tpm"), "tpm", p.TPM, now)
	h.room(&b, name("concurrency"), "concurrency", p.Concurrency, now)
	pause, _ := h.config.Meters.Get(name("pause"), now)
	b.PausedMS = pause.Used
	return b
}

// headroom shows what is left of every limit of the org, as far as this gateway knows.
func (h *Handler) headroom(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	if h.config.Meters == nil {
		return problemf(http.StatusNotImplemented, "not_implemented", "this process does not know what is used")
	}
	want, at := wanted(r), h.config.Now()
	body := headroomBody{At: at.UTC(), Known: h.config.Meters.Ready()}
	return h.show(w, http.StatusOK, func(state *authority.State, static *authority.Snapshot) (any, error) {
		now := h.mirror.Current()
		all := []roomBody{}
		for _, s := range subjects(u.Org, state.Org(u.Org), static, now) {
			if b := h.roomOf(u.Org, &s, at); want(&s) && len(b.Meters) > 0 {
				all = append(all, b)
			}
		}
		for _, p := range now.Pools {
			if s := (subject{scope: events.ScopePool, id: p.ID}); p.Org == u.Org && want(&s) {
				all = append(all, h.roomOfPool(p, at))
			}
		}
		body.Scopes, body.LeftOff = fullest(all)
		if o := now.Orgs[u.Org]; o != nil && o.Billing == authority.Prepaid {
			if entry, known := h.config.Meters.Get(events.NewMeter(events.ScopeOrg, "balance", string(u.Org)), at); known {
				body.Available = &entry.Available
			}
		}
		return body, nil
	})
}

// fullest keeps of each kind of scope those with the least left, in the order of scopes, then of how full they are.
func fullest(all []roomBody) (kept []roomBody, left int) {
	order := func(s events.Scope) int {
		if s == events.ScopePool {
			return len(scopeOrder)
		}
		return scopeOrder[s]
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		if a.Scope != b.Scope {
			return order(a.Scope) < order(b.Scope)
		}
		return a.full > b.full || a.full == b.full && a.Subject < b.Subject
	})
	kept, count := []roomBody{}, map[events.Scope]int{}
	for _, b := range all {
		if count[b.Scope]++; count[b.Scope] > maxHeadroom {
			left++
			continue
		}
		kept = append(kept, b)
	}
	return kept, left
}
