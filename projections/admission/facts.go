package admission

import "github.com/weirhq/weir/events"

// cooldown pauses a meter for a while; a pause is never shortened.
func (f *Fold) cooldown(d *events.Cooldown) {
	if d.Meter == "" {
		return
	}
	m := f.meters[string(d.Meter)]
	if m == nil {
		m = f.newMeter(d.Meter, events.Pause, 0, 0, 0)
	}
	if m.kind != events.Pause {
		return
	}
	span := min(max(d.ForMS, events.MinForMS), events.MaxForMS)
	m.mark = max(m.mark, f.now+span*ms)
	f.changed(m)
}

// fence raises the version of an org's authority.
func (f *Fold) fence(d *events.Fence) {
	if version, known := f.fences[d.Org]; known {
		f.fences[d.Org] = max(version, d.Version)
		return
	}
	f.fences[events.Org(cloneString(string(d.Org)))] = d.Version
}

// recover makes limited windows, buckets and budgets count as full for a while.
func (f *Fold) recover(d *events.Recover) {
	if d.Windows != "empty" {
		f.recoverUntil = f.now + recoverHolds
	}
}
