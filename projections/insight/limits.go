package insight

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/weirhq/weir/events"
)

// Bounds of limits.
const (
	maxRules  = 10_000
	maxCached = 1 << 18 // meters of which it is remembered which rule holds
)

// Limits are other limits for some meters, by name or pattern.
type Limits struct {
	exact    map[events.Meter]int // place in rules
	patterns []int                // places in rules, the most particular first
	rules    []LimitRule
	cache    map[events.Meter]int32 // place in rules, −1 for none

	dimensions []string // that rules name, to pass over others quickly
	any        bool     // some rule's dimension is a pattern
}

// LimitRule is one meter or pattern with its limit.
type LimitRule struct {
	Pattern  string `json:"pattern"`
	Limit    *int64 `json:"limit"`    // nil: counts, never refuses
	Claims   int64  `json:"claims"`   // that it was used for
	Meters   int64  `json:"meters"`   // different ones
	Unusable int64  `json:"unusable"` // claims that cannot take it: a bucket or pace needs a positive limit, and a pause or balance has none
}

// NewLimits takes limits by meter ("org/acme/rpm") or pattern ("key/*/tpm": a star stands for any text without a slash); nil is no limit.
// Where several patterns match, the one with the most characters other than stars holds. The error names every faulty pattern.
func NewLimits(meters map[string]*int64) (*Limits, error) {
	if len(meters) > maxRules {
		return nil, fmt.Errorf("limits: %d meters, at most %d", len(meters), maxRules)
	}
	l := &Limits{exact: map[events.Meter]int{}, cache: map[events.Meter]int32{}}
	names := make([]string, 0, len(meters))
	for name := range meters {
		names = append(names, name)
	}
	sort.Strings(names)
	var faults []string
	for _, name := range names {
		if fault := ruleFault(name, meters[name]); fault != "" {
			faults = append(faults, fmt.Sprintf("limits: %q: %s", name, fault))
			continue
		}
		l.rules = append(l.rules, LimitRule{Pattern: name, Limit: meters[name]})
		if strings.ContainsAny(name, meta) {
			l.patterns = append(l.patterns, len(l.rules)-1)
		} else {
			l.exact[events.Meter(name)] = len(l.rules) - 1
		}
		dimension := name[strings.LastIndexByte(name, '/')+1:]
		l.any = l.any || strings.ContainsAny(dimension, meta)
		if !slices.Contains(l.dimensions, dimension) {
			l.dimensions = append(l.dimensions, dimension)
		}
	}
	sort.SliceStable(l.patterns, func(i, j int) bool {
		return particular(l.rules[l.patterns[i]].Pattern) > particular(l.rules[l.patterns[j]].Pattern)
	})
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(faults, "\n"))
	}
	return l, nil
}

// meta are the characters that make a name a pattern.
const meta = `*?[\`

func ruleFault(name string, limit *int64) string {
	scope, subject, dimension := events.Meter(name).Split()
	switch {
	case scope == "" || subject == "" || dimension == "" || strings.Count(name, "/") != 2:
		return "is not <scope>/<subject>/<dimension>, such as org/acme/rpm"
	case limit != nil && (*limit < 0 || *limit > events.MaxAmount):
		return fmt.Sprintf("%d is not from 0 to %d", *limit, int64(events.MaxAmount))
	}
	if _, err := path.Match(name, ""); err != nil {
		return "is no pattern: " + err.Error()
	}
	return ""
}

func particular(pattern string) int { return len(pattern) - strings.Count(pattern, "*") }

// rule gives the place of the rule for a meter, −1 if there is none.
func (l *Limits) rule(m events.Meter) int {
	if !l.any && !slices.Contains(l.dimensions, string(m[strings.LastIndexByte(string(m), '/')+1:])) {
		return -1
	}
	if i, known := l.cache[m]; known {
		return int(i)
	}
	found := -1
	if i, ok := l.exact[m]; ok {
		found = i
	} else {
		for _, i := range l.patterns {
			if ok, _ := path.Match(l.rules[i].Pattern, string(m)); ok {
				found = i
				break
			}
		}
	}
	if len(l.cache) >= maxCached {
		clear(l.cache)
	}
	l.cache[m] = int32(found)
	if found >= 0 {
		l.rules[found].Meters++
	}
	return found
}

// apply gives a reserve with the limits replaced, made in the memory of spare: itself if none is.
func (l *Limits) apply(d, spare *events.Reserve) *events.Reserve {
	out := d
	for i := range d.Claims {
		c := &d.Claims[i]
		place := l.rule(c.Meter)
		if place < 0 {
			continue
		}
		rule := &l.rules[place]
		rule.Claims++
		switch {
		case c.Kind == events.Balance, c.Kind == events.Pause,
			(c.Kind == events.Bucket || c.Kind == events.Pace) && (rule.Limit == nil || *rule.Limit == 0 || *rule.Limit > events.MaxBucketAmount):
			rule.Unusable++
			continue
		}
		if out == d {
			claims := append(spare.Claims[:0], d.Claims...)
			*spare = *d
			spare.Claims = claims
			out = spare
		}
		n := &out.Claims[i]
		n.Limit, n.HasLimit = 0, rule.Limit != nil
		if rule.Limit != nil {
			n.Limit = *rule.Limit
		}
	}
	return out
}
