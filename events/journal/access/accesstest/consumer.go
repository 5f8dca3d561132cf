package accesstest

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
)

// consumer reads the stream of billing lines by a durable consumer of its own, goes on where it was, and may do nothing else.
func (c Cluster) consumer(t *testing.T) {
	biller := c.Join(t, "biller")
	for _, org := range []string{"zeta", "beta", "zeta"} {
		biller.Store("usage."+org, "{}")
	}
	p := c.Join(t, "invoices")
	durable, err := p.JS.CreateOrUpdateConsumer(timeout(t), access.StreamUsage, jetstream.ConsumerConfig{Durable: "invoices", AckPolicy: jetstream.AckExplicitPolicy,
		FilterSubject: "usage.zeta", AckWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var seq uint64
	take := func(of jetstream.Consumer, ack func(jetstream.Msg) error) {
		t.Helper()
		for deadline := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
			m, err := of.Next(jetstream.FetchMaxWait(Patience))
			if err != nil {
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
				continue // a consumer that was made this moment may have no leader yet
			}
			meta, err := m.Metadata()
			if err != nil || m.Subject() != "usage.zeta" || meta.Sequence.Stream <= seq {
				t.Fatalf("%s %+v %v after %d", m.Subject(), meta, err, seq)
			}
			seq = meta.Sequence.Stream
			if err := ack(m); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	take(durable, func(m jetstream.Msg) error { return m.DoubleAck(timeout(t)) })
	p.Unrefused()
	p.Close()

	p = c.Join(t, "invoices") // goes on
	if durable, err = p.JS.Consumer(timeout(t), access.StreamUsage, "invoices"); err != nil {
		t.Fatal(err)
	}
	take(durable, func(m jetstream.Msg) error { return m.DoubleAck(timeout(t)) })
	info, err := durable.Info(timeout(t))
	if err != nil || info.NumAckPending != 0 || info.NumPending != 0 || info.AckFloor.Stream != seq {
		t.Errorf("%+v %v", info, err)
	}
	p.Unrefused()
	c.consumerLimits(t, p)
	if err := p.JS.DeleteConsumer(timeout(t), access.StreamUsage, "invoices"); err != nil {
		t.Errorf("removing its own: %v", err)
	}
}

func (c Cluster) consumerLimits(t *testing.T, p *Peer) {
	t.Helper()
	refuses := func(what string, cfg jetstream.ConsumerConfig) {
		t.Helper()
		if _, err := p.JS.CreateOrUpdateConsumer(timeout(t), access.StreamUsage, cfg); err == nil || !strings.Contains(err.Error(), "door") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refuses("without acknowledgements", jetstream.ConsumerConfig{Durable: "invoices", AckPolicy: jetstream.AckNonePolicy})
	refuses("too much at once", jetstream.ConsumerConfig{Durable: "invoices", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1 << 20})
	refuses("in memory", jetstream.ConsumerConfig{Durable: "invoices", AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true})
	for what, body := range map[string]string{
		"pushed":         `{"stream_name":"USAGE","config":{"durable_name":"invoices","deliver_policy":"all","ack_policy":"explicit","replay_policy":"instant","deliver_subject":"usage.acme"}}`,
		"another stream": `{"stream_name":"ACCOUNTING","config":{"durable_name":"invoices","deliver_policy":"all","ack_policy":"explicit","replay_policy":"instant"}}`,
		"another name":   `{"stream_name":"USAGE","config":{"durable_name":"ledgers","deliver_policy":"all","ack_policy":"explicit","replay_policy":"instant"}}`,
		"no name":        `{"stream_name":"USAGE","config":{"deliver_policy":"all","ack_policy":"explicit","replay_policy":"instant"}}`,
	} {
		m, err := p.RequestWithContext(timeout(t), "$JS.API.CONSUMER.CREATE.USAGE.invoices", []byte(body))
		if err != nil || !strings.Contains(string(m.Data), "door: ") {
			t.Errorf("%s: %v %v", what, m, err)
		}
	}
	p.Unrefused()
	p.MayNotPublish("usage.acme", "usage.invoices", "acct.acme.reserve."+p.Name, "acct._.credit", "verdict.gw-one-abcdefgh", "verdict.ask", "live.ask", "log.ask",
		"$KV.authority.x", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.ACCOUNTING", "$JS.API.STREAM.DELETE.USAGE", "$JS.API.STREAM.PURGE.USAGE",
		"$JS.API.STREAM.UPDATE.USAGE", "$JS.API.STREAM.MSG.GET.USAGE", "$JS.API.STREAM.MSG.DELETE.USAGE", "$JS.API.DIRECT.GET.ACCOUNTING", "$JS.API.DIRECT.GET.KV_authority", "$JS.API.DIRECT.GET.KV_generations.x",
		"$JS.API.CONSUMER.CREATE.USAGE", "$JS.API.CONSUMER.CREATE.USAGE.ledgers", "$JS.API.CONSUMER.CREATE.USAGE.export-meter", "$JS.API.CONSUMER.CREATE.ACCOUNTING.invoices",
		"$JS.API.CONSUMER.DURABLE.CREATE.USAGE.invoices", "$JS.API.CONSUMER.DELETE.USAGE.ledgers", "$JS.API.CONSUMER.DELETE.USAGE.export-meter", "$JS.API.CONSUMER.MSG.NEXT.USAGE.ledgers",
		"$JS.API.CONSUMER.MSG.NEXT.ACCOUNTING.invoices", "$JS.API.CONSUMER.RESET.USAGE.invoices", "$JS.ACK.USAGE.ledgers.1.1.1.1.1", "$JS.ACK.ACCOUNTING.invoices.1.1.1.1.1", "$JS.FC.USAGE.x")
	p.MayNotSubscribe("usage.>", "acct.>", "verdict.*", "$KV.>", "_INBOX.gw-one-abcdefgh.>", "_INBOX.>", ">")
	other := c.Join(t, "ledgers")
	if _, err := other.JS.Consumer(timeout(t), access.StreamUsage, "ledgers"); err == nil {
		t.Error("a consumer that nobody made is there")
	}
	other.MayNotPublish("$JS.API.CONSUMER.MSG.NEXT.USAGE.invoices", "$JS.API.CONSUMER.INFO.USAGE.invoices")
	for name := range map[string]bool{"monitor": true, "gw-one": true} { // neither may make or ask such a consumer
		q := c.Join(t, name)
		q.MayNotPublish("$JS.API.CONSUMER.MSG.NEXT.USAGE.invoices")
	}
}
