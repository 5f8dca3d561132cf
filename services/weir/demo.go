package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/template"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/provider"
)

// demoCommand runs everything in one process, with a model that answers in both wire formats.
type demoCommand struct {
	Listen  string `default:"127.0.0.1:8080" help:"Host and port to serve."`
	DataDir string `help:"Where to keep the log; a temporary directory, removed at the end, if not given."`
	Debug   bool   `help:"Log more."`

	Script string `default:"tokens=24;gap=15ms" hidden:"" help:"What the model does."`
	Free   bool   `hidden:"" help:"Limits far above any load, for measuring."`
}

// demo is what the files and the printed requests are made of.
type demo struct {
	Addr, Upstream, Dir      string
	Weir                     string // the binary
	Key, Hash, Preview       string
	Tight, TightHash, TightP string
	Admin, AdminHash         string
	Email, Password          string // of the console
	Free                     bool
	Again                    bool // a demo ran over the same directory before
}

const demoConfig = `# Made by weir demo. weir serve --config FILE runs the same.
listen: {{.Addr}}
data_dir: {{.Dir}}
auth: {{.Dir}}/auth.yaml
policies: {{.Dir}}/policies
admin_keys: ["{{.AdminHash}}"]
orgs:
{{- if .Free}}
  demo: {limits: {rpm: 1000000, tpm: 1000000000, concurrency: 10000}}
{{- else}}
  demo: {limits: {rpm: 600, tpm: 2000000, concurrency: 32}}
{{- end}}
  tight: {limits: {rpm: 2}}
models:
  - id: weir-demo
    context_window: 131072
    max_output_tokens: 16384
    price: {input: "0.15", cached_input: "0.075", output: "0.60"}
    local: {engine: vllm, replicas: ["{{.Upstream}}"]}
`

const demoAuth = `api:
  mode: dynamic
  keys:
    - key_hash: "{{.Hash}}"
      key_preview: "{{.Preview}}"
      metadata: {name: "demo key", owner: demo}
{{- if .Free}}
      limits: {rpm: 1000000, tpm: 1000000000, concurrency: 10000}
{{- end}}
    - key_hash: "{{.TightHash}}"
      key_preview: "{{.TightP}}"
      metadata: {name: "key of an org with 2 requests a minute", owner: tight}
`

const demoPolicy = `models: [weir-demo]
max_input_tokens: 100000
admit_budget_tokens: {{if .Free}}1000000000{{else}}200000{{end}}
max_inflight: {{if .Free}}10000{{else}}16{{end}}
routing_policy: {strategy: least-loaded}
`

const demoText = `
Weir is running at http://{{.Addr}}
The model is at {{.Upstream}}
{{- if .Again}}
What demos before this one recorded in {{.Dir}} is still there; their keys and password are not valid any more, and these are:
{{- end}}
WEIR_API_KEY={{.Key}}
WEIR_TIGHT_KEY={{.Tight}}
WEIR_ADMIN_KEY={{.Admin}}

The console is at http://{{.Addr}}/console
  email {{.Email}}, password {{.Password}}

Paste one of these into another terminal.

# curl, OpenAI
curl -s http://{{.Addr}}/v1/chat/completions -H "Authorization: Bearer {{.Key}}" -H "Content-Type: application/json" \
  -d '{"model":"weir-demo","messages":[{"role":"user","content":"Hello"}],"max_tokens":32}'

# curl, Anthropic, streaming
curl -sN http://{{.Addr}}/v1/messages -H "x-api-key: {{.Key}}" -H "anthropic-version: 2023-06-01" -H "Content-Type: application/json" \
  -d '{"model":"weir-demo","max_tokens":32,"stream":true,"messages":[{"role":"user","content":"Hello"}]}'

# Python: pip install openai
python3 - <<'PY'
from openai import OpenAI
client = OpenAI(base_url="http://{{.Addr}}/v1", api_key="{{.Key}}")
print(client.chat.completions.create(model="weir-demo", messages=[{"role": "user", "content": "Hello"}]).choices[0].message.content)
PY

# Node: npm install openai
node --input-type=module -e '
import OpenAI from "openai";
const client = new OpenAI({ baseURL: "http://{{.Addr}}/v1", apiKey: "{{.Key}}" });
console.log((await client.chat.completions.create({ model: "weir-demo", messages: [{ role: "user", content: "Hello" }] })).choices[0].message.content);'

# A refusal, and why: this org may make 2 requests a minute
for i in 1 2 3; do curl -s -o /tmp/weir-answer -D /tmp/weir-headers -w "%{http_code}\n" http://{{.Addr}}/v1/chat/completions \
  -H "Authorization: Bearer {{.Tight}}" -H "Content-Type: application/json" \
  -d '{"model":"weir-demo","messages":[{"role":"user","content":"Hello"}]}'; done; cat /tmp/weir-answer; echo
sleep 1; curl -s -H "Authorization: Bearer {{.Tight}}" \
  "http://{{.Addr}}/v1/generation?id=$(grep -i '^x-request-id' /tmp/weir-headers | tr -d '\r' | cut -d' ' -f2)"; echo

# The same refusal retold from the log, twice the load on what was recorded, and whether log, audit and billing agree
export WEIR_CONFIG={{.Dir}}/weir.yaml WEIR_ADMIN_KEY={{.Admin}}
{{.Weir}} explain $(grep -i '^x-request-id' /tmp/weir-headers | tr -d '\r' | cut -d' ' -f2)
{{.Weir}} simulate --scale 2x
{{.Weir}} verify

# What is left of every limit
curl -s -H "Authorization: Bearer {{.Key}}" "http://{{.Addr}}/v1/limits?model=weir-demo"; echo

Stop with Ctrl-C.
`

// Run serves the demo until the process is told to stop.
func (c *demoCommand) Run(out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	level := slog.LevelWarn
	if c.Debug {
		level = slog.LevelDebug
	}
	return c.run(ctx, out, newLogger(level))
}

func (c *demoCommand) run(ctx context.Context, out io.Writer, logger *slog.Logger) error {
	dir := c.DataDir
	if dir == "" {
		temporary, err := os.MkdirTemp("", "weir-demo-")
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		defer os.RemoveAll(temporary)
		dir = temporary
	}
	model, err := provider.New(provider.Config{Script: c.Script})
	if err != nil {
		return err
	}
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer upstream.Close()
	d, err := c.files(dir, "http://"+upstream.Addr().String())
	if err != nil {
		return err
	}
	cfg, _, err := config.Load(filepath.Join(dir, "weir.yaml"), func(string) string { return "" })
	if err != nil {
		return err
	}
	n := &node{config: cfg, roles: allRoles, logger: logger, forward: []string{provider.ScriptHeader}}
	defer n.close()
	if err := n.start(ctx); err != nil {
		return err
	}
	d.Addr = n.gateway.Addr().String()
	if err := d.write("weir.yaml", demoConfig); err != nil { // with the port that was free
		return err
	}
	var group errgroup.Group
	serving, stop := context.WithCancel(ctx)
	answering, end := context.WithCancel(context.WithoutCancel(ctx)) // the model outlives the requests that the gateway drains
	group.Go(func() error {
		defer stop()
		return model.Run(answering, upstream)
	})
	group.Go(func() error {
		defer end()
		return n.run(serving)
	})
	group.Go(func() error {
		if err := n.waitReady(serving); err != nil {
			return nil //nolint:nilerr // the other two say why
		}
		user := userCommand{Email: d.Email, Password: d.Password, Org: "demo", Role: "owner", URL: "http://" + d.Addr, AdminKey: d.Admin}
		if err := user.await(serving); err != nil {
			logger.Warn("the console has no user", "error", err)
		}
		return template.Must(template.New("").Parse(demoText)).Execute(out, d)
	})
	return group.Wait()
}

// files writes the demo's configuration.
func (c *demoCommand) files(dir, upstream string) (*demo, error) {
	d := &demo{Addr: c.Listen, Upstream: upstream, Dir: dir, Free: c.Free, Email: "owner@demo.example"}
	var password, unused string
	for _, k := range []struct{ key, hash, preview *string }{{&d.Key, &d.Hash, &d.Preview}, {&d.Tight, &d.TightHash, &d.TightP},
		{&d.Admin, &d.AdminHash, &unused}, {&password, &unused, &unused}} {
		key, err := newKey()
		if err != nil {
			return nil, err
		}
		hash := authority.HashKey(key)
		*k.key, *k.hash, *k.preview = key, hex.EncodeToString(hash[:]), preview(key)
	}
	d.Password = passwordOf(password)
	if _, err := os.Stat(filepath.Join(dir, "auth.yaml")); err == nil {
		d.Again = true
	}
	if err := os.MkdirAll(filepath.Join(dir, "policies"), 0o700); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	if weir, err := os.Executable(); err == nil {
		d.Weir = weir
	} else {
		d.Weir = "weir"
	}
	for name, text := range map[string]string{"weir.yaml": demoConfig, "auth.yaml": demoAuth, "policies/weir-demo.yaml": demoPolicy} {
		if err := d.write(name, text); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// write writes a file of the demo's configuration.
func (d *demo) write(name, text string) error {
	file, err := os.OpenFile(filepath.Join(d.Dir, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := errors.Join(template.Must(template.New("").Parse(text)).Execute(file, d), file.Close()); err != nil {
		return fmt.Errorf("demo: write %s: %w", name, err)
	}
	return nil
}
