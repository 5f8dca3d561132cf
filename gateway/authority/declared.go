package authority

import "github.com/weirhq/weir/events"

// Declared is what weir.yaml says of authority.
type Declared struct {
	File        string
	Platform    Limits
	Defaults    Defaults
	Orgs        []DeclaredOrg
	Models      []*Model
	Connections []*Connection
	Pools       []DeclaredPool
	AdminKeys   int   // how many admin keys there are
	Reachable   bool  // whether other machines can reach the API
	BYOKFee     int64 // what requests at accounts of the org's own cost, in millionths of the price
}

// DeclaredOrg is an org in weir.yaml. Its name is an owner in auth.yaml.
type DeclaredOrg struct {
	At         Pos
	Name       string
	Billing    Billing
	Limits     Limits
	Daily      int64
	Models     map[string]Limits
	Workspaces map[string]Limits
	Principals map[string]Limits
}

// DeclaredPool is a provider account's capacity as declared, before headroom.
type DeclaredPool struct {
	At                    Pos
	ID                    string
	Org                   events.Org // empty: the house's
	Provider              string
	RPM, TPM, Concurrency int64
	HeadroomPercent       int64 // usable, 1 to 100
	Parent                string
	FairShare             int64 // in millionths; 0: the provider's default
}

// Pools and connections.
const (
	// MaxPoolDepth is how many levels of pools there may be, the leaf included.
	MaxPoolDepth = 4
	// DefaultHeadroom is the usable percentage of a pool.
	DefaultHeadroom = 90
	// defaultShare and decisionShare are an org's share of a house pool, in millionths.
	defaultShare  = 500_000
	decisionShare = 750_000
)

// customerProviders are the labels that a pool of an org may have.
var customerProviders = []string{"openai", "anthropic", "azure", "bedrock"}

// decisionPools are the labels of small decision models, whose requests are short: an org may have more of those pools.
var decisionPools = []string{"typesafe", "bespokelabs", "workers-ai", "levanto", "fastino", "routerplus", "perplexity-decisions", "openai-decisions"}

// shareOf is an org's share of a house pool by default.
func shareOf(provider string) int64 {
	if contains(decisionPools, provider) {
		return decisionShare
	}
	return defaultShare
}

// Usable takes the headroom off a declared limit: rounded down, at least one.
func Usable(declared, percent int64) int64 { return max(ScaleDown(declared, percent, 100), 1) }
