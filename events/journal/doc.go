// Package journal is the log on JetStream: one stream that holds every event, in the order that decides.
//
// Open gives a Log. A gateway writes through one Publisher, which packs what queues up and retries under one id until the stream
// has acknowledged it; others write single events with Log.Publish, and the projector that holds the writer's lease with
// Log.AppendFenced. A Tap reads the log in order without a gap; Log.Read reads a stretch of it, Log.LookFor finds ids.
//
// A message is one event in the CloudEvents binary mode of NATS (ce-* headers, JSON data) on the subject of its kind, or a pack: a
// CloudEvents batch of one gateway's events on acct._.pack.<gateway>. Readers choose by content type.
//
// Callers ask errors about behaviour: Unreachable, Full, MaybeAppended. A stream that is not the one that was read before
// is *Replaced; a stretch that is no longer in it is *Lost.
package journal
