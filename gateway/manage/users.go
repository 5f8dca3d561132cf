package manage

import (
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// adminUsers registers the people of orgs.
func (h *Handler) adminUsers(handle adminHandle) {
	handle("GET /admin/orgs/{org}/users", h.listUsers)
	handle("POST /admin/orgs/{org}/users", h.saveUser)
	handle("PUT /admin/orgs/{org}/users/{id}", h.saveUser)
	handle("DELETE /admin/orgs/{org}/users/{id}", h.deleteUser)
}

// userBody is a user as operators see one.
type userBody struct {
	meBody
	CreatedAt time.Time `json:"created_at,omitzero"`
}

func (h *Handler) listUsers(w http.ResponseWriter, r *http.Request) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, static *authority.Snapshot) (any, error) {
		st, err := known(s, static, orgOf(r))
		if err != nil {
			return nil, err
		}
		return map[string]any{"users": each(paged(st.Users, after, limit), func(u *authority.UserRecord) userBody { return userBody{showUser(u), u.CreatedAt} })}, nil
	})
}

// saveUser makes a user, or with an id in the path changes one. An absent password stays as it is; a new one ends the user's sessions.
func (h *Handler) saveUser(w http.ResponseWriter, r *http.Request) error {
	u := authority.UserRecord{Org: orgOf(r), ID: r.PathValue("id"), CreatedAt: h.config.Now().UTC()}
	create := r.Method == http.MethodPost
	password := ""
	err := read(w, r, func(o *object) {
		if o.required("email", "with which the user signs in") {
			u.Email = strings.ToLower(o.text("email", authority.MaxName))
			if at := strings.IndexByte(u.Email, '@'); at < 1 || at == len(u.Email)-1 || strings.ContainsAny(u.Email, " \t") {
				o.wrong("email", "must be an email address")
			}
		}
		u.Name = o.text("name", authority.MaxName)
		if o.required("role", "owner, admin or viewer") {
			u.Role = authority.Role(o.one("role", "", string(authority.RoleOwner), string(authority.RoleAdmin), string(authority.RoleViewer)))
		}
		if _, there := o.take("password"); there || create {
			if password = o.fields["password"].Str; len(password) < minPassword || len(password) > maxPassword {
				o.r.faults.Add(authority.Fault{Field: "password", Rule: "must be from 10 to 256 bytes long"}) // its value is not repeated
			}
		}
	})
	if err != nil {
		return err
	}
	if password != "" {
		if u.Password, err = h.signIn.passwords.hash(r.Context(), password); err != nil {
			return err
		}
	}
	if create {
		if u.ID, err = h.newID(); err != nil {
			return err
		}
	}
	err = h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, u.Org)
		if err != nil {
			return err
		}
		if other := tx.State.UserByEmail(u.Email); other != nil && other.ID != u.ID {
			return problemf(http.StatusConflict, "conflict", "there is a user with this email already: an email is of one user")
		}
		old := st.Users[u.ID]
		switch {
		case create && len(st.Users) >= MaxUsers:
			return problemf(http.StatusConflict, "conflict", "the org has %d users: at most %d", len(st.Users), MaxUsers)
		case !create && old == nil:
			return problemf(http.StatusNotFound, "not_found", "there is no such user of this org")
		case !create:
			u.CreatedAt = old.CreatedAt
			if password == "" {
				u.Password = old.Password
			}
		}
		saved := u
		tx.Put(&saved)
		return nil
	})
	if err != nil {
		return err
	}
	status := http.StatusOK
	if create {
		status = http.StatusCreated
	}
	answer(w, status, userBody{showUser(&u), u.CreatedAt})
	return nil
}

func (h *Handler) deleteUser(w http.ResponseWriter, r *http.Request) error {
	org, id := orgOf(r), r.PathValue("id")
	err := h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, org)
		if err != nil {
			return err
		}
		if st.Users[id] == nil {
			return problemf(http.StatusNotFound, "not_found", "there is no such user of this org")
		}
		tx.Delete(authority.Ref{Org: org, Kind: authority.KindUser, ID: id})
		return nil
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
