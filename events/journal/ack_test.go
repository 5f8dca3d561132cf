package journal

import (
	"testing"

	"github.com/nats-io/nats.go"
)

func TestReadAck(t *testing.T) {
	tests := []struct {
		data      string
		seq       uint64
		duplicate bool
		failed    bool
		full      bool
		maybe     bool
	}{
		{data: `{"stream":"ACCOUNTING","seq":7}`, seq: 7},
		{data: `{"stream":"ACCOUNTING", "seq": 18446744073709551615}`, seq: 18446744073709551615},
		{data: `{"stream":"ACCOUNTING","domain":"hub","seq":7}`, seq: 7},
		{data: `{"stream":"ACCOUNTING","seq":7,"duplicate":true}`, seq: 7, duplicate: true},
		{data: `{"seq":7,"stream":"ACCOUNTING","duplicate":true}`, seq: 7, duplicate: true},
		{data: `{"stream":"\"seq\":9","seq":7}`, seq: 7},
		{data: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"ACCOUNTING","seq":0}`, failed: true, full: true},
		{data: `{"stream":"ACCOUNTING","seq":0,"error":{"code":500,"err_code":10047,"description":"insufficient storage resources available"}}`, failed: true, full: true},
		{data: `{"stream":"ACCOUNTING","seq":5,"error":{"code":503,"err_code":10077,"description":"input/output error"}}`, failed: true, maybe: true},
		{data: `{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`, failed: true, maybe: true},
		{data: `{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}`, failed: true},
		{data: `{"stream":"ACCOUNTING"}`, failed: true, maybe: true},
		{data: `nonsense`, failed: true, maybe: true},
		{data: ``, failed: true},
	}
	for _, tt := range tests {
		m := &nats.Msg{Data: []byte(tt.data)}
		if tt.data == "" {
			m.Header = nats.Header{"Status": {"503"}}
		}
		a := readAck(m)
		if failed := a.err != nil || a.silent; failed != tt.failed {
			t.Errorf("%s: %+v", tt.data, a)
			continue
		}
		if !tt.failed && (a.seq != tt.seq || a.duplicate != tt.duplicate) {
			t.Errorf("%s: sequence %d, duplicate %t; want %d, %t", tt.data, a.seq, a.duplicate, tt.seq, tt.duplicate)
		}
		if tt.failed {
			if err := a.failed("publish", false); Full(err) != tt.full || MaybeAppended(err) != tt.maybe {
				t.Errorf("%v: full %t, maybe appended %t; want %t, %t", err, Full(err), MaybeAppended(err), tt.full, tt.maybe)
			}
		}
	}
}
