package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/weirhq/weir/services/config"
)

// maxReply bounds what is read of an answer of the management API.
const maxReply = 16 << 20

// management is the management API of a process.
type management struct{ url, key string }

// managementAt is the API at a URL; without one, at the address in the configuration.
func managementAt(cli *cli, url, key string) (*management, error) {
	if url == "" {
		cfg, _, err := config.Load(cli.Config, os.Getenv)
		if err != nil {
			return nil, err
		}
		url = "http://" + cfg.Listen
	}
	return &management{strings.TrimRight(url, "/"), key}, nil
}

// call sends a request, with a body unless that is nil, and reads the answer into a value unless that is nil. status is of the answer; 0: there
// was none. The error says what it said.
func (m *management) call(ctx context.Context, method, path string, body, into any) (status int, err error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		in = bytes.NewReader(data)
	}
	q, err := http.NewRequestWithContext(ctx, method, m.url+path, in)
	if err != nil {
		return 0, err
	}
	q.Header.Set("Authorization", "Bearer "+m.key)
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxReply))
	switch {
	case err != nil:
		return a.StatusCode, fmt.Errorf("read what %s answers: %w", m.url, err)
	case a.StatusCode >= http.StatusBadRequest:
		return a.StatusCode, fmt.Errorf("%s answered %s: %s", m.url, a.Status, said(a.StatusCode, text))
	case into != nil:
		err = json.Unmarshal(text, into)
	}
	return a.StatusCode, err
}

// said is what an answer that is no success says.
func said(status int, text []byte) string {
	if status == http.StatusUnauthorized {
		return "an admin key is needed (WEIR_ADMIN_KEY)"
	}
	var body struct{ Error *string }
	if json.Unmarshal(text, &body) != nil || body.Error == nil { // a gateway's own answer, or another server's
		return "it does not manage; ask a process that holds the log, or has the role " + roleManager + ", with api.mode dynamic in auth.yaml"
	}
	return *body.Error
}
