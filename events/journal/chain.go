package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
)

// Chain is the log's hash chain at some sequence: it stands for every message up to there. The zero Chain stands for none.
type Chain [sha256.Size]byte

// String gives the chain as 64 hex digits.
func (c Chain) String() string { return hex.EncodeToString(c[:]) }

// Next gives the chain after one more message: SHA-256 over the chain before, the sequence (8 bytes, big endian), the subject, a zero
// byte, the Nats-Msg-Id, a zero byte and the message's data.
func (c Chain) Next(seq uint64, subject, id string, data []byte) Chain {
	l := link{buf: make([]byte, 0, 256)}
	l.chain = c
	l.add(seq, subject, id, data)
	return l.chain
}

// Link gives the chain of the one message at a sequence, as if it were the first: what tells it from any other. Held is false if the log
// does not hold it.
func (l *Log) Link(ctx context.Context, seq uint64) (link Chain, held bool, err error) {
	err = l.scan(ctx, seq, seq, func(m *raw) error {
		link, held = Chain{}.Next(m.seq, m.subject, first(m.header, headerMsgID), m.data), true
		return nil
	})
	if _, lost := errors.AsType[*Lost](err); lost {
		return Chain{}, false, nil
	}
	return link, held, err
}

// link computes a chain without allocating.
type link struct {
	chain Chain
	buf   []byte
}

func (l *link) add(seq uint64, subject, id string, data []byte) {
	b := append(l.buf[:0], l.chain[:]...)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = append(append(b, subject...), 0)
	b = append(append(b, id...), 0)
	b = append(b, data...)
	l.chain = sha256.Sum256(b)
	l.buf = b
}
