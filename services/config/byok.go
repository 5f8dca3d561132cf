package config

import (
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// feeDigits are the digits after the point of a percentage in millionths.
const feeDigits = 4

// byok reads what requests at accounts of the org's own cost.
func (l *loader) byok(m *strictyaml.Map) {
	const all = 100_0000 // 100 %
	l.c.BYOKFee = m.Get("fee_percent").Decimal(0, feeDigits, all)
	m.End()
}
