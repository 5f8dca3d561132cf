// Package sql holds the migrations of Weir's PostgreSQL schema, as goose reads them. A migration that has been released never changes.
package sql

import (
	"embed"
	"io/fs"
)

// Migrations are NNNNN_what.sql, applied in the order of their numbers to the schema that the connection's search path names first.
//
//go:embed *.sql
var Migrations embed.FS

//go:embed audit/*.sql
var audit embed.FS

// Audit gives the migrations of a schema of audit records. It is apart from the base schema, so that another can be built beside it.
func Audit() fs.FS {
	sub, err := fs.Sub(audit, "audit")
	if err != nil { // cannot be: the folder is embedded
		panic("sql: " + err.Error())
	}
	return sub
}
