package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestCommandLine: whatever is wrong with what the binary is given, it ends with a code that is not 0 and names file, line, field, value
// and rule, as far as there are such.
func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, path, text)
		return path
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	fresh := func(name string) string { return filepath.Join(dir, "data-"+name) }
	noDirectory := write("not-a-directory", "a file")
	log, err := os.ReadFile("../scenario/testdata/" + firstLog(t))
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"no command", nil, 2, []string{"expected one of"}},
		{"unknown command", []string{"frobnicate"}, 2, []string{"frobnicate"}},
		{"unknown flag", []string{"serve", "--frobnicate"}, 2, []string{"--frobnicate"}},
		{"unknown role", []string{"serve", "--roles", "gateway,janitor"}, 1, []string{"roles", `"janitor"`, "broker, projector, auditor, biller, gateway"}},
		{"no such file", []string{"check", "-c", filepath.Join(dir, "nothing.yaml")}, 1, []string{"nothing.yaml", "no such file"}},
		{"no YAML", []string{"check", "-c", write("broken.yaml", "listen: [\n")}, 1, []string{"broken.yaml:1"}},
		{"duplicate key", []string{"check", "-c", write("twice.yaml", "listen: 127.0.0.1:1\ndata_dir: x\nlisten: 127.0.0.1:2\n")}, 1, []string{"twice.yaml:3", "listen"}},
		{"duplicate key, deeper", []string{"check", "-c", write("deeper.yaml", "log:\n  sync: 1s\n  sync: 2s\n")}, 1, []string{"deeper.yaml:3", "log.sync"}},
		{"unknown field", []string{"check", "-c", write("unknown.yaml", "lissten: 127.0.0.1:1\n")}, 1, []string{"unknown.yaml:1", "lissten", "listen"}},
		{"wrong type", []string{"check", "-c", write("type.yaml", "max_request_bytes: many\n")}, 1, []string{"type.yaml:1", "max_request_bytes", "many"}},
		{"out of range", []string{"check", "-c", write("range.yaml", "orgs:\n  acme: {limits: {rpm: -1}}\n")}, 1, []string{"range.yaml:2", "orgs.acme.limits.rpm", "-1"}},
		{"several faults at once", []string{"check", "-c", write("several.yaml", "max_request_bytes: many\nlog: {replicas: 2}\n")}, 1, []string{"several.yaml:1", "several.yaml:2", "log.replicas"}},
		{"duplicate key in auth.yaml", []string{"check", "-c", write("auth/weir.yaml", "auth: "+write("auth/auth.yaml", "api:\n  mode: none\n  mode: api-key\n")+"\n")}, 1, []string{"auth.yaml:3", "api.mode"}},
		{"a hash that is none", []string{"check", "-c", write("hash/weir.yaml", "auth: "+write("hash/auth.yaml", "api:\n  mode: api-key\n  keys:\n    - key_hash: abc\n")+"\n")}, 1, []string{"auth.yaml:4", "api.keys[0].key_hash", "64 hexadecimal digits"}},
		{"negative limit in a policy", []string{"check", "-c", write("policy/weir.yaml", "policies: "+filepath.Dir(write("policy/policies/m.yaml", "models: [m]\nmax_inflight: -1\nrouting_policy: {strategy: least-loaded}\n"))+"\n")}, 1, []string{"m.yaml:2", "max_inflight", "-1"}},
		{"port in use", []string{"serve", "-c", write("port.yaml", "listen: "+port+"\ndata_dir: "+fresh("port")+"\n")}, 1, []string{port, "address already in use"}},
		{"port of the log in use", []string{"serve", "-c", write("logport.yaml", "listen: 127.0.0.1:0\ndata_dir: "+fresh("logport")+"\nlog: {listen: \""+port+"\"}\n")}, 1, []string{port, "address already in use"}},
		{"data directory is a file", []string{"serve", "-c", write("file.yaml", "listen: 127.0.0.1:0\ndata_dir: "+noDirectory+"\n")}, 1, []string{noDirectory, "not a directory"}},
		{"data directory cannot be made", []string{"serve", "-c", write("proc.yaml", "listen: 127.0.0.1:0\ndata_dir: /proc/weir\n")}, 1, []string{"/proc/weir", "cannot be made"}},
		{"no secret for a log elsewhere", []string{"serve", "--roles", "gateway", "-c", write("url.yaml", "log: {url: \"nats://127.0.0.1:1\"}\n")}, 1, []string{"log.credentials"}},
		{"a gateway without a log", []string{"serve", "--roles", "gateway", "-c", write("none.yaml", "listen: 127.0.0.1:0\n")}, 1, []string{"log.url", "broker"}},
		{"no such log to replay", []string{"replay", filepath.Join(dir, "nothing.jsonl")}, 1, []string{"nothing.jsonl", "no such file"}},
		{"truncated log", []string{"replay", write("cut.jsonl", string(log[:len(log)-len(lastLine(log))/2]))}, 1, []string{"cut.jsonl", "line " + lines(log), "cut off"}},
		{"a log of something else", []string{"replay", write("other.jsonl", "{\"hello\":1}\n")}, 1, []string{"other.jsonl", "line 1", "seq is missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, nil, c.args...)
			code := p.code(t)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, part := range c.says {
				if !strings.Contains(p.said(), part) {
					t.Errorf("it does not say %q", part)
				}
			}
			if strings.Contains(p.said(), "goroutine ") {
				t.Error("it panicked")
			}
		})
	}
}

// TestDataDirectoryInUse: a second process leaves the first one's log alone.
func TestDataDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.yaml"), filepath.Join(dir, "second.yaml")
	for _, path := range []string{first, second} {
		stack.WriteFile(t, path, "listen: 127.0.0.1:0\ndata_dir: "+filepath.Join(dir, "data")+"\n")
	}
	one := start(t, nil, "serve", "-c", first)
	url := one.address(t)
	two := start(t, nil, "serve", "-c", second)
	if code := two.code(t); code != 1 || !strings.Contains(two.said(), "in use") || !strings.Contains(two.said(), filepath.Join(dir, "data")) {
		t.Errorf("exit code %d", code)
	}
	stack.Healthy(t, url)
}

// TestUnreadableDataDirectory: the error names the directory. Root may read everything, so it is tried as somebody else.
func TestUnreadableDataDirectory(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(filepath.Join(data, "broker"), 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "weir.yaml")
	stack.WriteFile(t, config, "listen: 127.0.0.1:0\ndata_dir: "+data+"\n")
	var p *process
	if os.Geteuid() == 0 {
		for _, open := range []string{dir, filepath.Dir(dir)} { // the way there is free, and so is the file
			if err := os.Chmod(open, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(config, 0o644); err != nil {
			t.Fatal(err)
		}
		p = startAs(t, nobody, nil, "serve", "-c", config)
	} else {
		if err := os.Chmod(data, 0); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(data, 0o700)
		p = start(t, nil, "serve", "-c", config)
	}
	if code := p.code(t); code != 1 || !strings.Contains(p.said(), data) || !strings.Contains(p.said(), "permission denied") {
		t.Errorf("exit code %d", code)
	}
}

// firstLog is a recorded log.
func firstLog(t *testing.T) string {
	t.Helper()
	all, err := filepath.Glob("../scenario/testdata/*.jsonl")
	if err != nil || len(all) == 0 {
		t.Fatal("there are no recorded logs: ", err)
	}
	return filepath.Base(all[0])
}

func lastLine(log []byte) string {
	all := strings.Split(strings.TrimSpace(string(log)), "\n")
	return all[len(all)-1]
}

func lines(log []byte) string {
	return strconv.Itoa(len(strings.Split(strings.TrimSpace(string(log)), "\n")))
}
