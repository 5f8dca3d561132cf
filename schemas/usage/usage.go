// Package usage holds the form of billing lines as data: what the stream USAGE carries and exports send. They change as the schemas of
// events do: ../README.md.
package usage

import "embed"

//go:embed *.schema.json examples/*.json
var files embed.FS

// Files gives the JSON Schemas (draft 2020-12): usage.schema.json, the data of a line, and event.schema.json, a line as a CloudEvent in
// JSON; and under examples/ golden examples, <name>.json or <name>-<what>.json.
func Files() embed.FS { return files }
