// Package sql holds the migrations of Weir's PostgreSQL schema, as goose reads them. A migration that has been released never changes.
package sql

import "embed"

// Migrations are NNNNN_what.sql, applied in the order of their numbers to the schema that the connection's search path names first.
//
//go:embed *.sql
var Migrations embed.FS
