package biller

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"

	"github.com/weirhq/weir/projections/usage"
)

// CSV writes lines to files, one a day of their time in UTC: <Dir>/usage-2006-01-02.csv, each line once. A row is on the disk before the line
// counts as taken.
type CSV struct {
	// Dir is the directory. There is no default.
	Dir string

	held map[string]*runs // by file: the stream sequences of its rows
}

// maxFiles bounds the files whose rows are remembered.
const maxFiles = 64

var columns = []string{"stream_seq", "id", "revision", "state", "time", "org", "workspace", "principal", "key", "model", "deployment", "operation",
	"request", "attempt", "quality", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "cost_nano",
	"change_input_tokens", "change_cached_tokens", "change_cache_write_tokens", "change_output_tokens", "change_reasoning_tokens",
	"change_cost_nano", "price_version", "reason"}

// Export writes rows that are not in their files yet.
func (c *CSV) Export(_ context.Context, records []Record) (taken int, err error) {
	rows := map[string]*bytes.Buffer{}
	var order []string
	for i := range records {
		r := &records[i]
		name := "usage-" + instant(r.Line.Time)[:len("2006-01-02")] + ".csv"
		held, err := c.open(name)
		if err != nil {
			return 0, err
		}
		if rows[name] == nil {
			rows[name] = &bytes.Buffer{}
			order = append(order, name)
		}
		if !held.add(r.Seq) {
			continue
		}
		w := csv.NewWriter(rows[name])
		_ = w.Write(row(r)) // to memory
		w.Flush()
	}
	for _, name := range order {
		if rows[name].Len() == 0 {
			continue
		}
		if err := appendTo(filepath.Join(c.Dir, name), rows[name].Bytes()); err != nil {
			clear(c.held) // what they hold is read again
			return 0, fmt.Errorf("write %s: %w", name, err)
		}
	}
	return len(records), nil
}

// runs is a set of sequences, most of which follow one another.
type runs struct{ all []run }

type run struct{ first, last uint64 }

// add adds a sequence, and says whether it was not in it.
func (s *runs) add(seq uint64) bool {
	i := sort.Search(len(s.all), func(i int) bool { return s.all[i].last+1 >= seq }) // the first that holds it, or that it may extend
	switch {
	case i < len(s.all) && s.all[i].first <= seq && seq <= s.all[i].last:
		return false
	case i < len(s.all) && s.all[i].last+1 == seq:
		s.all[i].last = seq
		if i+1 < len(s.all) && s.all[i+1].first == seq+1 {
			s.all[i].last = s.all[i+1].last
			s.all = slices.Delete(s.all, i+1, i+2)
		}
	case i < len(s.all) && s.all[i].first == seq+1:
		s.all[i].first = seq
	default:
		s.all = slices.Insert(s.all, i, run{seq, seq})
	}
	return true
}

// open makes a file, or cuts off what a crash left of a row; it gives the sequences of its rows.
func (c *CSV) open(name string) (*runs, error) {
	if held := c.held[name]; held != nil {
		return held, nil
	}
	if c.held == nil {
		c.held = map[string]*runs{}
	}
	if len(c.held) >= maxFiles {
		clear(c.held)
	}
	path := filepath.Join(c.Dir, name)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	rows, whole, held := csv.NewReader(bytes.NewReader(text)), int64(0), &runs{}
	rows.FieldsPerRecord = len(columns)
	for {
		fields, err := rows.Read()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, csv.ErrFieldCount) && !errors.Is(err, csv.ErrQuote) {
				return nil, fmt.Errorf("read %s: %w", path, err)
			}
			break
		}
		if end := rows.InputOffset(); end == 0 || text[end-1] != '\n' {
			break
		}
		whole = rows.InputOffset()
		if n, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
			held.add(n)
		}
	}
	if whole < int64(len(text)) {
		if err := os.Truncate(path, whole); err != nil {
			return nil, err
		}
	}
	if whole == 0 {
		var head bytes.Buffer
		w := csv.NewWriter(&head)
		_ = w.Write(columns) // to memory
		w.Flush()
		if err := appendTo(path, head.Bytes()); err != nil {
			return nil, err
		}
	}
	c.held[name] = held
	return held, nil
}

func row(r *Record) []string {
	l := &r.Line
	n := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{strconv.FormatUint(r.Seq, 10), r.ID, n(l.Revision), string(l.State), instant(l.Time), string(l.Org), usage.Plain(l.Workspace), usage.Plain(l.Principal),
		usage.Plain(l.Key), usage.Plain(l.Model), usage.Plain(l.Deployment), l.Operation, string(l.Request), n(l.Attempt), l.Quality,
		n(l.Usage.InputTokens), n(l.Usage.CachedTokens), n(l.Usage.CacheWriteTokens), n(l.Usage.OutputTokens), n(l.Usage.ReasoningTokens), n(l.CostNano),
		n(l.Change.InputTokens), n(l.Change.CachedTokens), n(l.Change.CacheWriteTokens), n(l.Change.OutputTokens), n(l.Change.ReasoningTokens),
		n(l.Change.CostNano), usage.Plain(l.PriceVersion), usage.Plain(l.Reason)}
}
