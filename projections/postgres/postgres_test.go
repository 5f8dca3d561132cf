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

// A binary uses a schema that has exactly what it knows: not an empty one, not an older and not a newer one.
func TestFits(t *testing.T) {
	ctx, url := context.Background(), postgrestest.URL(t)
	pool, err := Open(url, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	m, err := Migrate(url, sql.Migrations)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	do := func(f func(context.Context) error) {
		t.Helper()
		if err := f(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		do   func(context.Context) error
		want string
	}{
		{func(context.Context) error { return nil }, "run weir migrate"},
		{func(ctx context.Context) error { _, err := m.Up(ctx); return err }, ""},
		{func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)")
			return err
		}, "has version 99999"},
		{func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "DELETE FROM goose_db_version WHERE version_id IN (99999, 1)")
			return err
		}, "lacks version 1,"},
	} {
		do(c.do)
		if why, err := Fits(ctx, pool, sql.Migrations); err != nil || (c.want == "") != (why == "") || !strings.Contains(why, c.want) {
			t.Errorf("%q (%v), want %q", why, err, c.want)
		}
	}
	pool.Close()
	if why, err := Fits(ctx, pool, sql.Migrations); err == nil || why != "" {
		t.Errorf("%q (%v) of a database that cannot be asked", why, err)
	}
}
