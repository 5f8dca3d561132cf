package postgres

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/test/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

func TestMigrations(t *testing.T) {
	ctx := context.Background()
	m, err := Migrate(postgrestest.URL(t), sql.Migrations)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	have, newest, err := m.Versions(ctx)
	if err != nil || have != 0 || newest == 0 {
		t.Fatalf("an empty schema has version %d of %d (%v)", have, newest, err)
	}
	all, err := m.Up(ctx)
	if err != nil || len(all) == 0 || all[len(all)-1] != newest {
		t.Fatalf("applied %v (%v), newest %d", all, err, newest)
	}
	if applied, err := m.Up(ctx); err != nil || len(applied) != 0 {
		t.Fatalf("applied %v again (%v)", applied, err)
	}
	for _, v := range slices.Backward(all) { // every migration can be taken back, and applied again
		if got, err := m.Down(ctx); err != nil || got != v {
			t.Fatalf("down from %d: %d (%v)", v, got, err)
		}
	}
	if got, err := m.Down(ctx); err != nil || got != 0 {
		t.Fatalf("down from nothing: %d (%v)", got, err)
	}
	if applied, err := m.Up(ctx); err != nil || !slices.Equal(applied, all) {
		t.Fatalf("applied %v after all was taken back (%v)", applied, err)
	}
}

func TestURLIsNotShown(t *testing.T) {
	for _, url := range []string{"postgres://me:secret@%zz/x", "secret"} {
		if _, err := Open(url, "weir"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
		if _, err := Migrate(url, sql.Migrations); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
