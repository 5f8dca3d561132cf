//go:build !chaos

package chaos

import "time"

// long says whether every row is run, for as long as it takes, under more load: with -tags chaos.
const long = false

// atOnce is how many rows run at the same time: most of a row is waiting.
const atOnce = 4

// think is how long a client waits after an answer.
const think = 20 * time.Millisecond

var losses = []loss{{"deleted", true, "empty"}, {"flipped", false, "empty"}}
