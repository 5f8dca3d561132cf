// Package config reads weir.yaml and the environment. Every field has a default, every field can be given by a variable
// (log.url by WEIR_LOG_URL), and everything that is wrong is said at once, with file, line, field, value and rule.
package config

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
	"github.com/weirhq/weir/gateway/policy"
)

// Warning is something that is allowed and probably not meant.
type Warning = authority.Warning

// Config is what weir.yaml and the environment say. Paths in the file are relative to the file's directory, those in variables to
// the working directory.
type Config struct {
	// File is where it was read. Empty: there was none.
	File string

	// Name begins the name of every gateway process, before 8 random characters. Defaults to "weir".
	Name string

	// Listen is the host and port of the HTTP server. Defaults to 127.0.0.1:8080.
	Listen string

	// TrustedProxies are the networks of proxies whose X-Forwarded-For says where people sign in from. Defaults to none.
	TrustedProxies []netip.Prefix

	// DataDir is where the embedded log, spools and the ledger's mark are kept. Defaults to weir-data.
	DataDir string

	// Audit is how audit records are kept.
	Audit Audit

	// Operators is where operators look.
	Operators Operators

	// Tracing says where traces go.
	Tracing Tracing

	// Log is where the log is.
	Log Log

	// MaxRequestBytes bounds a request's body; 413 beyond. Defaults to 32 MiB.
	MaxRequestBytes int64

	// Upstream bounds the waits for a model.
	Upstream Upstream

	// Database is the URL of the Postgres that keeps authority and audit. Defaults to none: they are kept in KV buckets.
	Database string

	// Dynamic is how authority that is made through the API is kept.
	Dynamic Dynamic

	// Seal is what provider credentials made through the API are sealed with.
	Seal Seal

	// Auth is the file auth.yaml. Defaults to auth.yaml, which then need not be there.
	Auth string

	// AuthOptional says that Auth is the default, so that its absence means mode none.
	AuthOptional bool

	// Policies is the directory of policy files. Defaults to policies, which need not be there.
	Policies string

	// AdminKeys are the SHA-256 of the keys of the management API. Defaults to none.
	AdminKeys [][32]byte

	// Admission is what holds for the admission of all models.
	Admission policy.Settings

	// Platform are the limits of all requests together. Defaults to none.
	Platform authority.Limits

	// Defaults are the limits of orgs made through the API. Default to 300 RPM, 1,000,000 TPM and 8 at once; a key has no RPM.
	Defaults authority.Defaults

	// BYOKFee is what a request at a provider account of the org's own costs, in millionths of the model's price. Defaults to 0: nothing.
	BYOKFee int64

	// FreeEstimates says that an attempt whose exact usage never came, such as a stream that was cut, costs nothing (bill_estimates: false).
	// Defaults to false: it is billed by the best estimate.
	FreeEstimates bool

	// Orgs, Models, Connections and Pools are declared in the file. Default to none.
	Orgs        []authority.DeclaredOrg
	Models      []*authority.Model
	Connections []*authority.Connection
	Pools       []authority.DeclaredPool

	// Exports are the systems that billing lines are handed to. Defaults to none.
	Exports []Export

	variables map[string]bool // of the environment, by name: those that were asked for
}

// Log says where the log is and how it is kept.
type Log struct {
	// URL is a NATS server's, or several separated by commas. Defaults to none: the log is embedded in the process.
	URL string

	// Listen is the host and port on which others may join the embedded log. Defaults to none: no port is opened.
	Listen string

	// Credentials is a file: of the account to use at URL, or of those who may join the embedded log. Defaults to none.
	Credentials string

	// Replicas is how many servers of a cluster keep the log: 1, 3 or 5. Defaults to 1.
	Replicas int

	// Sync is how often what was acknowledged is forced to the disk. Defaults to 1 s.
	Sync time.Duration

	// SyncAlways forces each message to the disk before it is acknowledged (sync: always). Defaults to false.
	SyncAlways bool

	// MaxAge is how long events are kept. Defaults to 30 days.
	MaxAge time.Duration

	// Compress has the broker compress the log on its disk (compression: s2), which costs latency at load. Defaults to false (none).
	Compress bool
}

// Upstream bounds the waits for a model.
type Upstream struct {
	// Connect bounds the opening of a connection. Defaults to 5 s.
	Connect time.Duration

	// FirstByte bounds the wait for the first byte of an answer. Defaults to 60 s.
	FirstByte time.Duration

	// Idle bounds the silence in the middle of an answer. Defaults to 120 s.
	Idle time.Duration
}

// DefaultFile is read when no file is named, if it is there.
const DefaultFile = "weir.yaml"

// Bounds of fields.
const (
	minRequestBytes = 1 << 10
	maxRequestBytes = 1 << 30
	minSync         = time.Millisecond
	maxSync         = time.Hour
	minAge          = time.Hour // well above every window, hold and retry
	maxAge          = 10 * 365 * 24 * time.Hour
	minWait         = time.Millisecond
	maxWait         = time.Hour
)

// Default is the configuration without a file and without variables.
func Default() *Config {
	org := authority.Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8}
	return &Config{
		Name: "weir", Listen: "127.0.0.1:8080", DataDir: "weir-data",
		Log:             Log{Replicas: 1, Sync: time.Second, MaxAge: 720 * time.Hour},
		MaxRequestBytes: 32 << 20,
		Tracing:         defaultTracing,
		Upstream:        Upstream{Connect: 5 * time.Second, FirstByte: 60 * time.Second, Idle: 120 * time.Second},
		Dynamic:         Dynamic{SnapshotMaxAge: defaultSnapshotAge},
		Seal:            Seal{KeysEnv: defaultSealEnv},
		Auth:            "auth.yaml", AuthOptional: true, Policies: "policies",
		Admission: policy.Settings{FractionPPM: policy.DefaultFractionPPM, ParkMS: policy.DefaultParkMS},
		Defaults:  authority.Defaults{Org: org, Workspace: org, Principal: org, Key: authority.Limits{TPM: org.TPM, Concurrency: org.Concurrency}},
	}
}

// Load reads a file and the environment. An empty path means weir.yaml in the working directory, if it is there. The error is
// authority.Faults: everything that is wrong. env gives a variable's value, "" for one that is not set; it is kept, because
// credentials of connections are read at each call.
func Load(path string, env func(string) string) (*Config, []Warning, error) {
	file, data := path, []byte(nil)
	if file == "" {
		file = DefaultFile
	}
	data, err := read(file)
	switch {
	case err == nil:
	case path == "" && errors.Is(err, os.ErrNotExist):
		file = ""
	default:
		return nil, nil, authority.Faults{{Pos: authority.Pos{File: file}, Rule: "cannot be read: " + reason(err)}}
	}
	return Parse(file, data, env)
}

// read reads a file of bounded size.
func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, strictyaml.MaxFile+1))
}

func reason(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// Parse reads a file's text and the environment. file is for messages and for relative paths; empty: there is no file.
func Parse(file string, data []byte, env func(string) string) (*Config, []Warning, error) {
	return parse(file, data, env, nil)
}

// parse also tells of each field that it asks for, if asked is not nil.
func parse(file string, data []byte, env func(string) string, asked func(path string)) (*Config, []Warning, error) {
	l := loader{c: Default(), env: env}
	l.c.variables = map[string]bool{defaultSealEnv: true}
	reading := true
	l.env = func(name string) string {
		if reading { // later calls come from several goroutines
			l.c.variables[name] = true
		}
		return env(name)
	}
	defer func() { reading = false }()
	l.c.File = file
	l.r = &strictyaml.Reader{File: file, Override: l.variable, Asked: asked}
	l.top(l.r.Read(data).Map())
	l.router()
	if len(l.r.Faults) == 0 {
		l.r.Faults.Take(l.c.Validate())
	}
	l.warnings = append(l.warnings, l.r.Warnings...)
	if err := l.r.Faults.Err(); err != nil {
		return nil, l.warnings, err
	}
	return l.c, l.warnings, nil
}

// prefix begins the names of our variables.
const prefix = "WEIR_"

// Variable is the environment variable of a field.
func Variable(field string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(field, ".", "_"))
}

// variable gives a field's text from the environment. Admin keys are read apart.
func (l *loader) variable(field string) string {
	if field == "admin_keys" {
		return ""
	}
	return l.env(Variable(field))
}

// Validate returns every fault at once, as authority.Faults: also of what was set by a program.
func (c *Config) Validate() error {
	var fs authority.Faults
	wrong := func(field, value, rule string) {
		fs.Add(authority.Fault{Pos: authority.Pos{File: c.File}, Field: field, Value: value, Rule: rule})
	}
	between := func(field string, v, least, most time.Duration) {
		if v < least || v > most {
			wrong(field, v.String(), fmt.Sprintf("must be from %s to %s", least, most))
		}
	}
	if rule := address(c.Listen); rule != "" {
		wrong("listen", c.Listen, rule)
	}
	if c.Operators.Listen != "" {
		if rule := address(c.Operators.Listen); rule != "" {
			wrong("operators.listen", c.Operators.Listen, rule)
		}
	}
	if c.DataDir == "" {
		wrong("data_dir", "", "must be a directory")
	}
	if !events.Gateway(c.Name + "-00000000").Valid() {
		wrong("name", c.Name, "must match [A-Za-z0-9][A-Za-z0-9_-]{0,54}: it begins the gateway's name")
	}
	if c.Log.Listen != "" {
		if rule := address(c.Log.Listen); rule != "" {
			wrong("log.listen", c.Log.Listen, rule)
		}
		if c.Log.URL != "" {
			wrong("log.listen", c.Log.Listen, "must not stand beside log.url: it is for the embedded log")
		}
	}
	if c.Log.Replicas != 1 && c.Log.Replicas != 3 && c.Log.Replicas != 5 {
		wrong("log.replicas", strconv.Itoa(c.Log.Replicas), "must be 1, 3 or 5")
	} else if c.Log.Replicas > 1 && c.Log.URL == "" {
		wrong("log.replicas", strconv.Itoa(c.Log.Replicas), "must be 1 for the embedded log: more take a cluster at log.url")
	}
	if !c.Log.SyncAlways {
		between("log.sync", c.Log.Sync, minSync, maxSync)
	}
	between("log.max_age", c.Log.MaxAge, minAge, maxAge)
	between("authority.snapshot_max_age", c.Dynamic.SnapshotMaxAge, minSnapshotAge, maxSnapshotAge)
	between("upstream.connect", c.Upstream.Connect, minWait, maxWait)
	between("upstream.first_byte", c.Upstream.FirstByte, minWait, maxWait)
	between("upstream.idle", c.Upstream.Idle, minWait, maxWait)
	if c.MaxRequestBytes < minRequestBytes || c.MaxRequestBytes > maxRequestBytes {
		wrong("max_request_bytes", strconv.FormatInt(c.MaxRequestBytes, 10), fmt.Sprintf("must be from %d to %d", minRequestBytes, maxRequestBytes))
	}
	if f := c.Admission.FractionPPM; f <= 0 || f > 1_000_000 {
		wrong("admit fraction", strictyaml.FormatDecimal(max(f, 0), 6), "must be greater than 0 and at most 1")
	}
	if p := c.Admission.ParkMS; p < 0 || p > events.MaxParkMS {
		wrong("admit park timeout", strconv.FormatInt(p, 10)+"ms", "must be from 0 to 5s")
	}
	return fs.Err()
}

// address says which rule a host and port break.
func address(s string) string {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return "must be host:port"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return "must have a port from 0 to 65535"
	}
	return ""
}

// Authority is what the file declares of authority.
func (c *Config) Authority() *authority.Declared {
	return &authority.Declared{File: c.File, Platform: c.Platform, Defaults: c.Defaults, Orgs: c.Orgs, Models: c.Models,
		Connections: c.Connections, Pools: c.Pools, AdminKeys: len(c.AdminKeys), Reachable: !loopback(c.Listen), BYOKFee: c.BYOKFee}
}

// Source is where the static authority comes from: the declared part and the files.
func (c *Config) Source() authority.Source {
	return authority.Source{Declared: c.Authority(), AuthFile: c.Auth, Optional: c.AuthOptional, Policies: c.Policies}
}

// Mode is how clients authenticate, as the file auth.yaml says now.
func (c *Config) Mode() (authority.Mode, error) {
	if _, err := os.Stat(c.Auth); c.Auth == "" || c.AuthOptional && errors.Is(err, os.ErrNotExist) {
		return authority.ModeNone, nil
	}
	auth, err := authority.LoadAuth(c.Auth)
	if err != nil {
		return "", err
	}
	return auth.Mode, nil
}

// loopback says whether an address is of this machine alone.
func loopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// relative makes a path of the file relative to the file's directory.
func (c *Config) relative(path string) string {
	if path == "" || filepath.IsAbs(path) || c.File == "" {
		return path
	}
	return filepath.Join(filepath.Dir(c.File), path)
}
