package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/test/e2e/stack"
)

// patience is how long a client waits: far longer than anything may take.
const patience = 30 * time.Second

// mostWait is how long a request may take that is refused for want of the log: the bound of a reserve, and room for a busy machine.
const mostWait = 8 * time.Second

var client = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}

// result is what one client was told.
type result struct {
	id      string
	org     string
	gateway int
	began   time.Time
	took    time.Duration
	status  int // 0: the connection broke
	code    string
	bounded bool
	aged    bool // the key was let in as it was last known
	whole   bool // the answer came to its end
}

// tokensOf is the output that a client of an org allows, where it is not 16.
var tokensOf = map[string]int{"large": 8000}

// ask asks for the model that is named as a key's org is, which the key is named as, too.
func ask(url, org string) (*stack.Answer, error) { return askFor(url, org, org) }

func askFor(url, key, model string) (*stack.Answer, error) {
	tokens := cmp.Or(tokensOf[key], 16)
	r, err := stack.Request{URL: url + "/v1/chat/completions", Key: key,
		Body: fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":"hello"}]}`, model, tokens)}.New()
	if err != nil {
		return nil, err
	}
	a, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return &stack.Answer{Status: a.StatusCode, Header: a.Header, Body: body}, err
}

// load is clients that ask one request after the other.
type load struct {
	mu   sync.Mutex
	all  []result
	stop context.CancelFunc
	done sync.WaitGroup
}

// run starts clients, as many of each org, spread over the gateways. The orgs default to the strict and the open one.
func (w *world) run(clients int, orgs ...string) *load {
	if len(orgs) == 0 {
		orgs = []string{"strict", "open"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel}
	for i := range clients {
		org := orgs[i%len(orgs)]
		gateway := i / len(orgs) % len(w.urls)
		l.done.Go(func() {
			for ctx.Err() == nil {
				r := l.one(w.urls[gateway], org)
				r.gateway = gateway
				l.mu.Lock()
				l.all = append(l.all, r)
				l.mu.Unlock()
				pause := think
				if r.status != http.StatusOK {
					pause = max(pause, 100*time.Millisecond)
				}
				time.Sleep(pause)
			}
		})
	}
	return l
}

func (l *load) one(url, org string) result {
	r := result{org: org, began: time.Now()}
	a, err := ask(url, org)
	r.took = time.Since(r.began)
	if a == nil {
		return r
	}
	var e struct{ Error struct{ Code string } }
	_ = json.Unmarshal(a.Body, &e) // a success has none
	r.id, r.status, r.code, r.whole, r.bounded = a.ID(), a.Status, e.Error.Code, err == nil, a.Header.Get("X-Tm-Admission-Mode") == "bounded_local"
	r.aged = a.Header.Get("X-Tm-Authorization-Mode") == "bounded_snapshot"
	return r
}

// end stops the clients and gives what they were told.
func (l *load) end() []result {
	l.stop()
	l.done.Wait()
	client.CloseIdleConnections()
	return l.all
}

// apart is how long after the last failure another is of its own time.
const apart = time.Second

// say sums up what failed: for how long, and with what.
func say(all []result) string {
	var failures []result
	failed, bounded, aged := map[string]int{}, 0, 0
	for i := range all {
		r := &all[i]
		if r.bounded {
			bounded++
		}
		if r.aged && r.status == http.StatusOK {
			aged++
		}
		if r.status == http.StatusOK && r.whole || r.status == http.StatusTooManyRequests && r.org == "strict" {
			continue // its limit is lower than its load
		}
		word := strings.TrimSpace(fmt.Sprintf("%d %s", r.status, r.code))
		if r.status == 0 || !r.whole {
			word = "broken connections"
		}
		failed[word]++
		failures = append(failures, *r)
	}
	words := make([]string, 0, len(failed))
	for w, n := range failed {
		words = append(words, fmt.Sprintf("%d× %s", n, w))
	}
	sort.Strings(words)
	if len(words) == 0 {
		words = []string{"none"}
	}
	modes := fmt.Sprintf("%d bounded_local", bounded)
	if aged > 0 {
		modes += fmt.Sprintf(", %d bounded_snapshot", aged)
	}
	return fmt.Sprintf("%d requests, %s; requests failed for %s: %s", len(all), modes, spans(failures), strings.Join(words, ", "))
}

// spans is for how long requests failed: from the first to the last of those that failed together.
func spans(failures []result) string {
	sort.Slice(failures, func(i, j int) bool { return failures[i].began.Before(failures[j].began) })
	var sum time.Duration
	var first, last time.Time
	n := 0
	for i := range failures {
		r := &failures[i]
		if n == 0 || r.began.Sub(last) > apart {
			sum, first, n = sum+last.Sub(first), r.began, n+1
		}
		if end := r.began.Add(r.took); end.After(last) {
			last = end
		}
	}
	sum += last.Sub(first)
	if n > 1 {
		return fmt.Sprintf("%.1f s in %d times", sum.Seconds(), n)
	}
	return fmt.Sprintf("%.1f s", sum.Seconds())
}
