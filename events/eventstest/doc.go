// Package eventstest makes events for tests: builders with sensible defaults, a log that numbers and times them, and generators of
// random valid ones.
package eventstest
