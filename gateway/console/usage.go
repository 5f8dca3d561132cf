package console

import (
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/url"

	"github.com/weirhq/weir/projections/insight"
)

// usageRow is what was used in one hour or day of one key, model and price, as /api/usage has it. Sums may be larger than 64 bits.
type usageRow struct {
	Start    string      `json:"start"`
	Key      string      `json:"key"`
	Model    string      `json:"model"`
	Price    string      `json:"price_version"`
	Requests int64       `json:"requests"`
	Open     int64       `json:"unsettled"`
	Input    json.Number `json:"input_tokens"`
	Cached   json.Number `json:"cached_tokens"`
	Output   json.Number `json:"output_tokens"`
	Cost     json.Number `json:"cost_nano"`

	Share int64 `json:"-"` // of the most expensive row, in percent
}

// usageSum is what all rows come to.
type usageSum struct {
	Requests                    int64
	Input, Cached, Output, Cost big.Int
}

// usagePage is what the page of usage shows.
type usagePage struct {
	named
	Filter  form
	By      string
	From    string `json:"from"`
	To      string `json:"to"`
	AsOf    string `json:"as_of"`
	Rows    []usageRow
	Sum     usageSum
	CSV     string
	Problem string
	Away    string // why there is none
}

// maxUsageRows is how many rows the page has at most; the CSV has all.
const maxUsageRows = 500

// MaxRows is how many rows the page has.
func (p *usagePage) MaxRows() int { return maxUsageRows }

// Shown are the rows that the page has.
func (p *usagePage) Shown() []usageRow { return p.Rows[:min(len(p.Rows), maxUsageRows)] }

func (h *Handler) usage() { h.page("GET /usage", h.showUsage) }

func (h *Handler) showUsage(w http.ResponseWriter, r *http.Request, who *me) error {
	q := r.URL.Query()
	models, keys := h.names(r)
	p := usagePage{named: keys, By: "hour", Filter: form{Fields: []field{
		{Name: "by", Label: "By", Options: choose([]option{{Value: "hour", Label: "Hour"}, {Value: "day", Label: "Day"}}, q.Get("by"))},
		{Name: "key", Label: "Key", Options: choose(keys, q.Get("key"))}, {Name: "model", Label: "Model", Options: choose(models, q.Get("model"))},
		{Name: "from", Label: "From (UTC)", Type: "datetime-local", Value: q.Get("from")}, {Name: "to", Label: "To (UTC)", Type: "datetime-local", Value: q.Get("to")}}}}
	if q.Get("by") == "day" {
		p.By = "day"
	}
	ask := url.Values{"by": {p.By}}
	for _, name := range []string{"key", "model", "from", "to"} {
		if v := q.Get(name); v != "" {
			ask.Set(name, utcField(v))
		}
	}
	p.CSV = "/api/usage?" + with(ask, "format", "csv")
	err := h.get(r, "/api/usage?"+ask.Encode(), &p)
	if no, ok := errors.AsType[*failure](err); ok {
		switch no.Status {
		case http.StatusBadRequest:
			p.Problem, err = sentence(no.Message), nil
		case http.StatusNotFound, http.StatusNotImplemented:
			p.Away, err = sentence(no.Message), nil
		}
	}
	if err != nil {
		return err
	}
	p.add()
	return h.show(w, http.StatusOK, "usage", &page{Title: "Usage", Section: "usage", Me: who, Data: &p})
}

// add sums the rows up.
func (p *usagePage) add() {
	var most big.Int
	of := func(n json.Number) *big.Int {
		v, ok := new(big.Int).SetString(n.String(), 10)
		if !ok {
			return new(big.Int)
		}
		return v
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		p.Sum.Requests += r.Requests
		p.Sum.Input.Add(&p.Sum.Input, of(r.Input))
		p.Sum.Cached.Add(&p.Sum.Cached, of(r.Cached))
		p.Sum.Output.Add(&p.Sum.Output, of(r.Output))
		cost := of(r.Cost)
		p.Sum.Cost.Add(&p.Sum.Cost, cost)
		if cost.Cmp(&most) > 0 {
			most.Set(cost)
		}
	}
	if most.Sign() <= 0 {
		return
	}
	for i := range p.Rows {
		share := new(big.Int).Mul(of(p.Rows[i].Cost), big.NewInt(100))
		p.Rows[i].Share = share.Quo(share, &most).Int64()
	}
}

// bigCount writes a sum with its thousands apart, and bigMoney nano-dollars.
func bigCount(v any) string {
	switch v := v.(type) {
	case json.Number:
		return apart(v.String())
	case big.Int:
		return apart(v.String())
	}
	return ""
}

func bigMoney(v any) string {
	var n big.Int
	switch v := v.(type) {
	case json.Number:
		n.SetString(v.String(), 10)
	case big.Int:
		n.Set(&v)
	}
	if n.IsInt64() {
		return insight.Money(n.Int64())
	}
	dollars := new(big.Int).Quo(&n, big.NewInt(1_000_000_000))
	return "$" + apart(dollars.String())
}
