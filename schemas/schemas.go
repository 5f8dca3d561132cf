// Package schemas holds Weir's contracts as data: what events look like, for everyone who reads the log and for the tests that hold
// the code against it. README.md says how they may change.
package schemas

import (
	"embed"
	"io/fs"
)

//go:embed events/*.schema.json events/examples/*.json
var files embed.FS

// Events gives the JSON Schemas (draft 2020-12) of events, <name>.schema.json, and under examples/ the golden examples,
// <name>.json or <name>-<what>.json. A name is a kind, or verdict, event, pack or (a schema only) defs.
func Events() fs.FS {
	sub, err := fs.Sub(files, "events")
	if err != nil { // cannot be: the directory is compiled in
		panic("schemas: " + err.Error())
	}
	return sub
}
