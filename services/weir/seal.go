package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/weirhq/weir/gateway/authority/seal"
)

// sealCommand looks after the keys that provider credentials are sealed with.
type sealCommand struct {
	Keygen sealKeygen `cmd:"" help:"Make a key, for the first line of seal.keys_file."`
	Rotate sealRotate `cmd:"" help:"Seal every credential anew with the first key, so that the others can be taken away."`
}

// keyMoment names a key: two of one day are two.
const keyMoment = "2006-01-02T150405Z"

type sealKeygen struct {
	ID string `help:"What the key is called; by default when it was made."`
}

// Run prints a key.
func (c *sealKeygen) Run(out io.Writer) error {
	id := c.ID
	if id == "" {
		id = time.Now().UTC().Format(keyMoment)
	}
	text, err := seal.NewKey(id, rand.Reader)
	if err != nil {
		return fmt.Errorf("seal keygen: %w", err)
	}
	fmt.Fprintln(out, text)
	return nil
}

type sealRotate struct{ manager }

// Run has a process that manages do it, with the keys that it holds.
func (c *sealRotate) Run(cli *cli, out io.Writer) error {
	var done struct{ Renewed int }
	if err := c.call(cli, http.MethodPost, "/admin/connections/renew", &done); err != nil {
		return fmt.Errorf("seal rotate: %w", err)
	}
	fmt.Fprintf(out, "%d credentials were sealed anew; once every process has read the keys, the older ones can be taken away\n", done.Renewed)
	return nil
}
