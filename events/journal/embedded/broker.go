package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events/journal/access"
)

const (
	storeName = "broker"
	readyPoll = 10 * time.Second // how long one look for readiness takes at most; the context bounds the whole
	dialFor   = 10 * time.Second // for one connection in the process
	dialTries = 5
)

// Broker is a running server. Its methods may be used by many goroutines.
type Broker struct {
	server *server.Server
	auth   *access.Authenticator
	log    *logger
	lock   *lock
	listen bool

	stopDoor context.CancelFunc
	door     chan error

	mu    sync.Mutex
	conns []*nats.Conn
	down  bool
}

// Start runs a broker and returns when it takes connections, or when ctx ends first. After a crash it first reads back the
// streams, which takes the longer the larger they are. The error names the directory or the address that is at fault.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("starting the broker: %w", err)
	}
	b := &Broker{log: newLogger(cfg.Log), listen: cfg.Listen != ""}
	if err := b.start(ctx, cfg); err != nil {
		b.Shutdown()
		return nil, fmt.Errorf("starting the broker: %w", err)
	}
	return b, nil
}

func (b *Broker) start(ctx context.Context, cfg Config) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var key [32]byte
	if _, err := rand.Read(key[:]); err != nil {
		return err
	}
	var err error
	if b.auth, err = access.NewAuthenticator(cfg.Credentials, key[:]); err != nil {
		return err
	}
	if b.lock, err = openDir(cfg.DataDir); err != nil {
		return err
	}
	keeper := &gatekeeper{auth: b.auth, log: b.log}
	opts, err := options(cfg, keeper)
	if err != nil {
		return err
	}
	if b.server, err = server.NewServer(opts); err != nil {
		return err
	}
	keeper.server = b.server
	b.server.SetLoggerV2(b.log, false, false, false)
	if cfg.exposed() {
		b.log.Warnf("%s takes connections without TLS: secrets and events cross the network in the clear", cfg.Listen)
	}
	started := make(chan struct{})
	go func() {
		defer close(started)
		b.server.Start()
	}()
	if err := b.await(ctx, started, cfg.Listen); err != nil {
		return err
	}
	return b.openDoor(ctx)
}

// openDir makes the data directory and proves that this process alone may use it.
func openDir(dir string) (*lock, error) {
	store := filepath.Join(dir, storeName)
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: cannot be made: %w", dir, err)
	}
	l, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	if err := usable(store); err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", dir, err), l.release())
	}
	return l, nil
}

func usable(store string) error {
	if _, err := os.ReadDir(store); err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	probe, err := os.CreateTemp(store, ".probe-*")
	if err != nil {
		return fmt.Errorf("cannot be written: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return fmt.Errorf("cannot be written: %w", err)
	}
	return nil
}

func options(cfg Config, auth server.Authentication) (*server.Options, error) {
	opts := &server.Options{}
	if err := opts.ProcessConfigString("accounts: {\n" + access.AccountsConfig() + "}\n"); err != nil {
		return nil, fmt.Errorf("reading the accounts: %w", err)
	}
	opts.ServerName = "weir-" + strconv.Itoa(os.Getpid())
	opts.NoSigs = true
	opts.DisableJetStreamBanner = true
	opts.MaxPayload = maxPayload
	opts.CustomClientAuthentication = auth
	opts.JetStream = true
	opts.StoreDir = filepath.Join(cfg.DataDir, storeName)
	opts.JetStreamMaxStore = cfg.MaxStore
	opts.JetStreamMaxMemory = cfg.MaxMemory
	if cfg.MaxMemory == 0 {
		opts.JetStreamMaxMemory = defaultMemory
	}
	opts.SyncAlways = cfg.SyncAlways
	opts.SyncInterval = cfg.SyncInterval
	if cfg.SyncInterval == 0 {
		opts.SyncInterval = defaultSync
	}
	opts.DontListen = cfg.Listen == ""
	if !opts.DontListen {
		host, port, err := cfg.address()
		if err != nil {
			return nil, err
		}
		if port == 0 {
			port = server.RANDOM_PORT
		}
		opts.Host, opts.Port = host, port
		opts.TLSConfig, opts.TLS = cfg.TLS, cfg.TLS != nil
	}
	return opts, nil
}

// await waits until the server takes connections, has given up, or ctx ends.
func (b *Broker) await(ctx context.Context, started <-chan struct{}, listen string) error {
	ready := make(chan bool, 1)
	look := func() { go func() { <-started; ready <- b.server.ReadyForConnections(readyPoll) }() }
	look()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.log.fell:
			if listen != "" && !addressFree(listen) {
				return fmt.Errorf("address %s: is in use: %s", listen, b.log.reason())
			}
			return errors.New(b.log.reason())
		case ok := <-ready:
			if ok {
				return nil
			}
			look()
		}
	}
}

func addressFree(listen string) bool {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func (b *Broker) openDoor(ctx context.Context) error {
	door := access.NewDoor(b.auth, b.dial)
	run, stop := context.WithCancel(context.Background())
	b.stopDoor, b.door = stop, make(chan error, 1)
	go func() { b.door <- door.Run(run) }()
	select {
	case <-door.Ready():
		return nil
	case err := <-b.door:
		b.door <- nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Connect connects in the process, without a port, as the identity: with its permissions, and beside the streams whatever its
// roles. The broker closes the connection when it shuts down, if the caller has not.
func (b *Broker) Connect(id access.Identity, opts ...nats.Option) (*nats.Conn, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("connecting to the broker: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, errors.New("connecting to the broker: it is shut down")
	}
	nc, err := b.dial(append(b.auth.Own(id), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connecting to the broker as %s: %w", id.Name, err)
	}
	open := b.conns[:0]
	for _, c := range b.conns {
		if !c.IsClosed() {
			open = append(open, c)
		}
	}
	b.conns = append(open, nc)
	return nc, nil
}

// dial connects, again if the process was so busy that one side gave the other up: nothing is between the two that could be away.
func (b *Broker) dial(opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{nats.InProcessServer(b.server), nats.Timeout(dialFor)}, opts...)
	for tries := 1; ; tries++ {
		nc, err := nats.Connect("", opts...)
		if err == nil || errors.Is(err, nats.ErrAuthorization) || tries == dialTries || !b.server.Running() {
			return nc, err
		}
	}
}

// URL is where other processes join, "nats://host:port"; empty without Listen.
func (b *Broker) URL() string {
	if !b.listen {
		return ""
	}
	return b.server.ClientURL()
}

// ReplaceCredentials changes who may join. Connections that exist stay.
func (b *Broker) ReplaceCredentials(c access.Credentials) error { return b.auth.Replace(c) }

// Check says why the broker can no longer serve, as after a disk that failed; nil while it can.
func (b *Broker) Check() error {
	switch {
	case !b.server.Running():
		return errors.New("broker: is not running")
	case b.log.reason() != "":
		return fmt.Errorf("broker: %s", b.log.reason())
	case !b.server.JetStreamEnabled():
		return errors.New("broker: JetStream has been disabled, see the log before")
	}
	return nil
}

// Shutdown closes the connections, writes everything to the disk, and returns when all is closed and the directory is free.
func (b *Broker) Shutdown() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return
	}
	b.down = true
	for _, nc := range b.conns {
		nc.Close()
	}
	if b.stopDoor != nil {
		b.stopDoor()
		<-b.door
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	if b.lock != nil {
		if err := b.lock.release(); err != nil {
			b.log.Warnf("releasing the data directory: %v", err)
		}
	}
}
