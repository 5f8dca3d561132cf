package access

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Role is a set of things that a process does on the broker.
type Role string

// The roles.
const (
	Gateway   Role = "gateway"   // states requests' facts under its own name
	Projector Role = "projector" // folds the log, answers, writes the views
	Auditor   Role = "auditor"   // writes generations
	Biller    Role = "biller"    // writes usage
	Operator  Role = "operator"  // authority: fences, credits, rules, recovery, corrections, keys and limits
	Monitor   Role = "monitor"   // reads everything, writes nothing
	Consumer  Role = "consumer"  // reads billing lines by a durable consumer of its own, and nothing else
	System    Role = "system"    // everything; only for this process's own connections

	// The sides of the door; given to its connections alone.
	doorCore    Role = "door-core"
	doorGates   Role = "door-gates"
	doorReaders Role = "door-readers"
	doorBilling Role = "door-billing"
)

// MaxConfigured bounds a configured name, in bytes: with its suffix it is one token of a subject (64 bytes).
const MaxConfigured = 55

const suffixLength = 8

var (
	configuredRe = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,54}$`)
	fullRe       = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]{0,54})-[a-z0-9]{8}$`)
)

// Identity is who a connection is: a full name and what it does.
type Identity struct {
	Name  string // "<configured>-<8 of [a-z0-9]>"
	Roles []Role // at least one; Monitor and Consumer stand alone
}

// NewName makes the full name of a new process from its configured one. The error names the name and the rule it breaks.
func NewName(configured string) (string, error) {
	if err := validConfigured(configured); err != nil {
		return "", err
	}
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	const fair = 256 - 256%len(letters) // bytes from here on would favour the first letters
	suffix := make([]byte, 0, suffixLength)
	var b [16]byte
	for len(suffix) < suffixLength {
		if _, err := rand.Read(b[:]); err != nil {
			return "", fmt.Errorf("making a name for %q: %w", configured, err)
		}
		for _, c := range b {
			if int(c) < fair && len(suffix) < suffixLength {
				suffix = append(suffix, letters[int(c)%len(letters)])
			}
		}
	}
	return configured + "-" + string(suffix), nil
}

// Configured gives the configured part of a full name, and whether full is one.
func Configured(full string) (string, bool) {
	m := fullRe.FindStringSubmatch(full)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// Is says whether the identity has a role.
func (i Identity) Is(role Role) bool { return slices.Contains(i.Roles, role) }

// Inbox is the prefix of the identity's inboxes. Only it may subscribe to what begins so.
func (i Identity) Inbox() string { return inboxPrefix + i.Name }

const inboxPrefix = "_INBOX."

// Validate says what is wrong with the name or the roles.
func (i Identity) Validate() error {
	if _, ok := Configured(i.Name); !ok {
		return fmt.Errorf("name %q: is not <configured>-<8 of [a-z0-9]>", i.Name)
	}
	return validRoles(i.Roles)
}

func validConfigured(name string) error {
	if !configuredRe.MatchString(name) {
		return fmt.Errorf("name %q: does not match [A-Za-z0-9][A-Za-z0-9_-]{0,%d}", name, MaxConfigured-1)
	}
	return nil
}

func validRoles(roles []Role) error {
	if len(roles) == 0 {
		return fmt.Errorf("roles: at least one is required")
	}
	for _, r := range roles {
		if _, ok := rules[r]; !ok {
			return fmt.Errorf("role %q: is not one of gateway, projector, auditor, biller, operator, monitor, consumer", r)
		}
	}
	// A monitor may read the log. Together with a gateway's place in GATES, that would let it hand log content to others.
	if len(roles) > 1 && slices.Contains(roles, Monitor) {
		return fmt.Errorf("role %q: stands alone, every other role that may read the log does already", Monitor)
	}
	if len(roles) > 1 && slices.Contains(roles, Consumer) { // it is for those outside
		return fmt.Errorf("role %q: stands alone, every other role that may read billing lines does already", Consumer)
	}
	return nil
}

// account says where an identity with these roles lives when it is not this very process.
func account(roles []Role) string {
	edge := func(r Role) bool { return len(roles) == 1 && roles[0] == r }
	switch {
	case edge(Gateway), edge(doorGates):
		return AccountGates
	case edge(Monitor), edge(doorReaders):
		return AccountReaders
	case edge(Consumer), edge(doorBilling):
		return AccountBilling
	}
	return AccountCore
}

func joinRoles(roles []Role) string {
	words := make([]string, len(roles))
	for k, r := range roles {
		words[k] = string(r)
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), "+")
}

func splitRoles(text string) []Role {
	var roles []Role
	for _, w := range strings.Split(text, "+") {
		roles = append(roles, Role(w))
	}
	return roles
}
