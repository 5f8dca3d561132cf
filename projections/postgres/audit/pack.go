package audit

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// maxRecord bounds a record that is read back, in bytes: a record is bounded in all it has, to less.
const maxRecord = 16 << 20

// packer compresses records. It may be used by several goroutines.
type packer struct {
	in  *zstd.Encoder
	out *zstd.Decoder
}

func newPacker() *packer {
	in, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(64<<10))
	if err != nil { // cannot be: the options are valid
		panic("audit: " + err.Error())
	}
	out, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxRecord))
	if err != nil { // cannot be: the options are valid
		panic("audit: " + err.Error())
	}
	return &packer{in, out}
}

func (p *packer) pack(record []byte) []byte { return p.in.EncodeAll(record, nil) }

func (p *packer) unpack(packed []byte) ([]byte, error) {
	record, err := p.out.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("unpack a record: %w", err)
	}
	return record, nil
}
