package config

import (
	"net/netip"

	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// proxies reads networks.
func (l *loader) proxies(n strictyaml.Node) {
	for _, item := range n.List() {
		text, _ := item.Text()
		network, err := netip.ParsePrefix(text)
		if err != nil || network != network.Masked() {
			item.Wrong("must be a network such as 10.0.0.0/8")
			continue
		}
		l.c.TrustedProxies = append(l.c.TrustedProxies, network)
	}
}
