package manage

import (
	"hash/maphash"
	"net"
	"net/http"
	"sync"
	"time"
)

// How often signing in may be tried, right or wrong, before it must wait. Right passwords count too: only so many can be tried.
const (
	tryWindow     = 5 * time.Minute
	accountTries  = 10
	addressTries  = 30
	throttleSlots = 1 << 14
)

// throttle counts tries by name in a fixed number of slots. Two names may share one, and then are slowed down together; nothing that a
// client sends makes it grow.
type throttle struct {
	most int
	seed maphash.Seed

	mu    sync.Mutex
	slots [throttleSlots]slot
}

// slot is a window of tries.
type slot struct {
	began time.Time
	tries int
}

func newThrottle(most int) *throttle { return &throttle{most: most, seed: maphash.MakeSeed()} }

// try counts a try, and says how long to wait if there were too many.
func (t *throttle) try(name string, now time.Time) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.slots[maphash.String(t.seed, name)%throttleSlots]
	if age := now.Sub(s.began); age >= tryWindow || age < 0 {
		*s = slot{began: now}
	}
	if s.tries >= t.most {
		return s.began.Add(tryWindow).Sub(now)
	}
	s.tries++
	return 0
}

// remote is the address at the other end of a request's connection: a network of /64 for IPv6, as one place has that many.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	ip := net.ParseIP(host)
	if ip != nil && ip.To4() == nil {
		return ip.Mask(net.CIDRMask(64, 128)).String()
	}
	return host
}
