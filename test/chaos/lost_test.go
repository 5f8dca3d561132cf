package chaos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// loss is one way of losing the log.
type loss struct {
	how      string
	database bool   // authority and audit are in PostgreSQL
	windows  string // what the operator says of windows
}

// unknown says whether nothing is left that tells what was held.
func (l loss) unknown() bool { return l.how == "all data deleted" && !l.database }

// anew says whether the log is an empty one afterwards.
func (l loss) anew() bool {
	return l.how == "deleted" || l.how == "emptied" || l.how == "all data deleted"
}

// prepaid has money for far more than it spends here, and capped may spend far more in a day.
const lossCredit = 10_000_000_000 // nano-dollars

func lossSettings() string {
	operators, _ := authority.Hash(authority.HashKey("sk-weir-chaos-operator")).MarshalText() // of a hash there is nothing to fail
	return fmt.Sprintf(`
orgs:
  strict: {limits: {concurrency: 4, outage_mode: closed}}
  open: {limits: {rpm: 1000000, concurrency: 1000}}
  prepaid: {billing: prepaid, limits: {rpm: 1000000, concurrency: 1000}}
  capped: {limits: {rpm: 1000000, concurrency: 1000, spend_day: "1000"}}
admin_keys: [%q]
models:
  - {id: strict, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: open, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: prepaid, max_output_tokens: 16, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: capped, max_output_tokens: 16, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
`, operators)
}

var lossKeys = []stack.Key{{Name: "strict"}, {Name: "open"}, {Name: "prepaid"}, {Name: "capped"}}

// The log is deleted, emptied, restored from a copy, swapped, cut or damaged: nothing is admitted until an operator has recovered it. Then
// balances and spend caps are what the provider's own record comes to, and log and audit agree.
func TestTheLogIsNotTheRightOne(t *testing.T) {
	t.Parallel()
	for _, row := range losses {
		name := row.how
		if row.database {
			name += " with PostgreSQL"
		}
		t.Run(name+" and windows "+row.windows, func(t *testing.T) {
			t.Parallel()
			lose(t, row)
		})
	}
}

func lose(t *testing.T, row loss) {
	w := newWorld(t, setup{weir: lossSettings(), keys: lossKeys, database: row.database})
	w.state(events.Event{ID: "credit/prepaid", Org: "prepaid", Data: &events.Credit{Org: "prepaid", AmountNano: lossCredit, Reference: "first"}})
	w.until("the prepaid org is admitted", func() bool { ok, _ := w.admits(0, "prepaid"); return ok })
	backup := ""
	if row.how == "restored from a backup" {
		w.core.stop()
		backup = filepath.Join(t.TempDir(), "backup")
		w.run1("cp", "-a", w.broken("broker"), backup)
		w.core.start()
		w.ready()
	}
	before := w.run(clients(), "strict", "open", "prepaid", "capped")
	time.Sleep(3 * time.Second)
	told := before.end()
	time.Sleep(4 * time.Second) // until the marks are on the disk, and the audit has everything
	if row.database {
		w.core.kill() // without a last snapshot: the audit must tell
	} else {
		w.core.stop()
	}
	w.damage(row, backup)
	w.core.start()
	w.listening()
	began := time.Now()
	why := w.stopped()
	w.core.stop() // started again, it is still not the right one
	w.core.start()
	w.listening()
	time.Sleep(time.Second)
	if ok, _ := w.admits(0, "open"); ok {
		t.Error("the open org was admitted")
	}
	w.core.stop()
	said := w.recover(row)
	since := time.Now()
	spent := w.spent()
	w.core.start()
	w.listening()
	at := w.recovered()
	w.restored(row, at, spent)
	w.windows(row, at, since)
	w.ready()
	failed := time.Since(began)
	after := w.run(clients(), "strict", "open", "prepaid", "capped")
	time.Sleep(2 * time.Second)
	all := after.end()
	w.clients(told, 0)
	lost := w.check(all, checks{since: since})
	w.proven()
	line(t, fmt.Sprintf("the log was %s (PostgreSQL: %t, windows %s), then recovered", row.how, row.database, row.windows),
		fmt.Sprintf("nothing was admitted for %.1f s (%s)", failed.Seconds(), strings.TrimSpace(why)), lost+"; balances and spend caps as the upstream has them")
	if t.Failed() {
		t.Log(said)
	}
}

// broken is a path in the data of the log's process.
func (w *world) broken(parts ...string) string {
	return filepath.Join(append([]string{w.setup.data}, parts...)...)
}

func (w *world) run1(name string, args ...string) string {
	w.tb.Helper()
	text, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		w.tb.Fatalf("%s %v: %v\n%s", name, args, err, text)
	}
	return string(text)
}

// blocks is the newest block of the log.
func (w *world) block() string {
	w.tb.Helper()
	blocks, err := filepath.Glob(w.broken("broker", "jetstream", "*", "streams", "ACCOUNTING", "msgs", "*.blk"))
	if err != nil || len(blocks) == 0 {
		w.tb.Fatalf("no blocks: %v", err)
	}
	return blocks[len(blocks)-1]
}

// damage loses the log.
func (w *world) damage(row loss, backup string) {
	w.tb.Helper()
	broker := w.broken("broker")
	switch row.how {
	case "deleted":
		w.run1("rm", "-r", broker)
	case "all data deleted":
		w.run1("rm", "-r", w.setup.data)
	case "restored from a backup":
		w.run1("rm", "-r", broker)
		w.run1("cp", "-a", backup, broker)
	case "another's":
		other := newWorld(w.tb, setup{})
		other.core.stop()
		w.run1("rm", "-r", broker)
		w.run1("cp", "-a", other.broken("broker"), broker)
	case "emptied":
		w.run1("rm", "-r", filepath.Join(broker, "jetstream"))
		w.must(os.MkdirAll(filepath.Join(broker, "jetstream"), 0o700))
	case "flipped": // a bit in the middle, and the index that says where each message begins
		b, err := os.ReadFile(w.block())
		w.must(err)
		b[len(b)/2] ^= 0x10
		w.must(os.WriteFile(w.block(), b, 0o600))
		w.must(os.RemoveAll(filepath.Join(filepath.Dir(w.block()), "index.db")))
	case "cut":
		info, err := os.Stat(w.block())
		w.must(err)
		w.must(os.Truncate(w.block(), info.Size()/2))
		w.must(os.RemoveAll(filepath.Join(filepath.Dir(w.block()), "index.db")))
	}
}

// stopped checks that nothing is admitted, and that /ready says why.
func (w *world) stopped() (why string) {
	w.tb.Helper()
	for i := range w.gateways {
		w.until(fmt.Sprintf("/ready of gateway %d says why", i), func() bool {
			status, text := w.why(i)
			why = text
			return status == http.StatusServiceUnavailable && strings.Contains(text, "weir recover")
		}, &why)
		for _, key := range lossKeys {
			if a, err := ask(w.urls[i], key.Name); err != nil || a.Status != http.StatusServiceUnavailable || a.Error().Code != "gateway_infrastructure" {
				w.tb.Errorf("gateway %d admitted the %s org: %+v, %v", i, key.Name, a, err)
			}
		}
	}
	return why
}

// recover runs the command; where nothing tells what was held it must refuse at first.
func (w *world) recover(row loss) string {
	w.tb.Helper()
	args := []string{"recover", "--config", filepath.Join(w.dir, "core", "weir.yaml"), "--windows", row.windows, "--reason", "the log was " + row.how}
	if row.unknown() {
		if text, err := exec.Command(binary, args...).CombinedOutput(); err == nil || !strings.Contains(string(text), "--accept-unknown") {
			w.tb.Errorf("out of nothing it was recovered: %v\n%s", err, text)
		}
		args = append(args, "--accept-unknown")
	}
	return w.run1(binary, args...)
}

// spent is what the calls of each org cost, by the upstream's own record.
func (w *world) spent() map[events.Org]int64 {
	w.tb.Helper()
	w.until("no call is under way", func() bool { return w.provider.Ledger().Totals().Live == 0 })
	all := map[events.Org]int64{}
	for _, c := range w.provider.Ledger().Calls() {
		if c.Outcome == provider.Completed {
			all[events.Org(c.Model)] += c.Input*1000 + c.Output*2000
		}
	}
	return all
}

// recovered folds the log up to its recovery.
func (w *world) recovered() *admission.Fold {
	w.tb.Helper()
	nc, log, _ := w.join(access.Auditor)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	f, done := admission.New(), false
	w.must(log.Read(ctx, 0, 0, func(r events.Record) error {
		if !done {
			f.Apply(&r)
		}
		_, is := r.Data.(*events.Recover)
		done = done || is
		return nil
	}))
	if !done {
		w.tb.Fatal("the log holds no recovery")
	}
	return f
}

// restored checks balances and spend caps against the upstream's record, to the nano-dollar.
func (w *world) restored(row loss, at *admission.Fold, spent map[events.Org]int64) {
	w.tb.Helper()
	balance, _ := at.Reading(events.NewMeter(events.ScopeOrg, "balance", "prepaid"))
	budget, _ := at.Reading(events.NewMeter(events.ScopeOrg, "spend-day", "capped"))
	want, used := lossCredit-spent["prepaid"], spent["capped"]
	if row.unknown() {
		want, used = 0, 0
	}
	if balance.Total != want || budget.Used != used {
		w.tb.Errorf("recovered: the balance is %d, want %d; the spend of the day %d, want %d", balance.Total, want, budget.Used, used)
	}
	if spent["prepaid"] == 0 || spent["capped"] == 0 {
		w.tb.Errorf("nothing was spent: %v", spent)
	}
}

// windows checks what the operator said of them: full, nothing that has a limit passes for 61 s; empty, they begin unused where the log does.
func (w *world) windows(row loss, at *admission.Fold, since time.Time) {
	w.tb.Helper()
	if row.windows == "full" {
		if at.Recovering() == 0 {
			w.tb.Error("windows do not count as full")
		}
		for end := time.Now().Add(2 * within); ; time.Sleep(time.Second) {
			if ok, why := w.admits(0, "open"); ok {
				break
			} else if time.Now().After(end) {
				w.tb.Fatalf("the open org is not admitted: %s", why)
			}
		}
		if passed := time.Since(since); passed < within {
			w.tb.Errorf("a window that counts as full let a request pass after %s", passed)
		}
		return
	}
	if m, _ := at.Reading(events.NewMeter(events.ScopeOrg, "rpm", "open")); row.anew() && m.Used != 0 || at.Recovering() != 0 {
		w.tb.Errorf("windows that begin unused are at %d", m.Used)
	}
}

// proven has the command say that log, audit and billing agree.
func (w *world) proven() {
	w.tb.Helper()
	w.core.stop()
	defer w.core.start()
	if said := w.run1(binary, "verify", "--config", filepath.Join(w.dir, "core", "weir.yaml")); !strings.Contains(said, "no difference") {
		w.tb.Errorf("weir verify:\n%s", said)
	}
}
