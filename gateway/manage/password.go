package manage

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/argon2"
)

// How passwords are hashed: argon2id with 19 MiB and two passes, about 30 ms of one core.
const (
	argonMemory  = 19 << 10 // KiB
	argonTime    = 2
	argonThreads = 1
	saltBytes    = 16
	hashBytes    = 32

	// Lengths of passwords in bytes.
	minPassword = 10
	maxPassword = 256

	// hashers bounds the passwords that are hashed at once, so that signing in cannot take the machine.
	hashers = 2

	// Bounds of what an encoded hash may ask for.
	maxArgonMemory = 256 << 10
	maxArgonTime   = 16
)

// passwords hashes passwords, a few at a time.
type passwords struct {
	random io.Reader
	turns  chan struct{}
	nobody string // the hash of no password, so that unknown people take as long as known ones
}

func newPasswords(random io.Reader) *passwords {
	p := &passwords{random: random, turns: make(chan struct{}, hashers)}
	p.nobody = encode(argonMemory, argonTime, argonThreads, make([]byte, saltBytes), make([]byte, hashBytes))
	return p
}

func encode(memory, time uint32, threads uint8, salt, hash []byte) string {
	text := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, memory, time, threads, text.EncodeToString(salt), text.EncodeToString(hash))
}

func (p *passwords) turn(ctx context.Context) (done func(), err error) {
	select {
	case p.turns <- struct{}{}:
		return func() { <-p.turns }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to hash a password: %w", ctx.Err())
	}
}

// hash gives the encoded hash of a password.
func (p *passwords) hash(ctx context.Context, password string) (string, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	salt := make([]byte, saltBytes)
	if _, err := io.ReadFull(p.random, salt); err != nil {
		return "", fmt.Errorf("make a salt: %w", err)
	}
	return encode(argonMemory, argonTime, argonThreads, salt, argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, hashBytes)), nil
}

// matches says whether a password has an encoded hash; with an empty one it takes as long and is never right.
func (p *passwords) matches(ctx context.Context, password, encoded string) (bool, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	known := encoded != ""
	if !known {
		encoded = p.nobody
	}
	parts := strings.Split(encoded, "$")
	var version, memory, time uint32
	var threads uint8
	if len(parts) != 6 || parts[1] != "argon2id" {
		return false, fmt.Errorf("read a password's hash: it is not argon2id")
	}
	_, err1 := fmt.Sscanf(parts[2], "v=%d", &version)
	_, err2 := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &memory, &time, &threads)
	salt, err3 := base64.RawStdEncoding.DecodeString(parts[4])
	want, err4 := base64.RawStdEncoding.DecodeString(parts[5])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || version != argon2.Version || memory == 0 || memory > maxArgonMemory ||
		time == 0 || time > maxArgonTime || threads == 0 || len(want) != hashBytes {
		return false, fmt.Errorf("read a password's hash: its parameters are not valid")
	}
	got := argon2.IDKey([]byte(password), salt, time, memory, threads, hashBytes)
	return subtle.ConstantTimeCompare(got, want) == 1 && known, nil
}
