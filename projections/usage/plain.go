package usage

import "strings"

// Plain keeps text in a CSV from being taken for a formula by what opens the file.
func Plain(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
