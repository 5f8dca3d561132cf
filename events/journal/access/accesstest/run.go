package accesstest

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
)

// Run tries everything. The broker must be empty.
func Run(t *testing.T, c Cluster) {
	if c.Roles == nil {
		c.Roles = Identities()
	}
	t.Run("who may join", c.authentication)
	t.Run("owners make their streams", c.streams)
	t.Run("gateway states its own facts", c.gatewayStates)
	t.Run("gateway states nothing else", c.gatewayLimits)
	t.Run("gateway hears its verdicts only", c.verdicts)
	t.Run("gateway watches the views", c.watch)
	t.Run("gateway reads no passwords", c.passwords)
	t.Run("answers cannot be aimed", c.reflection)
	t.Run("consumers cannot be aimed", c.consumers)
	t.Run("projector", c.projector)
	t.Run("auditor and biller", c.writers)
	t.Run("operator", c.operator)
	t.Run("manager", c.manager)
	t.Run("monitor", c.monitor)
	t.Run("consumer of billing lines", c.consumer)
}

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

func (c Cluster) authentication(t *testing.T) {
	one, two := c.Secrets["gw-one"].Secret, c.Secrets["gw-two"].Secret
	for what, who := range map[string][2]string{
		"wrong secret":             {"gw-one-abcdefgh", one + "x"},
		"another's secret":         {"gw-one-abcdefgh", two},
		"the hash as a secret":     {"gw-one-abcdefgh", "0000"},
		"no secret":                {"gw-one-abcdefgh", ""},
		"configured name alone":    {"gw-one", one},
		"another's name":           {"gw-two-abcdefgh", one},
		"longer configured name":   {"gw-one-x-abcdefgh", one},
		"short suffix":             {"gw-one-abcdefg", one},
		"long suffix":              {"gw-one-abcdefghi", one},
		"upper case":               {"gw-one-ABCDEFGH", one},
		"wildcard":                 {"gw-one-*", one},
		"a second token":           {"gw-one-abcdefgh.gw-two-abcdefgh", one},
		"new line":                 {"gw-one-abcdefgh\n", one},
		"role":                     {"system", one},
		"own connection, unproven": {"gw-one-abcdefgh", "own.system.00"},
		"nobody":                   {"", ""},
	} {
		nc, err := Connect(c.URL, nats.UserInfo(who[0], who[1]))
		if err == nil {
			nc.Close()
			t.Errorf("%s: %q could join", what, who[0])
		} else if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v, want an authorization violation", what, err)
		}
	}
}

func (c Cluster) streams(t *testing.T) {
	make := func(who string, cfg jetstream.StreamConfig) {
		p := c.Join(t, who)
		if _, err := p.JS.CreateOrUpdateStream(timeout(t), cfg); err != nil {
			t.Fatalf("%s: making %s: %v", who, cfg.Name, err)
		}
		p.Unrefused()
	}
	bucket := func(who, name string) {
		p := c.Join(t, who)
		if _, err := p.JS.CreateOrUpdateKeyValue(timeout(t), jetstream.KeyValueConfig{Bucket: name, Storage: jetstream.FileStorage}); err != nil {
			t.Fatalf("%s: making bucket %s: %v", who, name, err)
		}
		p.Unrefused()
	}
	make("projector", jetstream.StreamConfig{Name: access.StreamAccounting, Subjects: []string{"acct.>"}, DenyDelete: true, DenyPurge: true,
		AllowDirect: true, Duplicates: 2 * time.Minute, Discard: jetstream.DiscardNew, Compression: jetstream.S2Compression, MaxAge: 720 * time.Hour})
	make("biller", jetstream.StreamConfig{Name: access.StreamUsage, Subjects: []string{"usage.>"}, AllowDirect: true})
	for _, name := range []string{access.BucketOccupancy, access.BucketWindows, access.BucketLeases} {
		bucket("projector", name)
	}
	bucket("projector", access.BucketSnapshots)
	bucket("auditor", access.BucketGenerations)
	bucket("auditor", access.BucketEstimator)
	bucket("operator", access.BucketAuthority)
}

func (c Cluster) gatewayStates(t *testing.T) {
	p := c.Join(t, "gw-one")
	for _, kind := range []string{"reserve", "true-up", "release", "refused", "cooldown"} {
		p.Store("acct.acme."+kind+"."+p.Name, "{}")
	}
	p.Store("acct._.lease."+p.Name, "{}")
	p.Store("acct._.tick."+p.Name, "{}")
	seq := p.Store("acct._.pack."+p.Name, "[]")

	// Acknowledgements in the background come back too, and a repeat is seen as one.
	for range 2 {
		f, err := p.JS.PublishAsync("acct.acme.reserve."+p.Name, []byte("{}"), jetstream.WithMsgID("same"))
		if err != nil {
			t.Fatal(err)
		}
		select {
		case ack := <-f.Ok():
			if ack.Sequence != seq+1 {
				t.Errorf("acknowledged %d, want %d", ack.Sequence, seq+1)
			}
		case err := <-f.Err():
			t.Fatal(err)
		case <-time.After(Patience):
			t.Fatal("no acknowledgement")
		}
	}
	p.Unrefused()
}

func (c Cluster) gatewayLimits(t *testing.T) {
	p, other := c.Join(t, "gw-one"), c.Join(t, "gw-two")
	p.MayNotPublish(
		"acct.acme.reserve."+other.Name, "acct.acme.true-up."+other.Name, "acct.acme.release."+other.Name, "acct._.lease."+other.Name,
		"acct._.pack."+other.Name, "acct.acme.pack."+p.Name, "acct.acme.reserve", "acct.acme.reserve."+p.Name+".x",
		"acct.acme.verdicts", "acct._.verdicts", "acct._.verdicts."+p.Name, "acct._.tick",
		"acct.acme.fence", "acct.acme.fence."+p.Name, "acct.acme.credit", "acct._.credit", "acct._.credit."+p.Name, "acct.acme.correction",
		"acct._.recover", "acct._.rules", "usage.acme",
		"verdict."+p.Name, "verdict."+other.Name, "_INBOX."+other.Name+".x", "_R_.x",
		"$KV.occupancy.x", "$KV.windows.x", "$KV.estimator.x", "$KV.authority.x", "$KV.leases.x", "$KV.generations.x", "$KV.snapshots.projector.a",
		"$JS.API.STREAM.CREATE.EVIL", "$JS.API.STREAM.CREATE.ACCOUNTING", "$JS.API.STREAM.UPDATE.ACCOUNTING",
		"$JS.API.STREAM.DELETE.ACCOUNTING", "$JS.API.STREAM.PURGE.ACCOUNTING", "$JS.API.STREAM.DELETE.KV_occupancy",
		"$JS.API.STREAM.PURGE.KV_occupancy", "$JS.API.STREAM.MSG.DELETE.ACCOUNTING", "$JS.API.STREAM.MSG.GET.ACCOUNTING",
		"$JS.API.STREAM.SNAPSHOT.ACCOUNTING", "$JS.API.STREAM.RESTORE.ACCOUNTING", "$JS.API.STREAM.NAMES",
		"$JS.API.DIRECT.GET.ACCOUNTING", "$JS.API.DIRECT.GET.ACCOUNTING.acct.acme.reserve."+p.Name,
		"$JS.API.CONSUMER.CREATE.ACCOUNTING.x", "$JS.API.CONSUMER.DELETE.ACCOUNTING.x", "$JS.API.CONSUMER.MSG.NEXT.KV_occupancy.x",
		"$JS.API.CONSUMER.NAMES.KV_occupancy", "$JS.API.CONSUMER.CREATE.KV_leases.x", "$JS.API.DIRECT.GET.KV_leases", "$JS.API.DIRECT.GET.KV_snapshots.$KV.snapshots.projector.a",
		"$JS.ACK.ACCOUNTING.x", "$SYS.REQ.SERVER.PING")
	p.MayNotSubscribe("verdict."+other.Name, "verdict.*", "verdict.>", "verdict.ask", "live.ask", "_INBOX."+other.Name+".>", "_INBOX.>",
		"acct.>", "acct.acme.reserve."+p.Name, "$KV.>", "$JS.API.CONSUMER.CREATE.>", "$SYS.>", ">")

	// Not even in the group of those who answer questions.
	if _, err := p.QueueSubscribeSync("verdict.ask", "projectors"); err != nil {
		t.Fatal(err)
	}
	p.awaitRefusal("Subscription", "verdict.ask")
}

func (c Cluster) verdicts(t *testing.T) {
	one, two, projector := c.Join(t, "gw-one"), c.Join(t, "gw-two"), c.Join(t, "projector")
	mine, err := one.SubscribeSync("verdict." + one.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := one.FlushTimeout(Patience); err != nil {
		t.Fatal(err)
	}
	for _, who := range []*Peer{two, one} {
		if err := projector.Publish("verdict."+who.Name, []byte(who.Name)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := mine.NextMsg(Patience)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Data) != one.Name || m.Subject != "verdict."+one.Name {
		t.Errorf("got %q under %q, want %q under its own subject", m.Data, m.Subject, one.Name)
	}

	for _, question := range []string{access.SubjectAsk, access.SubjectLive, access.SubjectFind} {
		if _, err := projector.Subscribe(question, func(m *nats.Msg) { _ = m.Respond([]byte("re: " + string(m.Data))) }); err != nil {
			t.Fatal(err)
		}
		if err := projector.FlushTimeout(Patience); err != nil {
			t.Fatal(err)
		}
		answer, err := one.RequestWithContext(timeout(t), question, []byte("hello"))
		if err != nil {
			t.Fatalf("%s: %v", question, err)
		}
		if string(answer.Data) != "re: hello" {
			t.Errorf("%s: answered %q", question, answer.Data)
		}
	}
	one.Unrefused()
	projector.Unrefused()
}

func (c Cluster) watch(t *testing.T) {
	p, projector, operator, auditor := c.Join(t, "gw-one"), c.Join(t, "projector"), c.Join(t, "operator"), c.Join(t, "auditor")
	projector.Put(access.BucketOccupancy, "org/acme/rpm", "1")
	operator.Put(access.BucketAuthority, "r.acme.org", "limits")
	auditor.Put(access.BucketGenerations, "r1", "record")

	for bucket, key := range map[string]string{access.BucketOccupancy: "org/acme/rpm", access.BucketAuthority: "r.acme.org", access.BucketGenerations: "r1"} {
		if _, err := p.Get(bucket, key); err != nil {
			t.Errorf("getting %s of %s: %v", key, bucket, err)
		}
	}
	kv, err := p.JS.KeyValue(timeout(t), access.BucketOccupancy)
	if err != nil {
		t.Fatal(err)
	}
	w, err := kv.WatchAll(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	next := func() jetstream.KeyValueEntry {
		t.Helper()
		select {
		case e := <-w.Updates():
			return e
		case <-time.After(Patience):
			t.Fatal("no update")
		}
		return nil
	}
	if e := next(); e == nil || e.Key() != "org/acme/rpm" || string(e.Value()) != "1" {
		t.Errorf("first update is %v", e)
	}
	if e := next(); e != nil {
		t.Errorf("second update is %v, want the end of what was there", e)
	}
	// Enough for flow control to take part: the broker stops after 2 MiB until the watcher answers.
	const puts = 1000
	value := strings.Repeat("x", 8<<10)
	for k := range puts {
		if _, err := projector.JS.PublishAsync("$KV.occupancy.org/acme/"+strconv.Itoa(k), []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	for k := range puts {
		if e := next(); e == nil || e.Key() != "org/acme/"+strconv.Itoa(k) {
			t.Fatalf("update %d is %v", k, e)
		}
	}
	if err := w.Stop(); err != nil {
		t.Errorf("stopping the watch: %v", err)
	}
	p.Unrefused()
}

// passwords: what people sign in with is in the authority's bucket, under keys that a gateway cannot read in any way.
func (c Cluster) passwords(t *testing.T) {
	p, operator := c.Join(t, "gw-one"), c.Join(t, "operator")
	const secret = "argon2id-of-a-password"
	for _, key := range []string{"u.acme.user.x", "uc.change.0", "s.0123"} {
		operator.Put(access.BucketAuthority, key, secret)
	}
	operator.Put(access.BucketAuthority, "r.acme.key.x", "a key")
	stream, subject := access.BucketStream(access.BucketAuthority), "$KV.authority."
	direct := "$JS.API.DIRECT.GET." + stream
	for _, key := range []string{"u.acme.user.x", "uc.change.0", "s.0123"} {
		p.MayNotPublish(direct + "." + subject + key)
	}
	p.MayNotPublish(direct, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.CONSUMER.MSG.NEXT."+stream+".x", "$JS.API.CONSUMER.DURABLE.CREATE."+stream+".x")
	heard := make(chan *nats.Msg, 64)
	inbox := "_INBOX." + p.Name + ".deliver"
	if _, err := p.ChanSubscribe(inbox, heard); err != nil {
		t.Fatal(err)
	}
	ask := func(path string, filter map[string]any) string {
		t.Helper()
		config := map[string]any{"deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant", "deliver_subject": inbox, "num_replicas": 1, "mem_storage": true}
		for name, value := range filter {
			config[name] = value
		}
		body, err := json.Marshal(map[string]any{"stream_name": stream, "config": config})
		if err != nil {
			t.Fatal(err)
		}
		m, err := p.Request("$JS.API.CONSUMER.CREATE."+stream+"."+path, body, Patience)
		if err != nil {
			return err.Error()
		}
		return string(m.Data)
	}
	for name, filter := range map[string]map[string]any{
		"all":    {},
		"user":   {"filter_subject": subject + "u.>"},
		"any":    {"filter_subject": subject + ">"},
		"star":   {"filter_subject": subject + "*.acme.>"},
		"stars":  {"filter_subject": subject + "*.*.*.*"},
		"both":   {"filter_subjects": []string{subject + "r.>", subject + "u.>"}},
		"mixed":  {"filter_subject": subject + "r.>", "filter_subjects": []string{subject + "s.>"}},
		"chunks": {"filter_subjects": []string{subject + "uc.>"}},
		"root":   {"filter_subject": subject + "root.>"},
	} {
		if answer := ask(name, filter); !strings.Contains(answer, "open to gateways") {
			t.Errorf("a consumer of %s: %s", name, answer)
		}
	}
	if answer := ask("good."+subject+"r.>", map[string]any{"filter_subject": subject + "r.>"}); strings.Contains(answer, "error") {
		t.Errorf("a consumer of records: %s", answer)
	}
	for records := 0; records == 0; {
		select {
		case m := <-heard:
			if strings.Contains(string(m.Data), secret) {
				t.Fatalf("a gateway heard %s: %s", m.Subject, m.Data)
			}
			if strings.HasPrefix(m.Subject, subject+"r.") {
				records++
			}
		case <-time.After(Patience):
			t.Fatal("a gateway hears no records")
		}
	}
}

// reflection: the subject of an answer is the caller's to choose, and the broker does not ask whether he may publish there.
func (c Cluster) reflection(t *testing.T) {
	p, victim, operator, projector := c.Join(t, "gw-one"), c.Join(t, "gw-two"), c.Join(t, "operator"), c.Join(t, "projector")
	heard, err := victim.SubscribeSync("verdict." + victim.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.FlushTimeout(Patience); err != nil {
		t.Fatal(err)
	}
	before := operator.Put(access.BucketAuthority, "r.acme.org", "good")
	targets := []string{"$KV.authority.r.acme.org", "$KV.occupancy.org/acme/rpm", "acct._.credit", "acct.acme.credit", "acct.acme.reserve." + victim.Name,
		"usage.acme", "$KV.leases.projector", "verdict." + victim.Name}
	requests := map[string]string{
		"acct.acme.reserve." + p.Name:                              `{"forged":true}`,
		"$JS.API.STREAM.INFO.ACCOUNTING":                           "",
		"$JS.API.DIRECT.GET.KV_occupancy":                          `{"last_by_subj":"$KV.occupancy.org/x/rpm"}`,
		"$JS.API.DIRECT.GET.KV_authority.$KV.authority.r.acme.org": "",
		"$JS.API.DIRECT.GET.KV_occupancy.$KV.occupancy.org/x/rpm":  "",
		"$JS.API.CONSUMER.CREATE.KV_authority.x":                   "{}",
		access.SubjectAsk:                                          `{"forged":true}`,
	}
	for _, target := range targets {
		for request, body := range requests {
			if err := p.PublishRequest(request, target, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.Store("acct.acme.reserve."+p.Name, "{}") // its answer comes after those
	p.Unrefused()
	if after := operator.Put(access.BucketAuthority, "r.acme.org", "good"); after != before+1 {
		t.Errorf("authority moved from %d to %d by a gateway's hand", before, after)
	}
	admin, err := jetstream.New(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets[2 : len(targets)-1] {
		if name, err := admin.StreamNameBySubject(timeout(t), target); err != nil {
			t.Fatal(err)
		} else if s, err := admin.Stream(timeout(t), name); err != nil {
			t.Fatal(err)
		} else if m, err := s.GetLastMsgForSubject(timeout(t), target); !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Errorf("%s: holds %+v (%v)", target, m, err)
		}
	}

	// Another gateway may hear the broker's own words where it waits for verdicts, but never the caller's.
	if err := projector.Publish("verdict."+victim.Name, []byte("end")); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := heard.NextMsg(Patience)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), "forged") {
			t.Errorf("a gateway made another hear %q", m.Data)
		}
		if string(m.Data) == "end" {
			return
		}
	}
}

// consumers: whoever creates one chooses where the broker delivers.
func (c Cluster) consumers(t *testing.T) {
	p, projector := c.Join(t, "gw-one"), c.Join(t, "projector")
	made := 0
	create := func(p *Peer, stream string, config map[string]any) string {
		t.Helper()
		made++
		name := "x" + strconv.Itoa(made) // never one that is there already
		config["name"] = name
		body, err := json.Marshal(map[string]any{"stream_name": stream, "config": config})
		if err != nil {
			t.Fatal(err)
		}
		m, err := p.RequestWithContext(timeout(t), "$JS.API.CONSUMER.CREATE."+stream+"."+name, body)
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Data)
	}
	good := func() map[string]any {
		return map[string]any{"deliver_subject": p.NewInbox(), "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant", "num_replicas": 1}
	}
	if got := create(p, "KV_windows", good()); strings.Contains(got, `"error"`) {
		t.Fatalf("a consumer to one's own inbox was refused: %s", got)
	}
	for what, change := range map[string]func(map[string]any){
		"a stream's subject":           func(m map[string]any) { m["deliver_subject"] = "$KV.authority.r.acme.org" },
		"the log":                      func(m map[string]any) { m["deliver_subject"] = "acct._.credit" },
		"another's verdicts":           func(m map[string]any) { m["deliver_subject"] = "verdict.gw-two-abcdefgh" },
		"a projector's inbox":          func(m map[string]any) { m["deliver_subject"] = "_INBOX." + projector.Name + ".x" },
		"a monitor's inbox":            func(m map[string]any) { m["deliver_subject"] = "_INBOX.monitor-abcdefgh.x" },
		"an unnamed inbox":             func(m map[string]any) { m["deliver_subject"] = "_INBOX.x" },
		"nowhere, to be pulled":        func(m map[string]any) { delete(m, "deliver_subject") },
		"a durable":                    func(m map[string]any) { m["durable_name"] = "x1" },
		"acknowledgements":             func(m map[string]any) { m["ack_policy"] = "explicit" },
		"for ever":                     func(m map[string]any) { m["inactive_threshold"] = int64(24 * time.Hour) },
		"something the door knows not": func(m map[string]any) { m["pause_until"] = "2030-01-01T00:00:00Z" },
	} {
		config := good()
		change(config)
		if got := create(p, "KV_windows", config); !strings.Contains(got, `"description":"door: `) {
			t.Errorf("%s: %s", what, got)
		}
	}

	// A trusted reader's consumer cannot be removed from outside.
	if _, err := projector.JS.CreateConsumer(timeout(t), "KV_windows", jetstream.ConsumerConfig{Name: "ours", AckPolicy: jetstream.AckNonePolicy,
		InactiveThreshold: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if m, err := p.RequestWithContext(timeout(t), "$JS.API.CONSUMER.DELETE.KV_windows.ours", nil); err != nil || !strings.Contains(string(m.Data), `"description":"door: `) {
		t.Errorf("removing a projector's consumer: %s (%v)", m.Data, err)
	}
	if _, err := projector.JS.Consumer(timeout(t), "KV_windows", "ours"); err != nil {
		t.Errorf("a projector's consumer after a gateway asked to remove it: %v", err)
	}
	p.Unrefused()
}

func (c Cluster) projector(t *testing.T) {
	p := c.Join(t, "projector")
	gw := c.Join(t, "gw-one")
	seq := gw.Store("acct.acme.reserve."+gw.Name, "mark")

	s, err := p.JS.Stream(timeout(t), access.StreamAccounting)
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := p.JS.CreateOrUpdateConsumer(timeout(t), access.StreamAccounting, jetstream.ConsumerConfig{Name: "tap-" + p.Name,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := consumer.Next(jetstream.FetchMaxWait(Patience)); err != nil || string(m.Data()) != "mark" {
		t.Errorf("pulled %v (%v)", m, err)
	}
	ordered, err := p.JS.OrderedConsumer(timeout(t), access.StreamAccounting, jetstream.OrderedConsumerConfig{OptStartSeq: seq, DeliverPolicy: jetstream.DeliverByStartSequencePolicy})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := ordered.Next(jetstream.FetchMaxWait(Patience)); err != nil || string(m.Data()) != "mark" {
		t.Errorf("ordered consumer: %v (%v)", m, err)
	}
	if m, err := s.GetMsg(timeout(t), seq); err != nil || string(m.Data) != "mark" {
		t.Errorf("direct get: %v (%v)", m, err)
	}
	if err := p.JS.DeleteConsumer(timeout(t), access.StreamAccounting, "tap-"+p.Name); err != nil {
		t.Errorf("removing one's consumer: %v", err)
	}

	ack, err := p.JS.Publish(timeout(t), "acct._.verdicts", []byte("{}"), jetstream.WithExpectLastSequencePerSubject(0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.JS.Publish(timeout(t), "acct._.verdicts", []byte("{}"), jetstream.WithExpectLastSequencePerSubject(0)); err == nil {
		t.Error("a stale writer was not stopped")
	}
	if _, err := p.JS.Publish(timeout(t), "acct._.verdicts", []byte("{}"), jetstream.WithExpectLastSequencePerSubject(ack.Sequence)); err != nil {
		t.Error(err)
	}
	p.Store("acct._.tick", "{}")
	p.Put(access.BucketWindows, "org/acme/rpm", "1")
	p.Put(access.BucketAuthority, access.KeyLedger, "{}")
	rev := p.Put(access.BucketLeases, "projector", p.Name)
	p.Put(access.BucketSnapshots, "projector.a", "state")
	if v, err := c.Join(t, "monitor").Get(access.BucketSnapshots, "projector.a"); err != nil || v != "state" {
		t.Errorf("a snapshot is read as %q (%v)", v, err)
	}
	kv, err := p.JS.KeyValue(timeout(t), access.BucketLeases)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(timeout(t), "projector", []byte("again"), rev); err != nil {
		t.Error(err)
	}
	w, err := kv.WatchAll(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
	p.Unrefused()
	p.MayNotPublish("acct.acme.fence", "acct.acme.credit", "acct._.recover", "acct._.rules", "acct.acme.reserve."+p.Name, "acct._.pack."+p.Name,
		"$KV.authority.x", "$KV.generations.x", "$KV.snapshots.biller.a", "usage.acme", "$JS.API.STREAM.DELETE.ACCOUNTING", "$JS.API.STREAM.PURGE.ACCOUNTING",
		"$JS.API.STREAM.PURGE.KV_occupancy", "$JS.API.STREAM.MSG.DELETE.ACCOUNTING", "$JS.API.STREAM.CREATE.EVIL", "$JS.API.STREAM.UPDATE.USAGE")
	p.MayNotSubscribe("verdict.*", "_INBOX."+gw.Name+".>", "acct.>", ">")
}

func (c Cluster) writers(t *testing.T) {
	auditor, biller := c.Join(t, "auditor"), c.Join(t, "biller")
	auditor.Put(access.BucketGenerations, "r2", "record")
	auditor.Put(access.BucketLeases, "auditor", auditor.Name)
	biller.Store("usage.acme", "{}")
	biller.Put(access.BucketLeases, "biller", biller.Name)
	for _, p := range []*Peer{auditor, biller} {
		o, err := p.JS.OrderedConsumer(timeout(t), access.StreamAccounting, jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if err := first(o); err != nil {
			t.Error(err)
		}
		p.Unrefused()
		p.MayNotPublish("acct._.verdicts", "acct._.tick", "verdict.gw-one-abcdefgh", "acct.acme.credit", "$KV.authority.x", "$KV.occupancy.x",
			"$KV.leases.projector", "$JS.API.STREAM.UPDATE.ACCOUNTING", "$JS.API.STREAM.PURGE.ACCOUNTING")
		p.MayNotSubscribe("verdict.ask", "verdict.*")
	}
	biller.Put(access.BucketSnapshots, "biller.a", "state")
	biller.Unrefused()
	auditor.MayNotPublish("usage.acme", "$KV.snapshots.biller.a")
	biller.MayNotPublish("$KV.generations.r2", "$KV.snapshots.projector.a")
}

func (c Cluster) operator(t *testing.T) {
	p := c.Join(t, "operator")
	for _, subject := range []string{"acct.acme.fence", "acct.acme.credit", "acct.acme.correction", "acct._.recover", "acct._.rules",
		"acct.acme.reserve." + p.Name, "acct.acme.true-up." + p.Name, "acct.acme.release." + p.Name} {
		p.Store(subject, "{}")
	}
	p.Put(access.BucketAuthority, "key.k1", "{}")
	p.Unrefused()
	p.MayNotPublish("acct._.verdicts", "acct.acme.reserve.gw-one-abcdefgh", "acct._.pack."+p.Name, "verdict.gw-one-abcdefgh", "$KV.occupancy.x",
		"$KV.leases.projector", "$JS.API.STREAM.DELETE.ACCOUNTING", "$JS.API.STREAM.PURGE.ACCOUNTING")
}

// manager: a gateway that also serves the management API.
func (c Cluster) manager(t *testing.T) {
	p := c.Join(t, "manager")
	p.Store("acct.acme.reserve."+p.Name, "{}")
	p.Store("acct._.pack."+p.Name, "[]")
	p.Store("acct.acme.fence", "{}")
	p.Put(access.BucketAuthority, "key.k2", "{}")
	if _, err := p.Get(access.BucketOccupancy, "org/acme/rpm"); err != nil {
		t.Error(err)
	}
	sub, err := p.SubscribeSync("verdict." + p.Name)
	if err != nil {
		t.Fatal(err)
	}
	p.Unrefused()
	if err := c.Join(t, "projector").Publish("verdict."+p.Name, []byte("yes")); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(Patience); err != nil {
		t.Error(err)
	}
	p.MayNotPublish("acct._.verdicts", "acct.acme.reserve.gw-one-abcdefgh", "verdict."+p.Name, "$KV.occupancy.x")
	p.MayNotSubscribe("verdict.*", "verdict.gw-one-abcdefgh")
}

func (c Cluster) monitor(t *testing.T) {
	p := c.Join(t, "monitor")
	s, err := p.JS.Stream(timeout(t), access.StreamAccounting)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.GetMsg(timeout(t), 1); err != nil || m.Sequence != 1 {
		t.Errorf("reading the log: %v (%v)", m, err)
	}
	js, err := p.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	tail, err := js.SubscribeSync("acct.>", nats.OrderedConsumer(), nats.BindStream(access.StreamAccounting))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := tail.NextMsg(Patience); err != nil || !strings.HasPrefix(m.Subject, "acct.acme.reserve.gw-one-") {
		t.Errorf("following the log: %v (%v)", m, err)
	}
	names := p.JS.StreamNames(timeout(t))
	count := 0
	for range names.Name() {
		count++
	}
	if names.Err() != nil || count != 9 {
		t.Errorf("%d streams (%v), want 9", count, names.Err())
	}
	if _, err := p.Get(access.BucketLeases, "projector"); err != nil {
		t.Error(err)
	}
	p.Unrefused()
	p.MayNotPublish("acct.acme.reserve."+p.Name, "acct._.credit", "acct.acme.refused."+p.Name, "verdict.gw-one-abcdefgh", "verdict.ask", "$KV.occupancy.x",
		"usage.acme", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.DELETE.ACCOUNTING", "$JS.API.STREAM.PURGE.ACCOUNTING", "$JS.API.CONSUMER.RESET.ACCOUNTING.x")
	p.MayNotSubscribe("verdict.*", "verdict.ask", "acct.>", "_INBOX.gw-one-abcdefgh.>")
}

// first takes one message. A consumer that was made this moment may have no leader yet.
func first(o jetstream.Consumer) error {
	for deadline := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		_, err := o.Next(jetstream.FetchMaxWait(Patience))
		if !errors.Is(err, nats.ErrNoResponders) || time.Now().After(deadline) {
			return err
		}
	}
}
