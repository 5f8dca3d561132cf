package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/projections/admission"
)

// A projector's snapshot: a name, the length of its header, the header, the fold's state, and a digest of all that.
const (
	snapshotMagic = "WEIRSNP1"
	maxHeader     = 64 << 20
)

// ReadSnapshot reads the fold's state from a projector's snapshot, and when the stream of that log was made. The error says what is wrong
// with it.
func ReadSnapshot(b []byte) (created time.Time, fold *admission.Fold, err error) {
	start := len(snapshotMagic) + 4
	if len(b) < start+sha256.Size || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return created, nil, errors.New("it is no snapshot of this version")
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if want := sha256.Sum256(body); string(want[:]) != string(sum) {
		return created, nil, errors.New("its checksum is wrong")
	}
	size := int(binary.BigEndian.Uint32(body[len(snapshotMagic):start]))
	if size > maxHeader || start+size > len(body) {
		return created, nil, errors.New("its header is cut off")
	}
	var head struct {
		Created time.Time `json:"created"`
	}
	if err := json.Unmarshal(body[start:start+size], &head); err != nil {
		return created, nil, fmt.Errorf("its header: %w", err)
	}
	fold, err = admission.Restore(body[start+size:])
	return head.Created, fold, err
}
