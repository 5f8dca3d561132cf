package accesstest

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect is nats.Connect on a machine that has much else to do: what one side gives up for the other's slowness is tried again, for as long
// as Patience. Who may not join is told at once.
func Connect(url string, opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{nats.Timeout(Patience)}, opts...)
	for end := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		nc, err := nats.Connect(url, opts...)
		if err == nil || errors.Is(err, nats.ErrAuthorization) || time.Now().After(end) {
			return nc, err
		}
	}
}
