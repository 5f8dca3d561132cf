package embedded

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/weirhq/weir/events/journal/access"
)

// Config is how the broker runs. The zero value of every field but DataDir is valid.
type Config struct {
	// DataDir is the process's data directory; the broker keeps to broker/ in it. Made when it is not there. One process at a time.
	DataDir string

	// Listen is the host and port on which other processes join; port 0 takes a free one. Defaults to none: no port is opened.
	Listen string

	// SyncInterval is how often what was acknowledged is forced to the disk: what a power loss may take. Defaults to 1 s.
	SyncInterval time.Duration

	// SyncAlways forces each message to the disk before it is acknowledged. Defaults to false.
	SyncAlways bool

	// MaxStore is how many bytes all streams together may take on the disk. Defaults to nats-server's own: 75 % of what is free.
	MaxStore int64

	// MaxMemory is how many bytes streams and consumers in memory may take. Defaults to 256 MiB.
	MaxMemory int64

	// Credentials are who may join over TCP. Defaults to nobody.
	Credentials access.Credentials

	// TLS is what those who join over TCP must speak. Defaults to none: their secrets cross the network in the clear, which the
	// broker warns about where Listen is not this host alone.
	TLS *tls.Config

	// Log takes the broker's warnings and errors, and at debug its notices. Defaults to none.
	Log *slog.Logger
}

const (
	defaultSync   = time.Second
	defaultMemory = 256 << 20
	maxPayload    = 1 << 20 // bytes of a message; packs and verdicts stay far below
)

// Validate returns every fault at once.
func (c Config) Validate() error {
	var faults []error
	if c.DataDir == "" {
		faults = append(faults, errors.New("data_dir: is empty"))
	}
	if c.Listen != "" {
		if _, _, err := c.address(); err != nil {
			faults = append(faults, err)
		}
	}
	if c.SyncInterval < 0 {
		faults = append(faults, fmt.Errorf("log.sync: %v: must not be negative", c.SyncInterval))
	}
	if c.MaxStore < 0 {
		faults = append(faults, fmt.Errorf("max store: %d bytes: must not be negative", c.MaxStore))
	}
	if c.MaxMemory < 0 {
		faults = append(faults, fmt.Errorf("max memory: %d bytes: must not be negative", c.MaxMemory))
	}
	if err := c.Credentials.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("credentials: %w", err))
	}
	return errors.Join(faults...)
}

// exposed says whether secrets may be read on a network.
func (c Config) exposed() bool {
	if c.Listen == "" || c.TLS != nil {
		return false
	}
	host, _, err := c.address()
	ip := net.ParseIP(host)
	return err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (c Config) address() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", 0, fmt.Errorf("log.listen: %q: is not host:port", c.Listen)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("log.listen: %q: port %q is not 0 to 65535", c.Listen, text)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, int(n), nil
}
