//go:build !chaos

package chaos

// long says whether every row is run, for as long as it takes, under more load: with -tags chaos.
const long = false

var wrongLogs = []string{"deleted", "flipped"}

// serversOfOwn is how many NATS servers hold the log where it is theirs.
const serversOfOwn = 1
