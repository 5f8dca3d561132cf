package access

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"
)

const (
	secretPrefix = "weir-log-" // so that a leaked secret is recognised for what it is
	secretBytes  = 32
	maxFile      = 1 << 20 // bytes; a credentials file is small
	maxHashes    = 4       // secrets of one identity at a time: rotation needs two
)

// Credentials are the identities that may join the broker. They hold hashes only; YAML or JSON.
type Credentials struct {
	Identities []Credential `yaml:"identities" json:"identities"`
}

// Credential is one identity: whoever presents a full name of Name and a secret with one of the hashes has its roles.
type Credential struct {
	Name   string   `yaml:"name" json:"name"`
	Roles  []Role   `yaml:"roles" json:"roles"`
	SHA256 []string `yaml:"sha256" json:"sha256"` // of the secret's text, in hex; two while a secret is being changed
}

// Secret is what a process that joins the broker holds: its configured name and the secret itself. YAML or JSON, mode 0600.
type Secret struct {
	Name   string `yaml:"name" json:"name"`
	Secret string `yaml:"secret" json:"secret"`
}

// NewCredentials makes the entry of an identity for the broker's credentials file, and the secret for the process.
func NewCredentials(name string, roles ...Role) (Credential, Secret, error) {
	var b [secretBytes]byte
	if _, err := rand.Read(b[:]); err != nil {
		return Credential{}, Secret{}, fmt.Errorf("making a secret for %q: %w", name, err)
	}
	secret := Secret{Name: name, Secret: secretPrefix + base64.RawURLEncoding.EncodeToString(b[:])}
	c := Credential{Name: name, Roles: roles, SHA256: []string{hashOf(secret.Secret)}}
	if err := c.validate(); err != nil {
		return Credential{}, Secret{}, err
	}
	return c, secret, nil
}

// ReadCredentials reads and validates a broker's credentials file. An error names the file and every fault in it.
func ReadCredentials(path string) (Credentials, error) {
	var c Credentials
	if err := readFile(path, &c); err != nil {
		return Credentials{}, fmt.Errorf("reading credentials: %w", err)
	}
	if err := c.Validate(); err != nil {
		return Credentials{}, fmt.Errorf("reading credentials %s: %w", path, err)
	}
	return c, nil
}

// ReadSecret reads a process's secret. A file that others than its owner may read is refused.
func ReadSecret(path string) (Secret, error) {
	var s Secret
	if err := readPrivate(path, &s); err != nil {
		return Secret{}, fmt.Errorf("reading the log's secret: %w", err)
	}
	if err := validConfigured(s.Name); err != nil {
		return Secret{}, fmt.Errorf("reading the log's secret %s: %w", path, err)
	}
	if s.Secret == "" {
		return Secret{}, fmt.Errorf("reading the log's secret %s: secret: is empty", path)
	}
	return s, nil
}

// WriteSecret writes a process's secret for its owner alone. An existing file is refused.
func WriteSecret(path string, s Secret) error {
	if err := writePrivate(path, s); err != nil {
		return fmt.Errorf("writing the log's secret: %w", err)
	}
	return nil
}

// writePrivate makes a file that its owner alone may read.
func writePrivate(path string, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// Options are what a connection needs to be id: name, secret and inboxes of its own. They serve an embedded broker and a cluster.
func (s Secret) Options(id Identity) []nats.Option { return options(id.Name, s.Secret, id.Inbox()) }

// Options are what a connection under a full name needs: the name, the secret and inboxes of its own.
func options(name, password, inbox string) []nats.Option {
	return []nats.Option{nats.Name(name), nats.UserInfo(name, password), nats.CustomInboxPrefix(inbox)}
}

// Validate returns every fault at once.
func (c Credentials) Validate() error {
	var faults []error
	seen := map[string]bool{}
	for k, id := range c.Identities {
		if err := id.validate(); err != nil {
			faults = append(faults, fmt.Errorf("identities[%d]: %w", k, err))
		}
		if seen[id.Name] {
			faults = append(faults, fmt.Errorf("identities[%d]: name %q: is there twice", k, id.Name))
		}
		seen[id.Name] = true
	}
	return errors.Join(faults...)
}

func (c Credential) validate() error {
	if err := validConfigured(c.Name); err != nil {
		return err
	}
	for _, r := range c.Roles {
		if !slices.Contains([]Role{Gateway, Projector, Auditor, Biller, Operator, Monitor, Consumer}, r) {
			return fmt.Errorf("%s: role %q: is not one of gateway, projector, auditor, biller, operator, monitor, consumer", c.Name, r)
		}
	}
	if err := validRoles(c.Roles); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	if len(c.SHA256) == 0 || len(c.SHA256) > maxHashes {
		return fmt.Errorf("%s: sha256: has %d hashes, must have 1 to %d", c.Name, len(c.SHA256), maxHashes)
	}
	for _, h := range c.SHA256 {
		if b, err := hex.DecodeString(h); err != nil || len(b) != sha256.Size {
			return fmt.Errorf("%s: sha256: %q is not %d hex digits", c.Name, h, 2*sha256.Size)
		}
	}
	return nil
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// readPrivate reads a file of secrets, which its owner alone may read.
func readPrivate(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	others := fs.FileMode(0o077)
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		others = 0o037 // another user gives it, through a group, as Kubernetes does
	}
	if mode := info.Mode().Perm(); mode&others != 0 {
		return fmt.Errorf("%s: mode %04o lets others read it, must be 0600", path, mode)
	}
	return readFile(path, into)
}

func readFile(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxFile {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is %d bytes, at most %d are read", info.Size(), maxFile)}
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(f); err != nil {
		return err
	}
	if err := yaml.NewDecoder(&text, yaml.Strict()).Decode(into); err != nil {
		return &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return nil
}
