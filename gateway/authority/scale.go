package authority

import (
	"math"
	"math/bits"

	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Pos is where something is declared.
type Pos = strictyaml.Pos

// Fault is one thing that is wrong with a file, or between files.
type Fault = strictyaml.Fault

// Faults is all that is wrong. An error of this package is one.
type Faults = strictyaml.Faults

// Warning is something that is allowed and probably not meant.
type Warning = strictyaml.Fault

// ScaleDown is v × num / den, rounded down and saturating, for numbers that are not negative and den above 0.
func ScaleDown(v, num, den int64) int64 {
	hi, lo := bits.Mul64(uint64(v), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(den))
	return int64(min(q, math.MaxInt64))
}
