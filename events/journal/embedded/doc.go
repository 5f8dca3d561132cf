// Package embedded is the broker in the process: nats-server with JetStream on files under the data directory. By default it
// opens no port; with Listen set, other processes of Weir join over TCP, each with the permissions of events/journal/access.
package embedded
