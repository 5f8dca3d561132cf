package manage

import (
	"maps"
	"net/http"
	"slices"

	"github.com/weirhq/weir/gateway/authority/store"
)

// renewAtOnce bounds the connections of one change when credentials are sealed anew.
const renewAtOnce = 500

// renewConnections seals every credential with the newest key that an older one sealed, so that the older key can be taken away.
func (h *Handler) renewConnections(w http.ResponseWriter, r *http.Request) error {
	if h.config.Renew == nil {
		return problemf(http.StatusConflict, "conflict", "no key to seal credentials with is configured (seal.keys_file, or WEIR_SEAL_KEYS)")
	}
	renewed := 0
	for {
		n := 0
		if err := h.change(r, operator, func(tx *store.Tx) (err error) {
			n, err = h.renew(tx)
			return err
		}); err != nil {
			return err
		}
		if renewed += n; n < renewAtOnce {
			answer(w, http.StatusOK, map[string]int{"renewed": renewed})
			return nil
		}
	}
}

// renew renews some credentials in one change.
func (h *Handler) renew(tx *store.Tx) (n int, err error) {
	orgs := tx.State.Orgs()
	for _, org := range slices.Sorted(maps.Keys(orgs)) {
		for _, c := range paged(orgs[org].Connections, "", MaxConnections) {
			if len(c.Credential) == 0 || n == renewAtOnce {
				continue
			}
			sealed, err := h.config.Renew(c)
			if err != nil {
				return 0, problemf(http.StatusConflict, "conflict", "the connection %s of org %s: %s", c.ID, c.Org, err)
			}
			if sealed == nil {
				continue
			}
			kept := *c
			kept.Credential = sealed
			tx.Put(&kept)
			n++
		}
	}
	return n, nil
}
