package config

import "github.com/weirhq/weir/gateway/authority/strictyaml"

// Operators says where operators look: /health, /ready, /metrics and /status.
type Operators struct {
	// Listen is a host and port for them alone. Then /metrics, /status, /log and /recover are there and no longer on the API's address,
	// which has /health and /ready all the same. A process without the role gateway serves nothing unless it is set. Defaults to none:
	// they are on the API's address.
	Listen string
}

func (l *loader) operators(m *strictyaml.Map) {
	l.c.Operators.Listen = l.address(m.Get("listen"), "")
	m.End()
}

// OperatorsAddress is the host and port that answer operators.
func (c *Config) OperatorsAddress() string {
	if c.Operators.Listen != "" {
		return c.Operators.Listen
	}
	return c.Listen
}
