package scenario

import (
	"slices"

	"github.com/weirhq/weir/events"
)

// shrink takes away what is not needed for a log to stay bad: lines, then claims, charges and fields, then time.
func shrink(records []events.Record, bad func([]events.Record) bool) []events.Record {
	for size := len(records) / 2; size > 0; {
		shorter := false
		for i := 0; i+size <= len(records); {
			try := slices.Delete(slices.Clone(records), i, i+size)
			if len(try) > 0 && bad(try) {
				records, shorter = try, true
			} else {
				i += size
			}
		}
		if !shorter {
			size /= 2
		}
	}
	s := shrinker{records, bad}
	for i := range records {
		switch s.records[i].Data.(type) {
		case *events.Reserve:
			s.reserve(i)
		case *events.TrueUp:
			s.trueUp(i)
		}
		if i > 0 {
			s.sooner(i)
		}
	}
	return s.records
}

type shrinker struct {
	records []events.Record
	bad     func([]events.Record) bool
}

// try keeps a change of one record if the log stays bad. The change gets a copy.
func (s *shrinker) try(i int, change func(*events.Record)) {
	changed := slices.Clone(s.records)
	switch d := changed[i].Data.(type) {
	case *events.Reserve:
		c := *d
		c.Claims = slices.Clone(d.Claims)
		changed[i].Data = &c
	case *events.TrueUp:
		c := *d
		c.Charges = slices.Clone(d.Charges)
		changed[i].Data = &c
	}
	change(&changed[i])
	if s.bad(changed) {
		s.records = changed
	}
}

func (s *shrinker) reserve(i int) {
	at := func(r *events.Record) *events.Reserve { return r.Data.(*events.Reserve) }
	for k := len(at(&s.records[i]).Claims) - 1; k >= 0; k-- {
		s.try(i, func(r *events.Record) { at(r).Claims = slices.Delete(at(r).Claims, k, k+1) })
	}
	for k := range at(&s.records[i]).Claims {
		for _, change := range []func(*events.Claim){
			func(c *events.Claim) { c.Shadow = false },
			func(c *events.Claim) { c.HasCheck, c.Check = false, 0 },
			func(c *events.Claim) { c.Park = false },
			func(c *events.Claim) { c.Life = events.LifeRequest },
			func(c *events.Claim) { c.Amount = 1 },
		} {
			s.try(i, func(r *events.Record) { change(&at(r).Claims[k]) })
		}
	}
	for _, change := range []func(*events.Reserve){
		func(d *events.Reserve) { d.MaxMS = events.DefaultMaxMS },
		func(d *events.Reserve) { d.ParkMS = 0 },
		func(d *events.Reserve) { d.Fence = 0 },
		func(d *events.Reserve) { d.Mode = events.ModeNormal },
		func(d *events.Reserve) { d.At = 0 },
		func(d *events.Reserve) { d.Attempt = 0 },
	} {
		s.try(i, func(r *events.Record) { change(at(r)) })
	}
}

func (s *shrinker) trueUp(i int) {
	at := func(r *events.Record) *events.TrueUp { return r.Data.(*events.TrueUp) }
	for k := len(at(&s.records[i]).Charges) - 1; k >= 0; k-- {
		s.try(i, func(r *events.Record) { at(r).Charges = slices.Delete(at(r).Charges, k, k+1) })
	}
	s.try(i, func(r *events.Record) { at(r).CostNano = 0 })
}

// sooner brings a record closer in time to the one before.
func (s *shrinker) sooner(i int) {
	for _, part := range []int64{1, 2, 4} {
		gap := s.records[i].At - s.records[i-1].At
		s.try(i, func(r *events.Record) { r.At -= gap / part })
	}
}
