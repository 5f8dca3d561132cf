package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestTrustedProxies(t *testing.T) {
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	if c, _ := load(t, `trusted_proxies: [10.0.0.0/8, "fd00::/8"]`, nil); !slices.Equal(c.TrustedProxies, want) {
		t.Errorf("from a file %v", c.TrustedProxies)
	}
	if c, _ := load(t, "", vars{"WEIR_TRUSTED_PROXIES": `[10.0.0.0/8, "fd00::/8"]`}); !slices.Equal(c.TrustedProxies, want) {
		t.Errorf("from a variable %v", c.TrustedProxies)
	}
	for _, wrong := range []string{"10.0.0.1", "10.0.0.1/8", "proxy.example", "10.0.0.0/33"} {
		_, _, err := Parse("weir.yaml", []byte("trusted_proxies: ["+wrong+"]"), vars{}.get)
		if err == nil || !strings.Contains(err.Error(), "trusted_proxies[0] is "+wrong+": must be a network such as 10.0.0.0/8") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
