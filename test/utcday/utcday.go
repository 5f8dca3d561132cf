// Package utcday keeps a test that counts by the day or the month from one that ends while it runs. Both end at midnight, UTC.
package utcday

import (
	"testing"
	"time"
)

// least is how much of the day there must be left: more than a test takes on a machine that has much else to do.
const least = 3 * time.Minute

// Whole waits for the next day if this one is about to end.
func Whole(tb testing.TB) {
	tb.Helper()
	const day = 24 * time.Hour
	now := time.Now().UTC()
	if left := now.Truncate(day).Add(day).Sub(now); left < least {
		tb.Logf("the day ends in %s: the next one is waited for", left)
		time.Sleep(left)
	}
}
