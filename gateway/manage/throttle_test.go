package manage

import (
	"net/http/httptest"
	"net/netip"
	"testing"
)

// Only what a trusted proxy added says where a request comes from.
func TestWhereARequestComesFrom(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"203.0.113.9:1", nil, "203.0.113.9"},
		{"203.0.113.9:1", []string{"198.51.100.1"}, "203.0.113.9"}, // of no proxy
		{"10.0.0.1:1", nil, "10.0.0.1"},
		{"10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"[::ffff:10.0.0.1]:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1", []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9"}, // the first was sent by the client
		{"10.0.0.1:1", []string{"198.51.100.1", "203.0.113.9, 10.2.2.2"}, "203.0.113.9"},
		{"[fd00::1]:1", []string{"2001:db8:1:2:3::4"}, "2001:db8:1:2::"},
		{"[2001:db8:1:2::9%eth0]:1", nil, "2001:db8:1:2::"},
		{"10.0.0.1:1", []string{"203.0.113.9, unknown"}, "10.0.0.1"},
		{"10.0.0.1:1", []string{"10.0.0.2, 10.0.0.3"}, "10.0.0.2"},
	} {
		r := httptest.NewRequest("POST", "/api/sign-in", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = c.peer, c.forwarded
		if got := address(r, proxies); got != c.want {
			t.Errorf("from %s, forwarded for %q: %s, not %s", c.peer, c.forwarded, got, c.want)
		}
	}
}
