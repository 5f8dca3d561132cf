//go:build !chaos

package chaos

// long says whether every row is run, for as long as it takes, under more load: with -tags chaos.
const long = false

var wrongLogs = []string{"deleted"}
