package manage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

type adminHandle = func(pattern string, f func(http.ResponseWriter, *http.Request) error)

// maxModels bounds a key's list of models, and of quotas by model.
const maxModels = 1_000

// adminKeys registers the registry of keys.
func (h *Handler) adminKeys(handle adminHandle) {
	dynamic := func(f func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			if mode := h.mirror.Current().Mode; mode != authority.ModeDynamic {
				return problemf(http.StatusNotImplemented, "not_implemented", "keys are made through the API in api.mode dynamic: it is %s", mode)
			}
			return f(w, r)
		}
	}
	handle("GET /admin/api-keys", dynamic(h.listKeys))
	handle("GET /admin/api-keys/version", dynamic(h.keysVersion))
	handle("GET /admin/api-keys/{id}", dynamic(h.getKey))
	handle("PUT /admin/api-keys/{id}", dynamic(h.putKey))
	handle("DELETE /admin/api-keys/{id}", dynamic(h.deleteKey))
	handle("POST /admin/api-keys/replace", dynamic(h.replaceKeys))
}

// keyBody is a key as answers have it. Its hash is never shown.
type keyBody struct {
	ID        string     `json:"id"`
	Hash      string     `json:"key_hash"` // always empty
	Preview   string     `json:"key_preview"`
	Owner     string     `json:"owner"`
	Org       events.Org `json:"org"`
	Name      string     `json:"name"`
	Enabled   bool       `json:"enabled"`
	ExpiresAt *time.Time `json:"expires_at"`
	Models    []string   `json:"allowed_models"`
	Quota     quotaBody  `json:"quota"`
	Share     float64    `json:"max_occupancy_share,omitempty"`
	Workspace string     `json:"workspace,omitempty"`
	Principal string     `json:"principal,omitempty"`
	Ceiling   *int64     `json:"rpm_ceiling"`
	Limits    limitsBody `json:"limits"`
	Daily     *int64     `json:"tokens_per_day"`
}

type quotaBody struct {
	RequestsPerMinute     int64                     `json:"requests_per_minute"`
	TokensPerDay          int64                     `json:"tokens_per_day"`
	InputTokensPerMinute  int64                     `json:"input_tokens_per_minute"`
	OutputTokensPerMinute int64                     `json:"output_tokens_per_minute"`
	PerModel              map[string]modelQuotaBody `json:"per_model,omitempty"`
}

type modelQuotaBody struct {
	RequestsPerMinutePerReplica int64 `json:"requests_per_minute_per_replica"`
	TokensPerDay                int64 `json:"tokens_per_day"`
}

const millionths = 1_000_000

func showKey(k *authority.KeyRecord) keyBody {
	q := k.Quota
	b := keyBody{ID: k.ID, Preview: k.Preview, Owner: k.Owner, Org: k.Org, Name: k.Name, Enabled: k.Enabled, Models: k.Models,
		Quota:     quotaBody{q.RequestsPerMinute, q.TokensPerDay, q.InputTokensPerMinute, q.OutputTokensPerMinute, nil},
		Share:     float64(q.OccupancyShare) / millionths,
		Workspace: k.Workspace, Principal: k.Principal, Ceiling: some(k.RPMCeiling), Limits: showLimits(k.Limits), Daily: some(k.Daily)}
	if b.Owner == "" {
		b.Owner = string(k.Org)
	}
	if b.Models == nil {
		b.Models = []string{}
	}
	if !k.Expires.IsZero() {
		b.ExpiresAt = &k.Expires
	}
	for m, each := range q.PerModel {
		if b.Quota.PerModel == nil {
			b.Quota.PerModel = map[string]modelQuotaBody{}
		}
		b.Quota.PerModel[m] = modelQuotaBody(each)
	}
	return b
}

// readKey reads a key's fields. The id is given by the path, or by the field id.
func readKey(o *object, id string) *authority.KeyRecord {
	k := &authority.KeyRecord{ID: id}
	if o.required("key_hash", "the SHA-256 of the key in 64 hexadecimal digits") {
		if err := k.Hash.UnmarshalText([]byte(o.text("key_hash", 128))); err != nil {
			o.wrong("key_hash", "must be the SHA-256 of the key in 64 hexadecimal digits")
		}
	}
	k.Preview = o.text("key_preview", authority.MaxName)
	if o.required("owner", "whose key it is") {
		owner := o.text("owner", authority.MaxName)
		if k.Org = authority.OrgOf(owner); owner == "" {
			o.wrong("owner", "must not be empty")
		} else if string(k.Org) != owner {
			k.Owner = owner
		}
	}
	if o.required("name", "what the key is for") {
		k.Name = o.text("name", authority.MaxName)
	}
	if o.required("enabled", "true or false") {
		k.Enabled = o.boolean("enabled", false)
	}
	k.Expires = readExpiry(o)
	for i, v := range o.list("allowed_models", maxModels) {
		if v.Type != gjson.String || v.Str == "" || len(v.Str) > authority.MaxName {
			o.r.wrong(fmt.Sprintf("%s[%d]", o.at("allowed_models"), i), v, "must be the id of a model")
			continue
		}
		k.Models = append(k.Models, v.Str)
	}
	sort.Strings(k.Models)
	k.Models = slices.Compact(k.Models)
	k.Quota = readQuota(o.sub("quota"))
	k.Quota.OccupancyShare = o.share("max_occupancy_share", "must be 0 (unset) or greater than 0 and at most 1", true)
	k.Workspace, k.Principal = o.text("workspace", authority.MaxName), o.text("principal", authority.MaxName)
	k.RPMCeiling = o.integer("rpm_ceiling", 0, 1, authority.MaxRPM)
	k.Daily = o.integer("tokens_per_day", 0, 1, authority.MaxQuota)
	if l := o.sub("limits"); l != nil {
		k.Limits = l.given(true, true)
		l.end()
	}
	return k
}

// readExpiry reads a day, through which the key is valid, or an instant.
func readExpiry(o *object) time.Time {
	text := o.text("expires_at", 64)
	if text == "" {
		return time.Time{}
	}
	if day, err := time.ParseInLocation("02-01-2006", text, time.UTC); err == nil {
		return day.AddDate(0, 0, 1)
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		o.wrong("expires_at", "must be a day, DD-MM-YYYY, or an RFC 3339 time")
	}
	return at.UTC()
}

func readQuota(o *object) (q authority.QuotaRecord) {
	if o == nil {
		return q
	}
	defer o.end()
	number := func(name string) int64 { return o.integer(name, 0, 0, authority.MaxQuota) }
	flat := []string{"requests_per_minute", "tokens_per_day", "input_tokens_per_minute", "output_tokens_per_minute"}
	q.RequestsPerMinute, q.TokensPerDay = number(flat[0]), number(flat[1])
	q.InputTokensPerMinute, q.OutputTokensPerMinute = number(flat[2]), number(flat[3])
	models := o.sub("per_model")
	if models == nil {
		return q
	}
	for _, name := range flat {
		if o.fields[name].Int() != 0 {
			o.wrong(name, "must not stand beside per_model: a quota is flat or by model")
		}
	}
	if n := len(models.fields); n == 0 || n > maxModels {
		o.wrong("per_model", "must have from 1 to %d models", maxModels)
		return q
	}
	q.PerModel = map[string]authority.ModelQuotaRecord{}
	for name := range models.fields {
		e := models.sub(name)
		if e == nil {
			continue
		}
		if name == "" || len(name) > authority.MaxName {
			models.wrong(name, "must stand under the id of a model")
		}
		each := authority.ModelQuotaRecord{}
		if e.required("requests_per_minute_per_replica", "0 for no limit") {
			each.RequestsPerMinutePerReplica = e.integer("requests_per_minute_per_replica", 0, 0, authority.MaxQuota)
		}
		if e.required("tokens_per_day", "0 for no limit") {
			each.TokensPerDay = e.integer("tokens_per_day", 0, 0, authority.MaxQuota)
		}
		e.end()
		q.PerModel[name] = each
	}
	return q
}

// rules checks keys against all that there is beside them.
type rules struct {
	tx         *store.Tx
	serverless []*authority.Model
	static     map[string]bool // ids of the files' keys
	made       map[events.Org]bool
}

func newRules(tx *store.Tx) *rules {
	c := &rules{tx: tx, static: make(map[string]bool, len(tx.Static.Keys)), made: map[events.Org]bool{}}
	for _, m := range tx.Static.Models {
		if m.Policy.Serverless && m.Policy.MaxInputTokens > 0 {
			c.serverless = append(c.serverless, m)
		}
	}
	sort.Slice(c.serverless, func(i, j int) bool { return c.serverless[i].ID < c.serverless[j].ID })
	for _, k := range tx.Static.Keys {
		c.static[k.ID] = true
	}
	return c
}

// key notes what is wrong with a key, under a path.
func (c *rules) key(fs *authority.Faults, path string, k *authority.KeyRecord) {
	wrong := func(field, value, rule string, args ...any) {
		fs.Add(authority.Fault{Field: path + field, Value: shorten(value), Rule: fmt.Sprintf(rule, args...)})
	}
	if c.static[k.ID] {
		wrong("id", k.ID, "is a key of auth.yaml: it is changed there")
	}
	if c.tx.Static.Keys[k.Hash] != nil {
		wrong("key_hash", "", "is the hash of a key of auth.yaml: a key may stand once")
	}
	st := c.tx.State.Org(k.Org)
	if st.Record != nil && st.Record.Deleted && !c.made[k.Org] {
		wrong("owner", string(k.Org), "is an org that was deleted: make it again first")
	}
	if k.Workspace != "" && st.Workspaces[k.Workspace] == nil {
		wrong("workspace", k.Workspace, "there is no such workspace of the org %s", k.Org)
	}
	if k.Principal != "" && st.Principals[k.Principal] == nil {
		wrong("principal", k.Principal, "there is no such principal of the org %s", k.Org)
	}
	if rule := authority.CheckServerless(k.Key(), c.serverless); rule != "" {
		wrong("quota.input_tokens_per_minute", strconv.FormatInt(k.Quota.InputTokensPerMinute, 10), "%s", rule)
	}
}

// put writes a key whose rules hold. An owner that nobody made is an org as one of auth.yaml: it pays afterwards, and has no limits but
// its keys'.
func (c *rules) put(k *authority.KeyRecord) {
	if c.tx.Static.Orgs[k.Org] == nil && c.tx.State.Org(k.Org).Record == nil && !c.made[k.Org] {
		c.made[k.Org] = true
		c.tx.Put(&authority.OrgRecord{Org: k.Org, Name: k.Owner, Billing: authority.Postpaid})
	}
	c.tx.Put(k)
}

// stale says that the registry is newer than a version.
func stale(current string) *problem {
	return &problem{status: http.StatusConflict, message: "stale version", current: &current}
}

// versioned checks a change's version against the registry's and writes it.
func versioned(tx *store.Tx, version string, force bool) error {
	current := tx.State.Registry()
	if version < current && !force {
		return stale(current)
	}
	if version != current {
		tx.Put(&authority.RegistryRecord{Version: version})
	}
	return nil
}

func readVersion(o *object) string {
	if !o.required("version", "not below the registry's, as text") {
		return ""
	}
	version := o.text("version", authority.MaxName)
	if version == "" {
		o.wrong("version", "must not be empty")
	}
	return version
}

func (h *Handler) putKey(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := named(id); err != nil {
		return err
	}
	var version string
	var k *authority.KeyRecord
	if err := read(w, r, func(o *object) {
		version = readVersion(o)
		o.take("id") // the path says it
		k = readKey(o, id)
	}); err != nil {
		return err
	}
	err := h.change(r, operator, func(tx *store.Tx) error {
		if err := versioned(tx, version, false); err != nil {
			return err
		}
		var faults authority.Faults
		c := newRules(tx)
		c.key(&faults, "", k)
		if other := tx.State.KeyByHash(k.Hash); other != nil && other.ID != id {
			faults.Add(authority.Fault{Field: "key_hash", Rule: "is the hash of the key " + shorten(other.ID) + ": a key may stand once"})
		}
		if p := faulty(faults); p != nil {
			return p
		}
		if old := tx.State.KeyOf(id); old != nil && old.Org != k.Org {
			tx.Delete(old.Ref())
		}
		c.put(k)
		return nil
	})
	if err == nil {
		answer(w, http.StatusOK, map[string]bool{"ok": true})
	}
	return err
}

func (h *Handler) deleteKey(w http.ResponseWriter, r *http.Request) error {
	id, version := r.PathValue("id"), r.URL.Query().Get("version")
	if version == "" || len(version) > authority.MaxName {
		return invalid("version", shorten(version), "must be given: not below the registry's, from 1 to %d bytes long", authority.MaxName)
	}
	err := h.change(r, operator, func(tx *store.Tx) error {
		if err := versioned(tx, version, false); err != nil {
			return err
		}
		if k := tx.State.KeyOf(id); k != nil {
			h.drop(tx, k)
		}
		return nil
	})
	if err == nil {
		answer(w, http.StatusOK, map[string]bool{"ok": true})
	}
	return err
}

// drop takes a key away, and what its org set for it.
func (h *Handler) drop(tx *store.Tx, k *authority.KeyRecord) {
	tx.Delete(k.Ref())
	tx.Delete((&authority.LimitRecord{Org: k.Org, Scope: events.ScopeKey, Subject: k.ID}).Ref())
}

// replaceKeys makes the registry what the body says, whole or not at all. With force=true the version may be an older one.
func (h *Handler) replaceKeys(w http.ResponseWriter, r *http.Request) error {
	text, err := body(w, r, MaxReplace)
	if err != nil {
		return err
	}
	var in reader
	o := in.parse(text)
	if o == nil {
		return faulty(in.faults)
	}
	version := readVersion(o)
	keys := readKeys(o)
	o.end()
	if p := faulty(in.faults); p != nil {
		return p
	}
	err = h.change(r, operator, func(tx *store.Tx) error {
		if err := versioned(tx, version, r.URL.Query().Get("force") == "true"); err != nil {
			return err
		}
		return h.replace(tx, keys)
	})
	if err == nil {
		answer(w, http.StatusOK, map[string]any{"ok": true, "count": len(keys)})
	}
	return err
}

// maxKeys bounds the keys of one replacement: with the orgs that they make it stays within one change.
const maxKeys = 100_000

// readKeys reads the keys of a registry. No id and no hash may stand twice.
func readKeys(o *object) []*authority.KeyRecord {
	if !o.required("keys", "all keys that there are to be") {
		return nil
	}
	var keys []*authority.KeyRecord
	ids, hashes := map[string]int{}, map[authority.Hash]int{}
	for i, v := range o.list("keys", maxKeys) {
		path := fmt.Sprintf("keys[%d]", i)
		each := o.r.object(v, path)
		if each == nil {
			continue
		}
		id := ""
		if each.required("id", "which key it is") {
			if id = each.text("id", authority.MaxName); named(id) != nil {
				each.wrong("id", "must be from 1 to %d bytes long, without spaces and control characters", authority.MaxName)
			}
		}
		k := readKey(each, id)
		each.end()
		if first, twice := ids[id]; twice {
			each.wrong("id", "is that of keys[%d] too: an id may stand once", first)
		} else if first, twice := hashes[k.Hash]; twice {
			each.wrong("key_hash", "is that of keys[%d] too: a key may stand once", first)
		}
		ids[id], hashes[k.Hash] = i, i
		keys = append(keys, k)
		if len(o.r.faults) >= maxFaults {
			break
		}
	}
	return keys
}

// maxFaults is how many faults of a body are looked for: more help nobody.
const maxFaults = 100

// replace writes the keys that differ and takes away the others.
func (h *Handler) replace(tx *store.Tx, keys []*authority.KeyRecord) error {
	c := newRules(tx)
	var faults authority.Faults
	stay := make(map[string]*authority.KeyRecord, len(keys))
	for i, k := range keys {
		c.key(&faults, fmt.Sprintf("keys[%d].", i), k)
		stay[k.ID] = k
	}
	if p := faulty(faults); p != nil {
		return p
	}
	for _, st := range tx.State.Orgs() {
		for id, old := range st.Keys {
			k := stay[id]
			switch {
			case k == nil:
				h.drop(tx, old)
			case k.Org != old.Org:
				tx.Delete(old.Ref())
			case same(k, old):
				delete(stay, id)
			}
		}
	}
	for _, k := range keys {
		if stay[k.ID] != nil {
			c.put(k)
		}
	}
	return nil
}

func same(a, b authority.Record) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

func (h *Handler) listKeys(w http.ResponseWriter, r *http.Request) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		all := make(map[string]*authority.KeyRecord, s.Keys())
		for _, st := range s.Orgs() {
			for id, k := range st.Keys {
				all[id] = k
			}
		}
		return map[string]any{"count": len(all), "keys": each(paged(all, after, limit), showKey)}, nil
	})
}

func (h *Handler) getKey(w http.ResponseWriter, r *http.Request) error {
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		k := s.KeyOf(r.PathValue("id"))
		if k == nil {
			return nil, problemf(http.StatusNotFound, "not_found", "key not found: %s", shorten(r.PathValue("id")))
		}
		return map[string]any{"key": showKey(k)}, nil
	})
}

func (h *Handler) keysVersion(w http.ResponseWriter, _ *http.Request) error {
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		return map[string]any{"version": s.Registry(), "count": s.Keys()}, nil
	})
}
