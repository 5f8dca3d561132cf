package access

import "strings"

// The streams and key-value buckets of Weir. A bucket's stream is KV_<bucket>.
const (
	StreamAccounting = "ACCOUNTING" // acct.>
	StreamUsage      = "USAGE"      // usage.>

	BucketOccupancy   = "occupancy"
	BucketWindows     = "windows"
	BucketEstimator   = "estimator"
	BucketGenerations = "generations"
	BucketAuthority   = "authority"
	BucketLeases      = "leases"
	BucketSnapshots   = "snapshots"

	// KeyLedger is where the mark of the right log is kept in BucketAuthority: by projectors, beside who makes that bucket.
	KeyLedger = "ledger"
)

// Subjects of core NATS.
const (
	VerdictPrefix  = "verdict."    // + a gateway's full name: its verdicts
	SubjectAsk     = "verdict.ask" // what was decided about (request, attempt)?
	SubjectLive    = "live.ask"    // which reservations of a gateway are live?
	SubjectFind    = "log.ask"     // is an event of a gateway in the log already?
	usageSubjects  = "usage.>"
	responsePrefix = "_R_." // answers on their way back to another account
)

const kvStream = "KV_"

// BucketStream names the stream behind a bucket.
func BucketStream(bucket string) string { return kvStream + bucket }

func kvSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

var (
	// views are the buckets that gateways watch whole.
	views = []string{BucketOccupancy, BucketWindows, BucketEstimator}
	// open are the keys of the authority's bucket that gateways read and watch: the newest change, what changes wrote, the records, and the
	// ledger's mark. What people sign in with has other keys.
	open = []string{"root", "ledger", "c.>", "r.>"}
	// buckets are all of them.
	buckets = []string{BucketOccupancy, BucketWindows, BucketEstimator, BucketAuthority, BucketGenerations, BucketLeases, BucketSnapshots}
)

// openSubjects are those of the keys that gateways read of the authority's bucket.
func openSubjects() []string {
	out := make([]string, len(open))
	for k, key := range open {
		out[k] = kvSubject(BucketAuthority, key)
	}
	return out
}

// isOpen says whether all that a filter lets through is open to gateways.
func isOpen(filter string) bool {
	for _, subject := range openSubjects() {
		prefix, wild := strings.CutSuffix(subject, ">")
		if filter == subject || wild && strings.HasPrefix(filter, prefix) {
			return true
		}
	}
	return false
}

func bucketStreams(names []string) []string {
	out := make([]string, len(names))
	for k, n := range names {
		out[k] = BucketStream(n)
	}
	return out
}

func allStreams() []string {
	return append([]string{StreamAccounting, StreamUsage}, bucketStreams(buckets)...)
}

// What JetStream calls its requests.
const (
	apiInfo    = "$JS.API.INFO"
	apiNames   = "$JS.API.STREAM.NAMES"
	apiList    = "$JS.API.STREAM.LIST"
	apiStream  = "$JS.API.STREAM.INFO."
	apiDirect  = "$JS.API.DIRECT.GET."
	apiCreate  = "$JS.API.CONSUMER.CREATE."
	apiRemove  = "$JS.API.CONSUMER.DELETE."
	apiLook    = "$JS.API.CONSUMER.INFO."
	apiNext    = "$JS.API.CONSUMER.MSG.NEXT."
	apiListing = "$JS.API.CONSUMER.LIST."
	apiNaming  = "$JS.API.CONSUMER.NAMES."
	ackPrefix  = "$JS.ACK."
	flowPrefix = "$JS.FC."
)
