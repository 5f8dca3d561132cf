package projector_test

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/projector"
)

// skewed is a clock that is off.
type skewed struct{ by atomic.Int64 }

func (s *skewed) now() time.Time { return time.Now().Add(time.Duration(s.by.Load())) }

func TestTheStreamsClock(t *testing.T) {
	for _, sign := range []time.Duration{1, -1} {
		w := newWorld(t)
		var clock skewed
		p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.Now, c.ReadOnly = clock.now, true })
		got := &inbox{}
		p.AnswerLocal(gateway, got.take)
		ready(t, p)
		send := func() events.RequestID {
			ev := reserve(gateway, claim(rpm, events.Window, 1000))
			submit(t, w.sender, ev)
			flush(t, w.sender)
			return id(ev)
		}
		got.of(t, send())

		clock.by.Store(int64(5 * sign * time.Second))
		eventually(t, "an alarm", func() bool { send(); time.Sleep(50 * time.Millisecond); ok, _ := p.Ready(); return !ok })
		got.of(t, send()) // answered all the same
		clock.by.Store(0)
		eventually(t, "no alarm", func() bool { send(); ok, _ := p.Ready(); return ok })

		clock.by.Store(int64(40 * sign * time.Second))
		eventually(t, "a stop", func() bool { send(); time.Sleep(50 * time.Millisecond); ok, _ := p.Answering(); return !ok })
		_, why := p.Answering()
		before := len(got.list())
		last := send()
		folded(t, p, w.last())
		if len(got.list()) != before {
			t.Errorf("answered with a clock that is off by %s", 40*sign*time.Second)
		}
		clock.by.Store(0)
		send()
		folded(t, p, w.last())
		if ok, _ := p.Answering(); ok || !strings.Contains(why, "weir recover") {
			t.Errorf("answering without a recover: %s", why)
		}
		w.recover()
		got.of(t, send())
		if v, ok := p.Ask(last, 0); !ok || !v.Admitted {
			t.Errorf("what was decided meanwhile is not known: %+v %v", v, ok)
		}
	}
}

// recover says in the log that an operator has put right what was wrong.
func (w *world) recover() {
	w.t.Helper()
	if _, err := w.log.Publish(w.t.Context(), events.Event{ID: "recover/1", Data: &events.Recover{Reason: "clock set", Windows: "empty"}}); err != nil {
		w.t.Fatal(err)
	}
}

// stopsFor steps a projector's clock and waits until it no longer answers.
func (w *world) stopsFor(p *running, clock *skewed, by time.Duration) {
	w.t.Helper()
	clock.by.Store(int64(by))
	eventually(w.t, "a stop", func() bool {
		submit(w.t, w.sender, reserve(gateway, claim(rpm, events.Window, 1000)))
		flush(w.t, w.sender)
		ok, _ := p.Answering()
		return !ok
	})
}

// Two projectors fold one log, and the clock of the one that writes steps. A gateway that has joined over TCP goes on getting every verdict, the
// other becomes the writer, and only who asks for it hears that one may not answer.
func TestOneProjectorsOwnClockIsWrong(t *testing.T) {
	for _, by := range []time.Duration{time.Minute, -time.Minute} {
		w := newWorld(t)
		var clock skewed
		wrong := w.project("one-aaaaaaaa", func(c *projector.Config) { c.Now = clock.now })
		eventually(t, "a writer", func() bool { return wrong.Stats().Writer })
		right := w.project("two-aaaaaaaa", nil)
		ready(t, wrong)
		ready(t, right)
		const far = events.Gateway("far-abcdefgh")
		nc := w.join(string(far))
		got, sender := listen(t, nc, far), w.publisher(far)
		w.stopsFor(wrong, &clock, by)
		eventually(t, "the other writes", func() bool { return right.Stats().Writer && !wrong.Stats().Writer })
		for range 20 {
			ev := reserve(far, claim(rpm, events.Window, 100_000))
			submit(t, sender, ev)
			if v := got.of(t, id(ev)); !v.Admitted {
				t.Errorf("%+v", v)
			}
			if a := request(t, nc, access.SubjectAsk, projector.Question{Gateway: far, Request: id(ev)}); a["outcome"] != "admitted" {
				t.Errorf("asked again: %v", a)
			}
		}
		if ok, why := right.Ready(); !ok {
			t.Errorf("the one whose clock is right is not ready: %s", why)
		}
		eventually(t, "one says why it is silent", func() bool {
			why, _ := request(t, nc, access.SubjectAsk, projector.Question{Gateway: far, Why: true})["why"].(string)
			return strings.Contains(why, "clock") && strings.Contains(why, "one-aaaaaaaa")
		})
		clock.by.Store(0)
		w.recover()
		ready(t, wrong)
	}
}

// A projector that may not answer is silent, and says why to who asks for that; so does one that was started again, until a recover.
func TestAStopForTheClockOutlastsTheProcess(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	var clock skewed
	start := func(name string, dir string) *running {
		p := w.project(name, func(c *projector.Config) { c.Now, c.DataDir, c.SnapshotEvery = clock.now, dir, time.Hour })
		eventually(t, "read to the end", func() bool { return p.Stats().Seq >= w.last() })
		return p
	}
	p := start("one-aaaaaaaa", dir)
	ready(t, p)
	w.stopsFor(p, &clock, time.Minute)
	const far = events.Gateway("far-abcdefgh")
	nc := w.join(string(far))
	says := func() string {
		why, _ := request(t, nc, access.SubjectAsk, projector.Question{Gateway: far, Why: true})["why"].(string)
		return why
	}
	if why := says(); !strings.Contains(why, "clock") || !strings.Contains(why, "weir recover") {
		t.Errorf("it says %q", why)
	}
	if m, err := nc.Request(access.SubjectAsk, []byte(`{"gateway":"far-abcdefgh","request":"x"}`), 200*time.Millisecond); err == nil {
		t.Errorf("it answers %s", m.Data)
	}
	eventually(t, "a snapshot at once", func() bool { return len(files(t, dir)) > 0 })
	killed := t.TempDir() // what a process that is killed now leaves behind
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	clock.by.Store(0)
	for name, left := range map[string]string{"two-aaaaaaaa": killed, "three-aaaaaaaa": dir} {
		p := start(name, left)
		if ok, _ := p.Answering(); ok || !strings.Contains(says(), "one-aaaaaaaa") {
			t.Errorf("%s answers: %t; it says %q", name, ok, says())
		}
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
	}
	w.recover()
	ready(t, start("four-aaaaaaaa", dir))
	if why := says(); why != "" {
		t.Errorf("after a recover it says %q", why)
	}
}
