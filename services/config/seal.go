package config

import (
	"fmt"
	"os"

	"github.com/weirhq/weir/gateway/authority/seal"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Seal says where the keys are that provider credentials are sealed with. They are read at the start and at each reload.
type Seal struct {
	// KeysFile is a file of keys, newest first, that its owner alone may read. Defaults to none.
	KeysFile string

	// KeysEnv is the environment variable with the keys, where there is no file. Defaults to WEIR_SEAL_KEYS.
	KeysEnv string
}

const (
	defaultSealEnv = "WEIR_SEAL_KEYS"
	maxKeysFile    = 64 << 10
)

func (l *loader) seal(m *strictyaml.Map) {
	s := &l.c.Seal
	if n := m.Get("keys_file"); n.Str("") != "" {
		s.KeysFile = l.path(n, "")
	}
	if n := m.Get("keys_env"); n.Str("") != "" {
		if s.KeysEnv = n.Str(""); s.KeysFile != "" {
			n.Wrong("must not stand beside keys_file")
		} else if l.env(s.KeysEnv) == "" {
			l.warn(n.Pos(), n.Path(), s.KeysEnv, "names a variable that is not set")
		}
	}
	m.End()
}

// Keys reads the keys; nil if none are configured. env gives a variable's value.
func (s *Seal) Keys(env func(string) string) (*seal.Keys, error) {
	text, from := env(s.KeysEnv), s.KeysEnv
	if s.KeysFile == "" && text == "" {
		return nil, nil
	}
	if s.KeysFile != "" {
		from = "seal.keys_file " + s.KeysFile
		info, err := os.Stat(s.KeysFile)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot be read: %s", from, reason(err))
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 || info.Size() > maxKeysFile {
			return nil, fmt.Errorf("%s: has mode %04o and %d bytes: must be for its owner alone (0600) and at most %d", from, mode, info.Size(), maxKeysFile)
		}
		b, err := os.ReadFile(s.KeysFile)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot be read: %s", from, reason(err))
		}
		text = string(b)
	}
	keys, err := seal.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return keys, nil
}
