// Package freeport gives addresses for what must know its own before it listens. Their ports are below those that the kernel hands out by itself,
// so that no connection of anybody else on the machine takes one meanwhile.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
)

const (
	first = 10_000
	least = 1_000 // ports that there must be to choose from
	tries = 100
)

// Address gives "127.0.0.1:port", at which nobody listens.
func Address(tb testing.TB) string {
	tb.Helper()
	port, err := Take()
	if err != nil {
		tb.Fatal(err)
	}
	return "127.0.0.1:" + strconv.Itoa(port)
}

// Take gives a port of 127.0.0.1 at which nobody listens.
func Take() (port int, err error) {
	end := 32_768 // where the kernel's own begin, unless it says otherwise
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &end) // it stays what it is
	}
	for range tries {
		port = 0 // the kernel's, where there is no room below
		if end-first >= least {
			port = first + rand.IntN(end-first)
		}
		l, failed := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		port = l.Addr().(*net.TCPAddr).Port
		return port, l.Close()
	}
	return 0, err
}
