package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/events"
)

// The accounts; see the package comment.
const (
	AccountCore    = "WEIR"
	AccountGates   = "GATES"
	AccountReaders = "READERS"
	AccountBilling = "BILLING"
)

// passage is one thing that WEIR lets into, or out to, other accounts.
type passage struct {
	subject  string
	stream   bool // messages flow out of WEIR; else requests flow in
	many     bool // a request has more than one answer
	accounts []string
}

// passages are all ways between the accounts. What each identity may use of them is in its permissions.
func passages() []passage {
	gates, readers, both := []string{AccountGates}, []string{AccountReaders}, []string{AccountGates, AccountReaders}
	billing, all := []string{AccountBilling}, []string{AccountGates, AccountReaders, AccountBilling}
	out := []passage{
		{subject: inboxPrefix + ">", stream: true, accounts: both}, // deliveries of consumers that the door made
		{subject: VerdictPrefix + "*", stream: true, accounts: gates},
		{subject: SubjectAsk, accounts: gates},
		{subject: SubjectLive, accounts: gates},
		{subject: SubjectFind, accounts: gates},
		{subject: apiInfo, accounts: all},
		{subject: apiNames, accounts: readers},
		{subject: apiList, accounts: readers},
		{subject: fact(string(events.Platform), events.KindPack) + ".*", accounts: gates},
	}
	for _, kind := range gatewayKinds() {
		out = append(out, passage{subject: fact("*", kind) + ".*", accounts: gates})
	}
	authority := BucketStream(BucketAuthority)
	for _, subject := range openSubjects() {
		out = append(out, passage{subject: apiDirect + authority + "." + subject, accounts: gates})
	}
	gateStreams := append(bucketStreams(views), BucketStream(BucketGenerations))
	for _, stream := range allStreams() {
		who := readers
		if slices.Contains(gateStreams, stream) {
			who = both
		}
		info, flow := who, who
		switch stream {
		case StreamAccounting:
			info = both // a gateway notices a log that was replaced
		case authority:
			info, flow = both, both // of which it reads some keys alone
		}
		look := readers
		if stream == StreamUsage {
			info, look = slices.Concat(info, billing), slices.Concat(look, billing)
		}
		out = append(out,
			passage{subject: apiStream + stream, accounts: info},
			passage{subject: apiDirect + stream, many: true, accounts: who},
			passage{subject: apiDirect + stream + ".>", accounts: who},
			passage{subject: flowPrefix + stream + ".>", accounts: flow},
			passage{subject: apiListing + stream, accounts: readers},
			passage{subject: apiNaming + stream, accounts: readers},
			passage{subject: apiLook + stream + ".*", accounts: look})
	}
	return append(out,
		passage{subject: apiNext + StreamUsage + ".*", many: true, accounts: billing},
		passage{subject: ackPrefix + StreamUsage + ".>", accounts: billing})
}

// AccountsConfig is the accounts and the ways between them, in the language of nats-server's configuration: the inside of its
// "accounts" block. An external server includes it as ops/nats/accounts.conf.
func AccountsConfig() string {
	var b strings.Builder
	b.WriteString("# The accounts of Weir and the ways between them. Made by events/journal/access: do not edit.\n\n")
	fmt.Fprintf(&b, "%s: {\n  jetstream: enabled\n  exports: [\n", AccountCore)
	for _, p := range passages() {
		way, many := "service", ""
		if p.stream {
			way = "stream"
		}
		if p.many {
			many = ", response_type: stream"
		}
		fmt.Fprintf(&b, "    {%s: %q, accounts: [%s]%s}\n", way, p.subject, strings.Join(p.accounts, ", "), many)
	}
	b.WriteString("  ]\n}\n")
	for _, account := range []string{AccountGates, AccountReaders, AccountBilling} {
		fmt.Fprintf(&b, "\n%s: {\n  imports: [\n", account)
		for _, p := range passages() {
			if !slices.Contains(p.accounts, account) {
				continue
			}
			way := "service"
			if p.stream {
				way = "stream"
			}
			share := ""
			if p.subject == SubjectAsk || p.subject == SubjectLive {
				share = ", share: true" // so that the projector learns who asks
			}
			fmt.Fprintf(&b, "    {%s: {account: %s, subject: %q}%s}\n", way, AccountCore, p.subject, share)
		}
		b.WriteString("  ]\n}\n")
	}
	return b.String()
}
