package audit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/test/postgrestest"
)

// Who waits for the lock of the schemas ends with words, and leaves nothing behind that would take it later.
func TestTheLockIsWaitedForAWhile(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := postgres.Open(postgrestest.URL(t), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	has, err := lock(ctx, pool, lockWithin)
	if err != nil {
		t.Fatal(err)
	}
	for within := 100 * time.Millisecond; ; within *= 2 { // a busy machine needs some of it to connect
		_, err := lock(ctx, pool, within)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("while another has it: %v", err)
		}
		if strings.Contains(err.Error(), "another process has had the lock") {
			break
		}
	}
	err = has.Conn().Close(ctx)
	has.Release()
	if err != nil {
		t.Fatal(err)
	}
	if err := locked(ctx, pool, func(conn *pgxpool.Conn) error { return conn.Ping(ctx) }); err != nil {
		t.Errorf("when it is free: %v", err)
	}
	again, err := lock(ctx, pool, lockWithin)
	if err != nil {
		t.Fatalf("when it was given back: %v", err)
	}
	again.Release()
}
