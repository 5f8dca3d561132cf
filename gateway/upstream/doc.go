// Package upstream knows where a request can go: the replicas of the operator's own model servers, with their health and
// pressure, and the accounts at providers. It chooses; the relay calls.
package upstream
