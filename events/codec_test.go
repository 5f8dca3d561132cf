package events

import (
	"fmt"
	"reflect"
	"testing"
)

func sampleReserve() *Reserve {
	d := &Reserve{Request: "0193a5a0-7b1c-7def-8123-456789abcdef", Org: "acme", Key: "k1", Model: "qwen3", Operation: "chat", Gateway: "gw-1a2b3c4d",
		Epoch: 1, Fence: 3, ParkMS: 250, MaxMS: DefaultMaxMS, PriceVersion: "2026-01-01", Estimate: Estimate{InputTokens: 120, OutputTokens: 256, OutputDeclared: true, TextBytes: 400}}
	for i, m := range []string{"org/acme/rpm", "key/k1/rpm", "model/qwen3/occupancy", "model/qwen3/inflight", "org/acme/tpm", "key/k1/tpm", "org/acme/concurrency", "key/k1/concurrency"} {
		c := Claim{Meter: Meter(m), Kind: Window, WindowMS: DefaultWindowMS, Basis: BasisRequest, Amount: int64(i + 1), Limit: 1000, HasLimit: true}
		switch i {
		case 2, 3:
			c.Kind, c.Basis, c.Life, c.Park = Gauge, BasisFootprint, LifeLocal, true
		case 4, 5:
			c.Basis = BasisTotal
		case 6, 7:
			c.Kind, c.Basis = Gauge, BasisSlot
		}
		d.Claims = append(d.Claims, c)
	}
	return d
}

func TestReserveRoundTrip(t *testing.T) {
	want := sampleReserve()
	text := AppendData(nil, want)
	got, err := DecodeData("weir.reserve.v1", text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v\nwant %+v", got, want)
	}
}

func TestPackRoundTrip(t *testing.T) {
	var evs []Event
	for i := range 3 {
		evs = append(evs, Event{ID: fmt.Sprint("id", i), Source: "gw", Subject: "r", Org: "acme", Data: sampleReserve()})
	}
	got, err := DecodePack(AppendPack(nil, evs))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, evs) {
		t.Fatalf("got %+v\nwant %+v", got, evs)
	}
}

func BenchmarkEncodeReserve(b *testing.B) {
	d := sampleReserve()
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendData(buf[:0], d)
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkDecodeReserve(b *testing.B) {
	text := AppendData(nil, sampleReserve())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeData("weir.reserve.v1", text); err != nil {
			b.Fatal(err)
		}
	}
}
