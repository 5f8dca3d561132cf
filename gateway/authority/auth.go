package authority

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Auth is what auth.yaml says.
type Auth struct {
	File      string
	Mode      Mode
	Unsaid    bool   // the file gives no mode: that is none
	AdminMode string // none, api-key; empty: not given
	Keys      []StaticKey
	Warnings  []Warning
}

// StaticKey is one key of auth.yaml.
type StaticKey struct {
	Hash  [32]byte
	Owner string // as written; empty: none
	Key   *Key
}

// MaxName bounds names, ids and owners in bytes.
const MaxName = 256

// dateFormat is how auth.yaml writes a day: DD-MM-YYYY.
const dateFormat = "02-01-2006"

// LoadAuth reads auth.yaml. The error is Faults: everything that is wrong with the file.
func LoadAuth(file string) (*Auth, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	return ParseAuth(file, data)
}

// readFile reads a file of bounded size.
func readFile(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err == nil && info.Size() > strictyaml.MaxFile {
		err = fmt.Errorf("the file is %d bytes long: at most %d are read", info.Size(), strictyaml.MaxFile)
	}
	if err == nil && info.IsDir() {
		err = fmt.Errorf("is a directory: it must be a file")
	}
	if err != nil {
		return nil, unreadable(file, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, unreadable(file, err)
	}
	return data, nil
}

func unreadable(file string, err error) error {
	rule := err.Error()
	if path, ok := err.(*os.PathError); ok {
		rule = "cannot be read: " + path.Err.Error()
	}
	return Faults{{Pos: Pos{File: file}, Rule: rule}}
}

// ParseAuth reads the text of auth.yaml; file is for messages.
func ParseAuth(file string, data []byte) (*Auth, error) {
	r := &strictyaml.Reader{File: file}
	a := &Auth{File: file}
	top := r.Read(data).Map()
	a.api(r, top.Get("api"))
	admin := top.Get("admin").Map()
	a.AdminMode = admin.Get("mode").OneOf("", "none", "api-key")
	admin.End()
	top.End()
	if a.AdminMode == "none" {
		a.warn(admin.Get("mode"), "management is never open: it needs an admin key all the same")
	}
	if err := r.Faults.Err(); err != nil {
		return nil, err
	}
	a.Warnings = append(a.Warnings, r.Warnings...)
	return a, nil
}

func (a *Auth) warn(n strictyaml.Node, rule string) {
	a.Warnings = append(a.Warnings, Warning{Pos: n.Pos(), Field: n.Path(), Rule: rule})
}

func (a *Auth) api(r *strictyaml.Reader, n strictyaml.Node) {
	api := n.Map()
	mode, keys := api.Get("mode"), api.Get("keys")
	a.Mode = Mode(mode.OneOf("", string(ModeNone), string(ModeAPIKey), string(ModeDynamic)))
	seen := map[[32]byte]Pos{}
	for _, item := range keys.List() {
		k := a.key(item)
		if k == nil {
			continue
		}
		if first, twice := seen[k.Hash]; twice {
			r.Faults.Add(Fault{Pos: k.Key.At, Field: item.Path() + ".key_hash", Rule: fmt.Sprintf("the same key as on line %d: a key may stand once", first.Line)})
			continue
		}
		seen[k.Hash] = k.Key.At
		a.Keys = append(a.Keys, *k)
	}
	api.End()
	switch {
	case a.Mode == "" && len(seen) > 0 && mode.Absent():
		mode.Wrong("must be given where there are keys: none, api-key or dynamic")
	case a.Mode == "":
		a.Mode, a.Unsaid = ModeNone, true
	case a.Mode == ModeAPIKey && keys.Absent():
		keys.Wrong("must have at least one key in mode api-key")
	case a.Mode == ModeAPIKey && len(keys.List()) == 0:
		keys.Wrong("must have at least one key in mode api-key")
	case a.Mode == ModeNone && len(seen) > 0:
		a.warn(keys, "keys are not used in mode none: everybody is let in")
	}
}

// key reads one key. It is nil when the key has no usable hash.
func (a *Auth) key(n strictyaml.Node) *StaticKey {
	m := n.Map()
	hash, ok := readHash(m.Get("key_hash"))
	k := &Key{ID: KeyID(hash), Preview: name(m.Get("key_preview")), At: n.Pos()}
	owner := a.metadata(m.Get("metadata"), k)
	k.Models = readModels(m.Get("models"))
	k.Quota = a.quota(m.Get("quota"))
	k.Quota.OccupancyShare = readShare(m.Get("max_occupancy_share"))
	k.Limits, k.Daily = ReadLimits(m.Get("limits"))
	k.Workspace, k.Principal = name(m.Get("workspace")), name(m.Get("principal"))
	m.End()
	if k.Quota.PerModel != nil && k.Models != nil {
		a.warn(m.Get("models"), "is not used beside quota.per_model, whose models are the key's")
	}
	if !ok {
		return nil
	}
	k.Org = OrgOf(owner)
	if owner == "" {
		k.Org = OrgOf(k.ID)
	}
	return &StaticKey{Hash: hash, Owner: owner, Key: k}
}

func readHash(n strictyaml.Node) (hash [32]byte, ok bool) {
	const rule = "must be the SHA-256 of the key in 64 hexadecimal digits"
	text, ok := n.Text()
	raw, err := hex.DecodeString(text)
	switch {
	case err != nil:
		n.WrongSecret(rule) // a key itself, for one
		return hash, false
	case !ok || len(raw) != len(hash):
		n.Wrong(rule)
		return hash, false
	}
	return [32]byte(raw), true
}

// name reads a text of bounded length without control characters.
func name(n strictyaml.Node) string {
	text, ok := n.Text()
	if !ok {
		return ""
	}
	if len(text) > MaxName {
		n.Wrong("must be at most %d bytes long", MaxName)
		return ""
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		n.Wrong("must not have control characters")
		return ""
	}
	return text
}

// metadata reads who the key belongs to, and returns its owner.
func (a *Auth) metadata(n strictyaml.Node, k *Key) (owner string) {
	m := n.Map()
	label, own, expires := m.Get("name"), m.Get("owner"), m.Get("expires_at")
	k.Name = name(label)
	owner = name(own)
	m.Get("description").Text()
	m.Get("created_at").Text()
	m.End()
	if strings.TrimSpace(k.Name) == "" {
		a.warn(label, "is missing: the key is shown by its id alone")
	}
	if strings.TrimSpace(owner) == "" {
		owner = ""
		a.warn(own, "is missing: the key is an org of its own")
	}
	if text, ok := expires.Text(); ok && text != "" {
		day, err := time.ParseInLocation(dateFormat, text, time.UTC)
		if err != nil {
			expires.Wrong("must be a day, DD-MM-YYYY")
			return owner
		}
		k.Expires = day.AddDate(0, 0, 1) // valid through the whole day
	}
	return owner
}

// readModels reads an allow-list. An empty one allows everything, as an absent one does.
func readModels(n strictyaml.Node) map[string]bool {
	list := n.List()
	if len(list) == 0 {
		return nil
	}
	models := make(map[string]bool, len(list))
	for _, item := range list {
		if id := name(item); id != "" {
			models[id] = true
		} else {
			item.Wrong("must be the id of a model")
		}
	}
	return models
}

// readShare reads a fraction in (0, 1], or 0 for none, in millionths. A smaller one than a millionth counts as a millionth.
func readShare(n strictyaml.Node) int64 {
	text, ok := n.Text()
	if !ok {
		return 0
	}
	share, err := ParseFraction(text)
	if err != nil {
		n.Wrong("must be 0 (unset) or greater than 0 and at most 1: 0.5 is half")
		return 0
	}
	return share
}

// errAbove is the rule of a fraction.
var errAbove = errors.New("must be at most 1")

// ParseFraction reads a number from 0 to 1 in millionths, rounded down, but above 0 for one above 0. The error says the rule.
func ParseFraction(text string) (int64, error) {
	whole, fraction, point := strings.Cut(text, ".")
	cut := fraction
	if len(cut) > 6 {
		cut = cut[:6]
	}
	if point {
		whole += "." + cut
	}
	share, err := strictyaml.ParseDecimal(whole, 6)
	if err != nil {
		return 0, err
	}
	lost := strings.Trim(fraction[len(cut):], "0")
	if strings.Trim(lost, "0123456789") != "" {
		return 0, strictyaml.ErrDecimal
	}
	if lost != "" && (share == 0 || share == millionths) {
		share++ // not 0 although it rounds to it, and above 1 although it rounds to it
	}
	if share > millionths {
		return 0, errAbove
	}
	return share, nil
}

func (a *Auth) quota(n strictyaml.Node) (q Quota) {
	m := n.Map()
	flat := []string{"requests_per_minute", "tokens_per_day", "input_tokens_per_minute", "output_tokens_per_minute"}
	q.RequestsPerMinute = m.Get(flat[0]).Int(0, 0, MaxQuota)
	q.TokensPerDay = m.Get(flat[1]).Int(0, 0, MaxQuota)
	q.InputTokensPerMinute = m.Get(flat[2]).Int(0, 0, MaxQuota)
	q.OutputTokensPerMinute = m.Get(flat[3]).Int(0, 0, MaxQuota)
	each := m.Get("per_model")
	m.End()
	if !m.Has("per_model") {
		return q
	}
	models := each.Map()
	if len(models.Names()) == 0 {
		each.Wrong("must have at least one model")
	}
	for _, field := range flat {
		if m.Has(field) {
			m.Get(field).Wrong("must not stand beside per_model: a quota is flat or by model")
		}
	}
	q.PerModel = map[string]ModelQuota{}
	for _, id := range models.Names() {
		entry := models.Entry(id)
		if strings.TrimSpace(id) == "" {
			entry.Wrong("must be under the id of a model")
		}
		e := entry.Map()
		rpm, daily := e.Get("requests_per_minute_per_replica"), e.Get("tokens_per_day")
		for _, field := range []strictyaml.Node{rpm, daily} {
			if field.Absent() {
				field.Wrong("must be given: 0 for no limit")
			}
		}
		q.PerModel[id] = ModelQuota{RequestsPerMinutePerReplica: rpm.Int(0, 0, MaxQuota), TokensPerDay: daily.Int(0, 0, MaxQuota)}
		e.End()
	}
	return q
}

// None is the auth of a gateway without auth.yaml: everybody is let in, as org "default".
func None() *Auth { return &Auth{Mode: ModeNone} }

// anonymous is who everybody is without authentication.
func anonymous() *Key { return &Key{ID: AnonymousKey, Org: DefaultOrg, Name: AnonymousKey} }

// ownerName is the owner as configured, where the org's id had to be made from it.
func ownerName(owner string, org events.Org) string {
	if owner == string(org) {
		return ""
	}
	return owner
}
