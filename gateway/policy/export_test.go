package policy

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// Cost is the whole cost.
func Cost(price *authority.Price, u events.Usage) int64 { return cost(price, u, millionths) }
