package postgrestest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/test/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// Each test has a schema of its own: what one makes, another does not see.
func TestASchemaOfItsOwn(t *testing.T) {
	for range 2 {
		t.Run("one", func(t *testing.T) {
			conn, err := pgx.Connect(t.Context(), postgrestest.URL(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), "CREATE TABLE ledger (nano bigint)"); err != nil {
				t.Fatal(err)
			}
			var schema string
			if err := conn.QueryRow(t.Context(), "INSERT INTO ledger VALUES (1) RETURNING current_schema()").Scan(&schema); err != nil {
				t.Fatal(err)
			}
			if schema == "public" {
				t.Error("the table is in the schema that all share")
			}
		})
	}
}
