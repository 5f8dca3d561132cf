package embedded_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
)

// childDir tells this binary to be the process that holds a data directory, until it is killed.
const childDir = "WEIR_TEST_BROKER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

// child runs a broker, stores messages for ever, and prints the sequence of each that was acknowledged.
func child(dir string) {
	b, err := embedded.Start(context.Background(), embedded.Config{DataDir: dir})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	nc, err := b.Connect(system())
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateStream(context.Background(), log())
	}
	for err == nil {
		var ack *jetstream.PubAck
		if ack, err = js.Publish(context.Background(), "acct._.tick", []byte("x")); err == nil {
			fmt.Println(ack.Sequence)
		}
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

func system() access.Identity {
	return access.Identity{Name: "test-abcdefgh", Roles: []access.Role{access.System}}
}

func log() jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: access.StreamAccounting, Subjects: []string{"acct.>"}, AllowDirect: true}
}

func client(t *testing.T, b *embedded.Broker) jetstream.JetStream {
	t.Helper()
	nc, err := b.Connect(system())
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), accesstest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestNoPortByDefault(t *testing.T) {
	b := start(t, embedded.Config{DataDir: t.TempDir()})
	if b.URL() != "" {
		t.Errorf("URL is %q, want none", b.URL())
	}
	sockets, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sockets {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", s.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			t.Errorf("file %s is %s", s.Name(), to)
		}
	}
	if err := b.Check(); err != nil {
		t.Error(err)
	}
}

func TestConnectionsInTheProcess(t *testing.T) {
	b := start(t, embedded.Config{DataDir: t.TempDir()})
	js := client(t, b)
	if _, err := js.CreateStream(within(t), log()); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	nc, err := b.Connect(access.Identity{Name: "weir-12345678", Roles: []access.Role{access.Gateway, access.Projector}},
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	verdicts, err := nc.SubscribeSync("verdict.weir-12345678")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("verdict.weir-12345678", []byte("yes")); err != nil {
		t.Fatal(err)
	}
	if _, err := verdicts.NextMsg(accesstest.Patience); err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("acct.acme.credit", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-refused:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("refused by %v", err)
		}
	case <-time.After(accesstest.Patience):
		t.Error("a credit was not refused")
	}

	if _, err := b.Connect(access.Identity{Name: "weir", Roles: []access.Role{access.Gateway}}); err == nil {
		t.Error("a name without a suffix connected")
	}
	if _, err := b.Connect(access.Identity{Name: "weir-12345678", Roles: []access.Role{"king"}}); err == nil {
		t.Error("an unknown role connected")
	}
}

func TestRestartKeepsData(t *testing.T) {
	dir := t.TempDir()
	b := start(t, embedded.Config{DataDir: dir, SyncAlways: true})
	js := client(t, b)
	if _, err := js.CreateStream(within(t), log()); err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(within(t), jetstream.KeyValueConfig{Bucket: access.BucketOccupancy})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(within(t), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(within(t), "acct._.tick", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
	b.Shutdown() // a second one is nothing
	if _, err := b.Connect(system()); err == nil {
		t.Error("connected to a broker that is shut down")
	}
	if !js.Conn().IsClosed() {
		t.Error("a connection outlived the broker")
	}

	js = client(t, start(t, embedded.Config{DataDir: dir}))
	s, err := js.Stream(within(t), access.StreamAccounting)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.GetMsg(within(t), 1); err != nil || string(m.Data) != "kept" {
		t.Errorf("message 1 is %v (%v)", m, err)
	}
	if kv, err = js.KeyValue(within(t), access.BucketOccupancy); err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(within(t), "a"); err != nil || string(e.Value()) != "1" {
		t.Errorf("key a is %v (%v)", e, err)
	}
}

func TestKilledAndRestarted(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may be gone already
	lines := bufio.NewScanner(out)
	acked := 0
	for acked < 500 && lines.Scan() {
		if acked, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatalf("the other process says %q", lines.Text())
		}
	}
	if acked < 500 {
		t.Fatalf("the other process ended after %d messages", acked)
	}

	// While it lives, nobody else may use its directory.
	_, err = embedded.Start(within(t), embedded.Config{DataDir: dir})
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "process "+strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("a directory in use: %v, want the directory and process %d", err, cmd.Process.Pid)
	}

	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // what it had acknowledged before it died
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			acked = n
		}
	}
	_ = cmd.Wait() // killed

	js := client(t, start(t, embedded.Config{DataDir: dir}))
	s, err := js.Stream(within(t), access.StreamAccounting)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Info(within(t)); err != nil || info.State.LastSeq < uint64(acked) || info.State.Msgs != info.State.LastSeq {
		t.Errorf("after the kill: %+v (%v), %d were acknowledged", info.State, err, acked)
	}
	if _, err := js.Publish(within(t), "acct._.tick", nil); err != nil {
		t.Error(err)
	}
}

func TestDirectoryInUseHere(t *testing.T) {
	dir := t.TempDir()
	start(t, embedded.Config{DataDir: dir})
	_, err := embedded.Start(within(t), embedded.Config{DataDir: dir})
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("got %v", err)
	}
}

func TestDirectoryUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := t.TempDir()
	if err := os.WriteFile(filepath.Join(taken, "broker"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{"a file": file, "below a file": filepath.Join(file, "x"), "a file in the broker's place": taken,
		"a file system that takes no files": "/proc/weir"} {
		_, err := embedded.Start(within(t), embedded.Config{DataDir: dir})
		if err == nil || !strings.Contains(err.Error(), "data directory "+dir) {
			t.Errorf("%s: %v, want an error that names %s", what, err, dir)
		}
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	_, err = embedded.Start(within(t), embedded.Config{DataDir: dir, Listen: l.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "address "+l.Addr().String()+": is in use") {
		t.Errorf("got %v", err)
	}
	// What failed lets go of the directory.
	start(t, embedded.Config{DataDir: dir})
}

func TestConfigFaults(t *testing.T) {
	_, err := embedded.Start(within(t), embedded.Config{Listen: "nowhere", SyncInterval: -1, MaxStore: -1})
	for _, want := range []string{"data_dir", `log.listen: "nowhere"`, "log.sync", "max store"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	_, err = embedded.Start(within(t), embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:http"})
	if err == nil || !strings.Contains(err.Error(), `port "http"`) {
		t.Errorf("got %v", err)
	}
}

func TestLimitsAndLog(t *testing.T) {
	var text strings.Builder
	credentials, secrets := accesstest.Credentials(t)
	b := start(t, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", MaxStore: 1 << 20, Credentials: credentials,
		Log: slog.New(slog.NewTextHandler(&text, nil))})
	js := client(t, b)
	cfg := log()
	cfg.MaxBytes = 2 << 20
	if _, err := js.CreateStream(within(t), cfg); err == nil {
		t.Error("a stream larger than the store was made")
	}

	if nc, err := accesstest.Connect(b.URL(), nats.UserInfo("gw-one-abcdefgh", "wrong")); err == nil {
		nc.Close()
		t.Fatal("a wrong secret joined")
	}
	if err := b.ReplaceCredentials(access.Credentials{}); err != nil {
		t.Fatal(err)
	}
	if nc, err := accesstest.Connect(b.URL(), secrets["gw-one"].Options(access.Identity{Name: "gw-one-abcdefgh"})...); err == nil {
		nc.Close()
		t.Error("who was removed could join")
	}
	b.Shutdown()
	if got := text.String(); !strings.Contains(got, `connection refused: user \"gw-one-abcdefgh\"`) || strings.Contains(got, "level=INFO") ||
		strings.Contains(got, secrets["gw-one"].Secret) {
		t.Errorf("log: %s", got)
	}
}

func TestStartIsBoundByItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	if _, err := embedded.Start(ctx, embedded.Config{DataDir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	start(t, embedded.Config{DataDir: dir})
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		broker, err := embedded.Start(context.Background(), embedded.Config{DataDir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		broker.Shutdown()
		b.StartTimer()
	}
}

// certificate makes one for 127.0.0.1, and the pool that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	credentials, secrets := accesstest.Credentials(t)
	b := start(t, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: credentials,
		TLS: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}})
	client(t, b) // in the process there is nothing to hide
	who := secrets["gw-one"].Options(access.Identity{Name: "gw-one-abcdefgh"})
	if nc, err := nats.Connect(b.URL(), who...); err == nil {
		nc.Close()
		t.Error("joined without trusting the certificate")
	}
	nc, err := accesstest.Connect(b.URL(), append(who, nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.TLSConnectionState(); err != nil {
		t.Error(err)
	}
}

func TestWarnsOfListeningInTheClear(t *testing.T) {
	for listen, want := range map[string]bool{"127.0.0.1:0": false, "0.0.0.0:0": true, ":0": true} {
		var text strings.Builder
		b := start(t, embedded.Config{DataDir: t.TempDir(), Listen: listen, Log: slog.New(slog.NewTextHandler(&text, nil))})
		b.Shutdown()
		if got := strings.Contains(text.String(), "without TLS"); got != want {
			t.Errorf("%s: warned %v, want %v: %s", listen, got, want, text.String())
		}
	}
}
