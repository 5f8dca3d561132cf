package access

import (
	"slices"

	"github.com/weirhq/weir/events"
)

// Permissions are the subjects that an identity may use; anything else is refused. Neither list is ever empty.
type Permissions struct {
	Publish   []string
	Subscribe []string
}

// rules say what a role may do under a full name.
var rules = map[Role]func(name string, p *Permissions){
	Gateway:     gateway,
	Projector:   projector,
	Auditor:     auditor,
	Biller:      biller,
	Operator:    operator,
	Monitor:     monitor,
	Consumer:    billingConsumer,
	System:      func(_ string, p *Permissions) { p.publish(">"); p.subscribe(">") },
	doorCore:    door(allStreams()),
	doorGates:   doorway(append(bucketStreams(views), BucketStream(BucketAuthority))),
	doorReaders: doorway(allStreams()),
	doorBilling: doorway([]string{StreamUsage}),
}

// PermissionsOf are the subjects that the identity may use: those of all its roles, and its own inboxes.
func PermissionsOf(id Identity) (Permissions, error) {
	if err := validRoles(id.Roles); err != nil {
		return Permissions{}, err
	}
	var p Permissions
	for _, role := range id.Roles {
		rules[role](id.Name, &p)
	}
	p.subscribe(id.Inbox() + ".>")
	slices.Sort(p.Publish)
	slices.Sort(p.Subscribe)
	p.Publish, p.Subscribe = slices.Compact(p.Publish), slices.Compact(p.Subscribe)
	return p, nil
}

func (p *Permissions) publish(subjects ...string)   { p.Publish = append(p.Publish, subjects...) }
func (p *Permissions) subscribe(subjects ...string) { p.Subscribe = append(p.Subscribe, subjects...) }

// gateway: its facts under its own name, questions, and the views.
func gateway(name string, p *Permissions) {
	for _, kind := range gatewayKinds() {
		p.publish(fact("*", kind) + "." + name)
	}
	p.publish(fact(string(events.Platform), events.KindPack)+"."+name, SubjectAsk, SubjectLive, SubjectFind)
	p.subscribe(VerdictPrefix + name)

	p.publish(apiInfo, apiStream+StreamAccounting)
	for _, stream := range bucketStreams(views) {
		p.publish(apiStream+stream, apiDirect+stream, apiDirect+stream+".>",
			apiCreate+stream+".>", apiRemove+stream+".*", flowPrefix+stream+".>")
	}
	authority := BucketStream(BucketAuthority)
	p.publish(apiStream+authority, apiCreate+authority+".>", apiRemove+authority+".*", flowPrefix+authority+".>")
	for _, subject := range openSubjects() {
		p.publish(apiDirect + authority + "." + subject)
	}
	// Records of generations are read one at a time, never watched.
	generations := BucketStream(BucketGenerations)
	p.publish(apiStream+generations, apiDirect+generations+".>")
}

// projector: folds the log, answers gateways, writes the views, ticks and verdicts, and the mark of how far the right log went.
func projector(_ string, p *Permissions) {
	platform := string(events.Platform)
	p.publish(fact(platform, events.KindVerdicts), fact(platform, events.KindTick), VerdictPrefix+"*")
	p.answer(SubjectAsk, SubjectLive, SubjectFind)
	for _, bucket := range []string{BucketOccupancy, BucketWindows, BucketLeases} {
		p.publish(kvSubject(bucket, ">"))
		p.keep(BucketStream(bucket))
	}
	p.share(Projector)
	p.publish(kvSubject(BucketAuthority, KeyLedger), "$JS.API.STREAM.CREATE."+BucketStream(BucketAuthority))
	p.keep(StreamAccounting)
	p.read(allStreams()...)
}

// auditor: one record per request, and what is learned of models.
func auditor(_ string, p *Permissions) {
	for _, bucket := range []string{BucketGenerations, BucketEstimator} {
		p.publish(kvSubject(bucket, ">"))
		p.keep(BucketStream(bucket))
	}
	p.lease(Auditor)
	p.read(allStreams()...)
}

// biller: one record per settled final.
func biller(_ string, p *Permissions) {
	p.publish(usageSubjects)
	p.keep(StreamUsage)
	p.lease(Biller)
	p.share(Biller)
	p.read(allStreams()...)
}

// operator: the authority. Recovery also writes each running budget's sum as a reserve, its final and its release, and ticks
// in place of what was lost.
func operator(name string, p *Permissions) {
	for _, kind := range []events.Kind{events.KindFence, events.KindCredit, events.KindCorrection} {
		p.publish(fact("*", kind))
	}
	platform := string(events.Platform)
	p.publish(fact(platform, events.KindRecover), fact(platform, events.KindRules), fact(platform, events.KindTick))
	for _, kind := range []events.Kind{events.KindReserve, events.KindTrueUp, events.KindRelease} {
		p.publish(fact("*", kind) + "." + name)
	}
	p.publish(kvSubject(BucketAuthority, ">"), SubjectAsk, SubjectLive, SubjectFind)
	for _, stream := range allStreams() {
		p.keep(stream)
	}
	p.read(allStreams()...)
}

// monitor: looks at streams and consumers, and reads them.
func monitor(_ string, p *Permissions) {
	p.publish(apiInfo, apiNames, apiList)
	for _, stream := range allStreams() {
		p.publish(apiStream+stream, apiDirect+stream, apiDirect+stream+".>",
			apiListing+stream, apiNaming+stream, apiLook+stream+".*",
			apiCreate+stream+".>", apiRemove+stream+".*", flowPrefix+stream+".>")
	}
}

// billingConsumer: billing lines, by one durable pull consumer, which has its configured name.
func billingConsumer(name string, p *Permissions) {
	own, ok := Configured(name)
	if !ok {
		return
	}
	consumer := StreamUsage + "." + own
	p.publish(apiInfo, apiStream+StreamUsage, apiCreate+consumer, apiCreate+consumer+".>", apiRemove+consumer, apiLook+consumer, apiNext+consumer,
		ackPrefix+consumer+".>")
}

// door: creates and removes consumers on behalf of those outside WEIR.
func door(streams []string) func(string, *Permissions) {
	return func(_ string, p *Permissions) {
		for _, stream := range streams {
			p.publish(apiCreate+stream+".>", apiRemove+stream+".*", apiLook+stream+".*")
		}
	}
}

// doorway: where the door takes requests.
func doorway(streams []string) func(string, *Permissions) {
	return func(_ string, p *Permissions) {
		for _, stream := range streams {
			p.subscribe(apiCreate+stream+".>", apiRemove+stream+".*")
		}
		p.publish(inboxPrefix + ">")
	}
}

// answer lets a role take questions and answer them, in its own account and in others.
func (p *Permissions) answer(questions ...string) {
	p.subscribe(questions...)
	p.publish(inboxPrefix+">", responsePrefix+">")
}

// keep lets a role create a stream and change its limits. Nobody but this process's own connections deletes or purges one.
func (p *Permissions) keep(stream string) {
	p.publish("$JS.API.STREAM.CREATE."+stream, "$JS.API.STREAM.UPDATE."+stream)
}

// lease lets a role hold the lease that makes it the one writer of its projection.
func (p *Permissions) lease(role Role) {
	p.publish(kvSubject(BucketLeases, string(role)), kvSubject(BucketLeases, string(role)+".>"))
}

// share lets a role keep its snapshots where others of it fetch them.
func (p *Permissions) share(role Role) {
	p.publish(kvSubject(BucketSnapshots, string(role)+".>"))
	p.keep(BucketStream(BucketSnapshots))
}

// read lets a trusted role read streams in every way: gets, pull and push consumers.
func (p *Permissions) read(streams ...string) {
	p.publish(apiInfo, apiNames, apiList)
	for _, stream := range streams {
		p.publish(apiStream+stream, apiDirect+stream, apiDirect+stream+".>", "$JS.API.STREAM.MSG.GET."+stream,
			apiListing+stream, apiNaming+stream, apiLook+stream+".*", apiCreate+stream+".>", apiRemove+stream+".*",
			"$JS.API.CONSUMER.DURABLE.CREATE."+stream+".*", "$JS.API.CONSUMER.RESET."+stream+".*",
			apiNext+stream+".*", ackPrefix+stream+".>", flowPrefix+stream+".>")
	}
}

func fact(org string, kind events.Kind) string {
	return events.Prefix + "." + org + "." + kind.String()
}

func gatewayKinds() []events.Kind {
	var kinds []events.Kind
	for k := events.KindUnknown; k <= events.KindPack; k++ {
		if k.FromGateway() {
			kinds = append(kinds, k)
		}
	}
	return kinds
}
