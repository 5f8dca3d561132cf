package authority

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Ranges of limits, as the limits API has them.
const (
	MaxRPM         = 1_000_000
	MaxRPS         = 1_000_000
	MaxTPM         = 1_000_000_000
	MaxConcurrency = 10_000
	// MaxQuota bounds what auth.yaml and policies give in tokens: a bucket's largest limit.
	MaxQuota = events.MaxBucketAmount
	// MoneyDigits are the digits after the point of a US dollar in nano-dollars.
	MoneyDigits = 9
)

// The names of a scope's outage mode.
const (
	outageOpen   = "bounded_open"
	outageClosed = "closed"
)

// ReadLimits reads the limits of an org, a workspace or a key: rpm, rps, tpm, concurrency, spend_day, spend_month (US dollars),
// tokens_per_day and outage_mode. What is absent or null is no limit. Faults are noted where the values stand.
func ReadLimits(n strictyaml.Node) (l Limits, daily int64) {
	m := n.Map()
	l = readRates(m, MaxRPM, MaxRPS, MaxTPM, MaxConcurrency)
	l.SpendDay = m.Get("spend_day").Decimal(0, MoneyDigits, events.MaxAmount)
	l.SpendMonth = m.Get("spend_month").Decimal(0, MoneyDigits, events.MaxAmount)
	daily = m.Get("tokens_per_day").Int(0, 1, MaxQuota)
	m.End()
	return l, daily
}

// ReadRates reads the limits of a scope that has no money and no daily tokens: a principal, a model, an endpoint.
func ReadRates(n strictyaml.Node) Limits {
	m := n.Map()
	l := readRates(m, MaxRPM, MaxRPS, MaxTPM, MaxConcurrency)
	m.End()
	return l
}

// ReadPlatform reads the platform's limits, which are larger than a tenant's may be.
func ReadPlatform(n strictyaml.Node) Limits {
	m := n.Map()
	l := readRates(m, MaxQuota, MaxQuota, MaxQuota, MaxQuota)
	m.End()
	return l
}

func readRates(m *strictyaml.Map, rpm, rps, tpm, concurrency int64) Limits {
	return Limits{
		RPM:         m.Get("rpm").Int(0, 1, rpm),
		RPS:         m.Get("rps").Int(0, 1, rps),
		TPM:         m.Get("tpm").Int(0, 1, tpm),
		Concurrency: m.Get("concurrency").Int(0, 1, concurrency),
		Closed:      m.Get("outage_mode").OneOf(outageOpen, outageOpen, outageClosed) == outageClosed,
		Shadow:      readShadow(m.Get("shadow"), rpm, rps, tpm, concurrency),
	}
}

// readShadow reads limits that are tried out.
func readShadow(n strictyaml.Node, rpm, rps, tpm, concurrency int64) Rates {
	m := n.Map()
	r := Rates{RPM: m.Get("rpm").Int(0, 1, rpm), RPS: m.Get("rps").Int(0, 1, rps), TPM: m.Get("tpm").Int(0, 1, tpm),
		Concurrency: m.Get("concurrency").Int(0, 1, concurrency)}
	m.End()
	return r
}
