package biller

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// takesAll is a receiver that takes every line.
type takesAll struct{ ids map[string]int }

func (r *takesAll) Export(_ context.Context, records []Record) (int, error) {
	for i := range records {
		r.ids[records[i].ID]++
	}
	return len(records), nil
}

func letterOf(t *testing.T, id string) []byte {
	t.Helper()
	text, err := json.Marshal(letter{ID: id, Reason: "no", Line: json.RawMessage(`{"id":"l","request":"r"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// TestRetryWaitsForWhoAdds: a letter whose file was open already when it was set aside is sent too.
func TestRetryWaitsForWhoAdds(t *testing.T) {
	path := LetterFile(t.TempDir(), "meter")
	if err := keep(path, letterOf(t, "first")); err != nil {
		t.Fatal(err)
	}
	file, err := openEnd(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	got, done := &takesAll{map[string]int{}}, make(chan error)
	go func() {
		_, _, err := Retry(t.Context(), path, got)
		done <- err
	}()
	for {
		if _, err := os.Stat(path + retryingSuffix); err == nil {
			break
		}
	}
	if err := writeEnd(file, letterOf(t, "late")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got.ids["first"] != 1 || got.ids["late"] != 1 {
		t.Errorf("sent: %v", got.ids)
	}
}

// TestNoLetterIsLost retries again and again while letters are added: each is sent once.
func TestNoLetterIsLost(t *testing.T) {
	const writers, each = 4, 100
	path := filepath.Join(t.TempDir(), folder, "meter.dead.jsonl")
	var adding sync.WaitGroup
	for w := range writers {
		adding.Go(func() {
			for i := range each {
				if err := keep(path, letterOf(t, fmt.Sprintf("%d-%d", w, i))); err != nil {
					t.Errorf("keep: %v", err)
				}
			}
		})
	}
	added := make(chan struct{})
	go func() { adding.Wait(); close(added) }()
	got := &takesAll{map[string]int{}}
	for last := false; !last; {
		select {
		case <-added:
			last = true
		default:
		}
		if _, _, err := Retry(t.Context(), path, got); err != nil {
			t.Fatal(err)
		}
	}
	if len(got.ids) != writers*each {
		t.Errorf("%d letters of %d were sent", len(got.ids), writers*each)
	}
	for id, n := range got.ids {
		if n != 1 {
			t.Errorf("%s was sent %d times", id, n)
		}
	}
}
