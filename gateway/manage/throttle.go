package manage

import (
	"hash/maphash"
	"net/http"
	"net/netip"
	"slices"
	"strings"
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

// address is where a request comes from: the other end of its connection, or, where that is one of the proxies, who that forwarded it for, and
// so on. What stands before in X-Forwarded-For anybody may have written. Of IPv6 it is a network of /64, as one place has that many.
func address(r *http.Request, proxies []netip.Prefix) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	at := peer.Addr().Unmap()
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		next, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil || !slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(at) }) {
			break
		}
		at = next.Unmap().WithZone("")
	}
	if at.Is6() {
		return netip.PrefixFrom(at, 64).Masked().Addr().String()
	}
	return at.String()
}
