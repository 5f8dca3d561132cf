package inquiry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/admission"
)

// nothing is a log without a record.
type nothing struct{}

func (nothing) Read(context.Context, uint64, func(*events.Record) error) error              { return nil }
func (nothing) SeqAt(context.Context, int64) (uint64, error)                                { return 0, nil }
func (nothing) FoldBefore(context.Context, uint64) (*admission.Fold, error)                 { return nil, nil }
func (nothing) Serve(string, func(http.ResponseWriter, *http.Request, manage.Caller) error) {}

// slowly is a client that reads slowly: something happens before it has taken anything in.
type slowly struct {
	*httptest.ResponseRecorder
	meanwhile func()
}

func (s slowly) Write(p []byte) (int, error) {
	s.meanwhile()
	return s.ResponseRecorder.Write(p)
}

// Others may ask while an answer is on its way, however long it takes.
func TestASlowClientKeepsNobodyFromAsking(t *testing.T) {
	h := Mount(nothing{}, Config{Log: nothing{}, Now: time.Now})
	for _, accept := range []string{"", "application/x-ndjson"} {
		r := httptest.NewRequest("POST", "/api/simulate", strings.NewReader(`{"scale":"2x"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", accept)
		wrote := false
		w := slowly{httptest.NewRecorder(), func() {
			if wrote = true; len(h.readers) != 0 {
				t.Errorf("%q: it holds %d places while it answers", accept, len(h.readers))
			}
		}}
		if err := h.simulate(w, r, manage.Caller{Operator: true}); err != nil || !wrote || w.Code != http.StatusOK {
			t.Errorf("%q: %v, wrote %t: %d %s", accept, err, wrote, w.Code, w.Body)
		}
	}
}
