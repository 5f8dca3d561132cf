package follow

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// numbered gives records one by one, and then an error.
type numbered struct {
	last, next uint64
	end        error
	closed     chan struct{}
}

func (n *numbered) Next(context.Context) ([]events.Record, error) {
	if n.next == n.last {
		return nil, n.end
	}
	n.next++
	return []events.Record{{Seq: n.next}}, nil
}

func (n *numbered) Created() time.Time { return time.Unix(1, 0) }
func (n *numbered) Pending() uint64    { return n.last - n.next }
func (n *numbered) Close()             { close(n.closed) }

// What was read before the end is not necessarily taken; what is taken comes in order, a turn after each, and none while the reader is not
// ready.
func TestLoop(t *testing.T) {
	source := &numbered{last: 5, end: context.DeadlineExceeded, closed: make(chan struct{})}
	var taken []uint64
	held, turns := 0, 0
	hold := errors.New("enough")
	err := Loop{Every: time.Millisecond,
		Ready: func() bool { return len(taken) < 2 },
		Take: func(_ context.Context, b Batch) error {
			if b.Created != source.Created() || b.Behind != 5-b.Records[0].Seq {
				t.Errorf("the batch of %d is of the log of %s, with %d behind it", b.Records[0].Seq, b.Created, b.Behind)
			}
			taken = append(taken, b.Records[0].Seq)
			return nil
		},
		Turn: func(context.Context) error {
			if turns++; len(taken) == 2 {
				held++
			}
			if held > 3 {
				return hold
			}
			return nil
		}}.Run(context.Background(), source)
	if !errors.Is(err, hold) || len(taken) != 2 || taken[0] != 1 || taken[1] != 2 || turns < 4 {
		t.Errorf("it ended with %v after %v in %d turns", err, taken, turns)
	}
	<-source.closed
}

func TestLoopEndsWithItsSource(t *testing.T) {
	source := &numbered{end: errors.New("the log is gone"), closed: make(chan struct{})}
	nothing := func(context.Context) error { return nil }
	if err := (Loop{Every: time.Millisecond, Turn: nothing}).Run(context.Background(), source); !errors.Is(err, source.end) {
		t.Error(err)
	}
	<-source.closed
}

func TestTheSameWarningComesOnceInAWhile(t *testing.T) {
	var out strings.Builder
	now := time.Unix(100, 0)
	w := NewWarnings("auditor", slog.New(slog.NewTextHandler(&out, nil)), func() time.Time { return now })
	for range 3 {
		w.Warn("write", errors.New("no"))
	}
	w.Warn("read", errors.New("no"))
	now = now.Add(warnEvery)
	w.Warn("write", errors.New("no"))
	if got := out.String(); strings.Count(got, "auditor: write") != 2 || strings.Count(got, "auditor: read") != 1 {
		t.Errorf("logged:\n%s", got)
	}
}

// Who is alone is elected at once, and works until its work is done.
func TestAlone(t *testing.T) {
	failed := errors.New("failed")
	if err := (Election{Alone: true}).Turns(context.Background(), func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err := Election{Alone: true}.Turns(ctx, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), ErrLost) {
			t.Error("nobody else can write")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
