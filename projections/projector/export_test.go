package projector

import (
	"time"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

// EncodeSnapshot makes a snapshot of a fold.
func EncodeSnapshot(created time.Time, chain journal.Chain, fold *admission.Fold) ([]byte, error) {
	m := image{header: header{Seq: fold.Seq(), Created: created, Chain: chain.String(), From: fold.Seq() + 1}, fold: fold.Snapshot(nil)}
	return m.encode()
}
