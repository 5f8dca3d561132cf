// Package access is the one place that says who may do what on the broker: the identities, the subjects each may publish and
// subscribe, the accounts they live in, and how they prove who they are. The embedded broker and an external NATS cluster
// (through auth callout) both take their answers from here.
//
// # Accounts
//
// Permissions alone do not keep a gateway in its place. A broker checks the subject of a publish and not its reply subject, so
// whoever may publish anything that is answered can have the answer written to any stream of its account; and whoever may create
// a push consumer can have a stream's messages delivered to any subject of its account. Therefore:
//
//   - WEIR holds the streams. Projectors, auditors, billers and operators live there: they are trusted, and their permissions
//     guard against mistakes.
//   - GATES is for processes that are a gateway and nothing else. It holds no stream. A gateway's facts and questions pass to
//     WEIR by service imports, so that answers come back to GATES whatever the reply subject says.
//   - READERS is for monitors, in the same way, without any way to state a fact.
//   - BILLING is for consumers of billing lines: each may make one durable pull consumer of the stream USAGE under its configured name,
//     ask it for messages and acknowledge them, and nothing else.
//   - A consumer for GATES or READERS is created by the Door, which lets it deliver to the inbox of such an identity only.
//   - Gateways cannot read the log, only what projections made of it: what they write themselves cannot be handed to others as
//     if the broker had said it.
//
// # Names
//
// A process presents a full name "<configured>-<8 of [a-z0-9]>", new each time it starts, and the secret of the configured name.
// Permissions are made for exactly the full name presented.
package access
