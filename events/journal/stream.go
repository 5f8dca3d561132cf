package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// streamConfig is the stream as it is made.
func (c Config) streamConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              c.Stream,
		Description:       "Weir: every fact of admission and accounting, in the order that decides",
		Subjects:          []string{streamSubjects},
		Retention:         jetstream.LimitsPolicy,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxBytes:          c.MaxBytes,
		MaxAge:            c.MaxAge,
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		Compression:       c.compression(),
		Replicas:          c.Replicas,
		Duplicates:        DuplicateWindow,
		DenyDelete:        true,
		DenyPurge:         true,
		AllowDirect:       true,
	}
}

func (c Config) compression() jetstream.StoreCompression {
	if c.Compress {
		return jetstream.S2Compression
	}
	return jetstream.NoCompression
}

func (l *Log) create(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err := l.js.CreateStream(ctx, l.config.streamConfig())
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another role may have been first
		return nil, err
	}
	return l.streamInfo(ctx)
}

// adjust brings what an operator may change to what is asked for.
func (l *Log) adjust(ctx context.Context, have jetstream.StreamConfig) error {
	want := have
	want.MaxAge, want.MaxBytes, want.Replicas, want.Compression = l.config.MaxAge, l.config.MaxBytes, l.config.Replicas, l.config.compression()
	if want.MaxAge == have.MaxAge && want.MaxBytes == have.MaxBytes && want.Replicas == have.Replicas && want.Compression == have.Compression {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	if _, err := l.js.UpdateStream(ctx, want); err != nil {
		return fmt.Errorf("set max_age %s, max_bytes %d, num_replicas %d, compression %s: %w", want.MaxAge, want.MaxBytes, want.Replicas, want.Compression, unreachable(err))
	}
	return nil
}

// mustHold says every field of the stream's configuration that would make it no log.
func mustHold(c *jetstream.StreamConfig) error {
	var faults []error
	must := func(ok bool, field string, have any, rule string) {
		if !ok {
			faults = append(faults, fmt.Errorf("%s is %v: %s", field, have, rule))
		}
	}
	must(len(c.Subjects) == 1 && c.Subjects[0] == streamSubjects, "subjects", c.Subjects, "must be "+streamSubjects)
	must(c.Storage == jetstream.FileStorage, "storage", c.Storage, "must be file")
	must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, "must be limits")
	must(c.Discard == jetstream.DiscardNew, "discard", c.Discard, "must be new: nothing may be forgotten to make room")
	must(!c.DiscardNewPerSubject, "discard_new_per_subject", c.DiscardNewPerSubject, "must be off")
	must(c.MaxMsgs <= 0, "max_msgs", c.MaxMsgs, "must be unset")
	must(c.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", c.MaxMsgsPerSubject, "must be unset")
	must(c.MaxMsgSize <= 0 || c.MaxMsgSize >= maxMessage, "max_msg_size", c.MaxMsgSize, fmt.Sprintf("must be unset or at least %d", maxMessage))
	must(c.MaxAge == 0 || c.MaxAge > DuplicateWindow, "max_age", c.MaxAge, "must be longer than the duplicate window")
	must(c.Duplicates == DuplicateWindow, "duplicate_window", c.Duplicates, "must be "+DuplicateWindow.String())
	must(c.DenyDelete, "deny_delete", c.DenyDelete, "must be on")
	must(c.DenyPurge, "deny_purge", c.DenyPurge, "must be on")
	must(c.AllowDirect, "allow_direct", c.AllowDirect, "must be on")
	must(!c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, "must be off: a rollup deletes")
	must(!c.AllowMsgTTL, "allow_msg_ttl", c.AllowMsgTTL, "must be off: no event may vanish by itself")
	must(!c.AllowMsgCounter, "allow_msg_counter", c.AllowMsgCounter, "must be off")
	must(!c.AllowMsgSchedules, "allow_msg_schedules", c.AllowMsgSchedules, "must be off")
	must(!c.NoAck, "no_ack", c.NoAck, "must be off")
	must(!c.Sealed, "sealed", c.Sealed, "must be off")
	must(c.PersistMode == jetstream.DefaultPersistMode, "persist_mode", c.PersistMode, "must be default: an acknowledged event is written")
	must(c.Mirror == nil && len(c.Sources) == 0, "mirror, sources", "set", "must be unset: the log is written by its publishers alone")
	must(c.SubjectTransform == nil, "subject_transform", "set", "must be unset")
	return errors.Join(faults...)
}
