// Package strictyaml reads configuration written in YAML: every value that is wrong is reported at once, with its file, line,
// field, value and the rule that it breaks. Keys that are unknown or stand twice are faults. Any field can be given by another
// source instead, such as the environment.
package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxFaults is how many faults of a file are kept: more help nobody.
const MaxFaults = 100

// maxShown bounds a value inside a message, in bytes.
const maxShown = 80

// Pos is a place in a file. The zero Pos is no place.
type Pos struct {
	File string
	Line int // from 1; 0: not a line of a file
}

// String gives "file:line", or what there is of it.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Fault is one thing that is wrong, or as a warning worth a look.
type Fault struct {
	Pos
	Field string // as "models[0].price.input"
	Value string // as written; empty when there is none
	Rule  string // what holds for it
}

// Error gives "file:line: field is value: rule".
func (f Fault) Error() string {
	var b strings.Builder
	if at := f.Pos.String(); at != "" {
		b.WriteString(at + ": ")
	}
	if f.Field != "" {
		b.WriteString(f.Field)
		if f.Value != "" {
			b.WriteString(" is " + shorten(f.Value))
		}
		b.WriteString(": ")
	}
	b.WriteString(f.Rule)
	return b.String()
}

// String is Error, for warnings.
func (f Fault) String() string { return f.Error() }

func shorten(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if strings.ContainsAny(s, "\n\r\t") || s == "" {
		s = fmt.Sprintf("%q", s)
	}
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}

// Faults are all the faults of one reading, in the order in which they were found.
type Faults []Fault

// Error gives one fault a line.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i := range fs {
		lines[i] = fs[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Add notes a fault.
func (fs *Faults) Add(f Fault) {
	if len(*fs) < MaxFaults {
		*fs = append(*fs, f)
	}
}

// Err is the faults as an error, file by file in the order of their lines; nil when there are none.
func (fs Faults) Err() error {
	if len(fs) == 0 {
		return nil
	}
	place := map[string]int{}
	for _, f := range fs {
		if _, seen := place[f.File]; !seen {
			place[f.File] = len(place)
		}
	}
	sorted := slices.Clone(fs)
	slices.SortStableFunc(sorted, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(place[a.File], place[b.File]), cmp.Compare(a.Line, b.Line))
	})
	return sorted
}

// Take adds the faults that err holds; another error becomes a fault of its own.
func (fs *Faults) Take(err error) {
	if err == nil {
		return
	}
	var more Faults
	if !errors.As(err, &more) {
		more = Faults{{Rule: err.Error()}}
	}
	for _, f := range more {
		fs.Add(f)
	}
}
