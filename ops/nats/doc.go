// Package nats holds the example configuration of an external NATS cluster for Weir, and the tests that hold it to what
// events/journal/access says.
package nats
