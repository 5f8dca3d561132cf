package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/generation"
)

// What is rare among many requests is found without looking at the others.
func TestWhatIsRareIsFoundByAnIndex(t *testing.T) {
	d := open(t)
	s := d.store("a", now)
	d.write(s, []generation.Row{row(eventstest.RequestID(1), 1)}, 1)
	const many = 20_000
	if _, err := d.pool.Exec(d.ctx, `INSERT INTO `+d.serving()+`.generations
		SELECT $1::timestamptz + i * interval '1 ms', 'id' || i, 'acme', null, null, CASE WHEN i % 5000 = 0 THEN 'rare' ELSE 'k' END, CASE WHEN i % 5000 = 0 THEN 'rare' ELSE 'm' END,
			null, null, null, $1, null, 'ended', CASE WHEN i % 5000 = 0 THEN 'failed' ELSE 'completed' END, 200, null, null, null, null, null, 0, 0, null,
			0, 0, 0, 0, 0, 0, null, true, 1, 7, 1, 1, ''
		FROM generate_series(1, $2::int) i`, now, many); err != nil {
		t.Fatal(err)
	}
	if _, err := d.pool.Exec(d.ctx, "ANALYZE "+d.serving()+".generations"); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{"key = 'rare'", "key = 'none'", "model = 'rare'", "model = 'none'", "outcome = 'failed'", "outcome = 'in_progress'",
		"model = 'm' AND outcome = 'failed'", "key = 'k' AND outcome = 'failed'"} {
		rows, err := d.pool.Query(d.ctx, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT id FROM generations WHERE org = 'acme' AND "+where+" ORDER BY made DESC, id DESC LIMIT 101")
		if err != nil {
			t.Fatal(err)
		}
		var plan strings.Builder
		looked := 0
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			var n int
			if _, err := fmt.Sscanf(strings.TrimSpace(line), "Rows Removed by Filter: %d", &n); err == nil {
				looked += n
			}
			plan.WriteString(line + "\n")
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if looked > many/100 {
			t.Errorf("%s: %d rows were looked at in vain:\n%s", where, looked, &plan)
		}
	}
}

// serving gives the name of the schema that serves.
func (d *database) serving() (name string) {
	d.Helper()
	if err := d.pool.QueryRow(d.ctx, "SELECT name FROM audit_schemas WHERE state = 'serving'").Scan(&name); err != nil {
		d.Fatal(err)
	}
	return name
}
