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
	l := Limits{}
	shadow := m.Get("shadow").Map()
	for _, d := range []struct {
		name          string
		limit, shadow *int64
		most          int64
	}{
		{"rpm", &l.RPM, &l.Shadow.RPM, rpm}, {"rps", &l.RPS, &l.Shadow.RPS, rps}, {"tpm", &l.TPM, &l.Shadow.TPM, tpm},
		{"concurrency", &l.Concurrency, &l.Shadow.Concurrency, concurrency},
	} {
		*d.limit = m.Get(d.name).Int(0, 1, d.most)
		tried := shadow.Get(d.name)
		if *d.shadow = tried.Int(0, 1, d.most); *d.limit > 0 && *d.shadow > *d.limit {
			tried.Warn("is above the limit of %d that it stands in the shadow of: it would never refuse anything", *d.limit)
		}
	}
	shadow.End()
	l.Closed = m.Get("outage_mode").OneOf(outageOpen, outageOpen, outageClosed) == outageClosed
	return l
}
