package chaos

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/ledger"
	"github.com/weirhq/weir/test/freeport"
)

// natsServer builds the NATS server, as its own project makes it, once.
var natsServer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(binary), "nats-server")
	text, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the NATS server: %w\n%s", err, text)
	}
	return path, nil
})

// cluster is the block of weir.conf that a single server does without.
var cluster = regexp.MustCompile(`(?ms)^cluster \{.*?^\}\n`)

// servers makes the processes of NATS servers by the configuration in ops/nats, and one that answers for them who may join.
func (w *world) servers() {
	w.tb.Helper()
	program, err := natsServer()
	w.must(err)
	seeds := filepath.Join(w.dir, "nats.keys")
	text, err := exec.Command(binary, "credentials", "keys", "--out", seeds).Output()
	w.must(err)
	env := []string{"WEIR_NATS_PASSWORD=p4ssword"}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "WEIR_NATS_") {
			env = append(env, strings.TrimSpace(line))
		}
	}
	clients := w.doors
	var routes []string
	for i := range w.setup.servers {
		if i > 0 {
			clients = append(clients, freeport.Address(w.tb))
		}
		routes = append(routes, freeport.Address(w.tb))
		peer := url.URL{Scheme: "nats", User: url.UserPassword("weir", "p4ssword"), Host: routes[i]}
		env = append(env, fmt.Sprintf("WEIR_NATS_PEER_%d=%s", i+1, peer.String()))
	}
	for i := range w.setup.servers {
		p := w.process("-c", w.serverConfig(i, clients[i], routes[i]))
		p.binary, p.env = program, append([]string{fmt.Sprintf("WEIR_NATS_NAME=nats-%d", i+1)}, env...)
		if i == 0 {
			w.core = p
		} else {
			w.peers = append(w.peers, p)
		}
	}
	w.doors = clients
	w.callout = w.process("callout", "--url", w.everywhere(), "--keys", seeds, "--credentials", filepath.Join(w.dir, "credentials"))
}

// everywhere are the addresses of the servers that hold the log.
func (w *world) everywhere() string { return "nats://" + strings.Join(w.doors, ",nats://") }

// store is where a server keeps its streams.
func (w *world) store(i int) string { return filepath.Join(w.dir, fmt.Sprintf("nats-%d", i), "store") }

func (w *world) serverConfig(i int, client, route string) string {
	dir := filepath.Dir(w.store(i))
	w.must(os.MkdirAll(dir, 0o700))
	b, err := os.ReadFile("../../ops/nats/weir.conf")
	w.must(err)
	conf := string(b)
	if w.setup.servers == 1 {
		conf = cluster.ReplaceAllString(conf, "")
	}
	for was, is := range map[string]string{
		"listen: 0.0.0.0:4222":          fmt.Sprintf("listen: %q", client),
		"listen: 0.0.0.0:6222":          fmt.Sprintf("listen: %q", route),
		"http: 127.0.0.1:8222":          `http: "127.0.0.1:-1"`,
		"store_dir: /var/lib/weir/nats": fmt.Sprintf("store_dir: %q", w.store(i)),
		"max_file_store: 100GB":         "max_file_store: 20GB",
		"max_memory_store: 1GB":         "max_memory_store: 64MB",
	} {
		conf = strings.Replace(conf, was, is, 1)
	}
	accounts, err := os.ReadFile("../../ops/nats/accounts.conf")
	w.must(err)
	w.must(os.WriteFile(filepath.Join(dir, "accounts.conf"), accounts, 0o600))
	path := filepath.Join(dir, "weir.conf")
	w.must(os.WriteFile(path, []byte(conf), 0o600))
	return path
}

// counted waits until the mark beside the authority says how many gateways serve.
func (w *world) counted(want int64) {
	w.tb.Helper()
	nc, _, _ := w.join(access.Operator)
	defer nc.Close()
	shared, err := ledger.NewKV(nc)
	w.must(err)
	w.until(fmt.Sprintf("the mark says that %d gateways serve", want), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		m, known, err := shared.Mark(ctx)
		return err == nil && known && m.Gateways == want
	})
}

// The log is in a NATS server of its own, which dies and comes back; every role is a process, with the permissions of its role alone.
func TestTheLogIsInServersOfItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{servers: 1, apart: true})
	w.counted(int64(len(w.gateways)))
	l := w.run(clients())
	time.Sleep(time.Second)
	down := between(5*time.Second, 40*time.Second)
	w.core.kill()
	time.Sleep(down)
	w.core.start()
	w.listening()
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	line(t, fmt.Sprintf("a NATS server of its own was killed, and back after %s", down), say(all), w.check(all, checks{}))
}

// The servers lose what they held. Nothing is admitted until an operator has recovered the log, from anywhere, by the projector's snapshots.
func TestServersOfTheirOwnLoseTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{servers: 1, apart: true})
	before := w.run(clients())
	time.Sleep(2 * time.Second)
	told := before.end()
	time.Sleep(3 * time.Second) // until the marks are on the disks
	w.core.stop()
	w.must(os.RemoveAll(w.store(0)))
	w.core.start()
	w.listening()
	began := time.Now()
	why := ""
	for i := range w.gateways {
		w.until(fmt.Sprintf("/ready of gateway %d says why", i), func() bool {
			_, why = w.why(i)
			return strings.Contains(why, "weir recover")
		}, &why)
		if ok, said := w.admits(i, "open"); ok || said == "bounded_local" {
			t.Errorf("gateway %d admitted the open org: %s", i, said)
		}
	}
	for _, p := range w.readers {
		p.stop()
	}
	config := w.config("operator", w.joins("projector", freeport.Address(t), w.everywhere(), access.Operator))
	said, err := exec.Command(binary, "recover", "--config", config, "--windows", "empty", "--reason", "the servers lost it").CombinedOutput()
	if err != nil {
		t.Fatalf("weir recover: %v\n%s", err, said)
	}
	since := time.Now()
	for _, p := range w.readers {
		p.start()
	}
	w.ready()
	failed := time.Since(began)
	after := w.run(clients())
	time.Sleep(2 * time.Second)
	all := after.end()
	w.clients(told, 0)
	lost := w.check(all, checks{since: since})
	line(t, "a NATS server's store was deleted, then recovered", fmt.Sprintf("nothing was admitted for %.1f s (%s)", failed.Seconds(), strings.TrimSpace(why)), lost)
	if t.Failed() {
		t.Logf("%s", said)
	}
}
