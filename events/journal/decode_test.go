package journal_test

import (
	"encoding/json"
	"strings"
	"testing"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

func TestMessageIsACloudEvent(t *testing.T) {
	ev := reserve(gateway, "acme")
	ev.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	m, err := journal.Encode(ev, gateway)
	if err != nil {
		t.Fatal(err)
	}
	// Binary mode as the CloudEvents binding says: ce-<attribute> headers, the content type, and the data as the payload.
	got := ce.New(m.Header.Get("ce-specversion"))
	for name, values := range m.Header {
		attribute, ok := strings.CutPrefix(name, "ce-")
		if !ok {
			continue
		}
		switch attribute {
		case "specversion":
		case "id":
			got.SetID(values[0])
		case "type":
			got.SetType(values[0])
		case "source":
			got.SetSource(values[0])
		case "subject":
			got.SetSubject(values[0])
		default:
			got.SetExtension(attribute, values[0])
		}
	}
	if err := got.SetData(m.Header.Get("content-type"), json.RawMessage(m.Data)); err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Errorf("no valid CloudEvent: %v", err)
	}
	if got.ID() != ev.ID || got.Type() != "weir.reserve.v1" || got.Source() != string(gateway) || got.Subject() != ev.Subject ||
		got.DataContentType() != "application/json" || got.Extensions()["traceparent"] != ev.TraceParent {
		t.Errorf("attributes: %s", got)
	}
	records := journal.Decode(m.Subject, m.Header, m.Data, 7, 1_800_000_000)
	want := []events.Record{{Seq: 7, At: 1_800_000_000, Gateway: gateway, Event: ev}}
	if diff := cmp.Diff(want, records); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestPackIsACloudEventsBatch(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	sent := map[string]events.Event{}
	for _, ev := range []events.Event{reserve(gateway, "acme"), release(gateway, "beta", newID()), final(gateway, "acme", newID())} {
		sent[ev.ID] = ev
		submit(t, p, newResults(), ev)
	}
	run(t, p)
	flush(t, p)
	m := stored(t, b, 1)
	if got := m.Header.Get("content-type"); got != "application/cloudevents-batch+json" {
		t.Errorf("content type %q", got)
	}
	var batch []ce.Event
	if err := json.Unmarshal(m.Data, &batch); err != nil {
		t.Fatal(err)
	}
	if len(batch) != len(sent) {
		t.Fatalf("%d events in the batch, want %d", len(batch), len(sent))
	}
	for _, got := range batch {
		if err := got.Validate(); err != nil {
			t.Errorf("event %s: %v", got.ID(), err)
		}
		if want := sent[got.ID()]; got.Extensions()["org"] != string(want.Org) || got.Subject() != want.Subject {
			t.Errorf("event %s: org %v, subject %q", got.ID(), got.Extensions()["org"], got.Subject())
		}
	}
	for _, rec := range everything(t, l) {
		want := events.Record{Seq: 1, Index: rec.Index, At: rec.At, Gateway: gateway, Event: sent[rec.ID]}
		if diff := cmp.Diff(want, rec); diff != "" {
			t.Errorf("decoded (-want +got):\n%s", diff)
		}
	}
}

// message is a valid lease that a test spoils.
func message() (subject string, h nats.Header, data string) {
	return "acct._.lease." + string(gateway), nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"e1"}, "ce-type": {"weir.lease.v1"}, "ce-source": {string(gateway)},
		"content-type": {"application/json"}, "Nats-Msg-Id": {"e1"},
	}, `{"gateway":"` + string(gateway) + `","epoch":1,"ttl_ms":10000}`
}

func TestWhatMayNotBeFoldedHasAFault(t *testing.T) {
	pack := "acct._.pack." + string(gateway)
	batch := []string{"application/cloudevents-batch+json"}
	element := `{"specversion":"1.0","id":"e1","source":"x","type":"weir.lease.v1","org":"_","data":{"gateway":"` + string(gateway) + `","epoch":1}}`
	tests := []struct {
		name  string
		spoil func(subject *string, h nats.Header, data *string)
		fault string // of each record; "" for none
		n     int
	}{
		{"nothing is wrong", func(*string, nats.Header, *string) {}, "", 1},
		{"a foreign subject", func(s *string, _ nats.Header, _ *string) { *s = "other._.lease" }, `does not begin with "acct."`, 1},
		{"no org", func(s *string, _ nats.Header, _ *string) { *s = "acct.-bad.lease" }, "org", 1},
		{"another kind", func(s *string, _ nats.Header, _ *string) { *s = "acct._.release." + string(gateway) }, "kind lease under the subject of release", 1},
		{"another gateway", func(s *string, _ nats.Header, _ *string) { *s = "acct._.lease.gw-other" }, `under the subject of "gw-other"`, 1},
		{"no headers", func(_ *string, h nats.Header, _ *string) { clear(h) }, "no ce-id", 1},
		{"no id", func(_ *string, h nats.Header, _ *string) { h.Del("ce-id") }, "no ce-id", 1},
		{"another version", func(_ *string, h nats.Header, _ *string) { h.Set("ce-specversion", "0.3") }, "ce-specversion", 1},
		{"an unknown type from a gateway", func(_ *string, h nats.Header, _ *string) { h.Set("ce-type", "weir.lease.v2") }, "kind unknown from a gateway", 1},
		{"unreadable data", func(_ *string, _ nats.Header, d *string) { *d = `{"gateway":` }, "read data of weir.lease.v1", 1},
		{"no data", func(_ *string, _ nats.Header, d *string) { *d = "" }, "read data of weir.lease.v1", 1},
		{"a pack under a kind", func(_ *string, h nats.Header, d *string) { h["content-type"] = batch; *d = "[" + element + "]" }, "a pack under", 1},
		{"a pack", func(s *string, h nats.Header, d *string) {
			*s, h["content-type"], *d = pack, batch, "["+element+","+element+"]"
		}, "", 2},
		{"a pack with a charset", func(s *string, h nats.Header, d *string) {
			*s, h["content-type"], *d = pack, []string{"application/cloudevents-batch+json; charset=utf-8"}, "["+element+"]"
		}, "", 1},
		{"a pack of no type", func(s *string, h nats.Header, d *string) { *s, *d = pack, "["+element+"]" }, `content type "application/json"`, 1},
		{"a pack of no gateway", func(s *string, h nats.Header, d *string) {
			*s, h["content-type"], *d = "acct._.pack", batch, "["+element+"]"
		}, "no gateway's", 1},
		{"a pack of an org", func(s *string, h nats.Header, d *string) {
			*s, h["content-type"], *d = "acct.acme.pack."+string(gateway), batch, "["+element+"]"
		}, "no gateway's", 1},
		{"an empty pack", func(s *string, h nats.Header, d *string) { *s, h["content-type"], *d = pack, batch, "[]" }, "empty pack", 1},
		{"a pack cut short", func(s *string, h nats.Header, d *string) { *s, h["content-type"], *d = pack, batch, "["+element }, "read pack", 1},
		{"a pack of strange things", func(s *string, h nats.Header, d *string) {
			*s, h["content-type"], *d = pack, batch, `[1,{},{"id":"x"},{"id":"x","org":"_"}]`
		}, "*", 4},
		{"a fence in a pack", func(s *string, h nats.Header, d *string) {
			*s, h["content-type"] = pack, batch
			*d = `[{"specversion":"1.0","id":"e1","source":"x","type":"weir.fence.v1","org":"acme","data":{"org":"acme","version":1}}]`
		}, "kind fence from a gateway", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			subject, h, data := message()
			tt.spoil(&subject, h, &data)
			records := journal.Decode(subject, h, []byte(data), 42, 99)
			if len(records) != tt.n {
				t.Fatalf("%d records, want %d", len(records), tt.n)
			}
			for i, rec := range records {
				if rec.Seq != 42 || rec.At != 99 || rec.Index != i {
					t.Errorf("record %d stands at %d/%d, time %d", i, rec.Seq, rec.Index, rec.At)
				}
				switch {
				case tt.fault == "" && rec.Fault != "":
					t.Errorf("record %d: %s", i, rec.Fault)
				case tt.fault != "" && rec.Fault == "", tt.fault != "*" && !strings.Contains(rec.Fault, tt.fault):
					t.Errorf("record %d: fault %q, want %q", i, rec.Fault, tt.fault)
				}
			}
		})
	}
}

func TestUnreadableDataIsKept(t *testing.T) {
	subject, h, _ := message()
	rec := journal.Decode(subject, h, []byte(`{"gateway":`), 1, 1)[0]
	if want := (&events.Unknown{Type: "weir.lease.v1", Raw: `{"gateway":`}); !cmp.Equal(rec.Data, events.Data(want)) {
		t.Errorf("data %+v, want %+v", rec.Data, want)
	}
	// A kind of a later version that is no gateway's is kept and is no fault: the fold passes it on.
	rec = journal.Decode("acct._.fresh", nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"e1"}, "ce-type": {"weir.fresh.v1"}}, []byte(`{"a":1}`), 1, 1)[0]
	if want := (&events.Unknown{Type: "weir.fresh.v1", Raw: `{"a":1}`}); !cmp.Equal(rec.Data, events.Data(want)) || rec.Fault != "" {
		t.Errorf("data %+v, fault %q; want %+v", rec.Data, rec.Fault, want)
	}
}

func FuzzDecode(f *testing.F) {
	subject, h, data := message()
	f.Add(subject, h.Get("content-type"), h.Get("ce-type"), []byte(data))
	f.Add("acct._.pack.gw", "application/cloudevents-batch+json", "", []byte(`[{"id":"e1","org":"_","type":"weir.tick.v1","data":{}}]`))
	f.Fuzz(func(t *testing.T, subject, content, ceType string, data []byte) {
		h := nats.Header{"content-type": {content}, "ce-type": {ceType}, "ce-id": {"e"}, "ce-specversion": {"1.0"}}
		records := journal.Decode(subject, h, data, 1, 2)
		if len(records) == 0 {
			t.Fatal("no record")
		}
		for _, rec := range records {
			if rec.Fault == "" && rec.Data == nil {
				t.Fatal("no data and no fault")
			}
			if rec.Fault == "" && !rec.Org.Valid() {
				t.Fatalf("org %q and no fault", rec.Org)
			}
		}
	})
}
