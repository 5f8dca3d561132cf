package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/events"
)

// manageWithin bounds one call of the management API: a change may be large.
const manageWithin = 3 * time.Minute

// manager is where a process that manages serves.
type manager struct {
	URL string `help:"Where a process that manages serves; by default the address in the configuration."`
	Key string `env:"WEIR_ADMIN_KEY" help:"Admin key."`
}

// call sends a request without a body, and reads the answer into a value unless that is nil.
func (m *manager) call(cli *cli, method, path string, into any) error {
	api, err := managementAt(cli, m.URL, m.Key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), manageWithin)
	defer cancel()
	_, err = api.call(ctx, method, path, nil, into)
	return err
}

// fenced is an org that is behind its fence.
type fenced struct {
	Org     events.Org `json:"org"`
	Version int64      `json:"version"`
	Fence   int64      `json:"fence"`
}

// fences asks for the orgs that are behind.
func (m *manager) fences(cli *cli) ([]fenced, error) {
	var body struct{ Behind []fenced }
	err := m.call(cli, http.MethodGet, "/admin/fences", &body)
	return body.Behind, err
}

// authorityCommand looks after what is made through the API.
type authorityCommand struct {
	Status authorityStatus `cmd:"" default:"1" help:"List the orgs that are behind their fence: their requests are refused."`
	Repair authorityRepair `cmd:"" help:"Let requests of orgs that are behind their fence in again, as the store has them."`
	Copy   authorityCopy   `cmd:"" help:"Take over into the database what was made through the API while none was configured, or back. Stop what manages first."`
}

type authorityStatus struct {
	manager
	JSON bool `help:"Print JSON."`
}

// Run lists them.
func (c *authorityStatus) Run(cli *cli, out io.Writer) error {
	behind, err := c.fences(cli)
	if err != nil {
		return fmt.Errorf("authority status: %w", err)
	}
	if c.JSON {
		return json.NewEncoder(out).Encode(map[string]any{"behind": behind})
	}
	if len(behind) == 0 {
		fmt.Fprintln(out, "no org is behind its fence")
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "ORG\tVERSION\tFENCE")
	for _, o := range behind {
		fmt.Fprintf(t, "%s\t%d\t%d\n", o.Org, o.Version, o.Fence)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, "their requests are refused until weir authority repair")
	return nil
}

type authorityRepair struct {
	manager
	Org string `help:"This org alone; by default each that is behind."`
}

// Run raises their versions above their fences.
func (c *authorityRepair) Run(cli *cli, out io.Writer) error {
	orgs := []events.Org{events.Org(c.Org)}
	if c.Org == "" {
		behind, err := c.fences(cli)
		if err != nil {
			return fmt.Errorf("authority repair: %w", err)
		}
		orgs = nil
		for _, o := range behind {
			orgs = append(orgs, o.Org)
		}
	}
	if len(orgs) == 0 {
		fmt.Fprintln(out, "no org is behind its fence")
	}
	for _, org := range orgs {
		if err := c.call(cli, http.MethodPost, "/admin/orgs/"+url.PathEscape(string(org))+"/repair", nil); err != nil {
			return fmt.Errorf("authority repair: org %s: %w", org, err)
		}
		fmt.Fprintf(out, "repaired %s: its authority is as the store has it; look whether the change that failed is to be made again\n", org)
	}
	return nil
}
