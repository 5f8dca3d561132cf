package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// userWithin bounds the calls that make a user.
const userWithin = 20 * time.Second

// userPause is between two tries of a gateway that is about to manage.
const userPause = 20 * time.Millisecond

// userCommand makes somebody who may sign in at the console.
type userCommand struct {
	Email    string `arg:"" help:"With which the user signs in."`
	Org      string `required:"" help:"Org whose limits the user sees."`
	Role     string `default:"owner" enum:"owner,admin,viewer" help:"owner and admin change limits, viewer sees them."`
	Billing  string `default:"postpaid" enum:"postpaid,prepaid" help:"How the org pays, if it is not there yet and is made too."`
	URL      string `help:"Address of a gateway that manages; that of the configuration if not given." placeholder:"URL"`
	AdminKey string `required:"" env:"WEIR_ADMIN_KEY" help:"An admin key of that gateway." placeholder:"KEY"`
	Password string `env:"WEIR_USER_PASSWORD" help:"At least 10 characters; one is made and printed if not given." placeholder:"TEXT"`
}

// Run makes the user, and the org if there is none.
func (c *userCommand) Run(cli *cli, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, userWithin)
	defer cancel()
	api, err := managementAt(cli, c.URL, c.AdminKey)
	if err != nil {
		return err
	}
	made := c.Password == ""
	if made {
		secret, err := newKey()
		if err != nil {
			return err
		}
		c.Password = passwordOf(secret)
	}
	if _, err := c.make(ctx, api); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	fmt.Fprintf(out, "console:  %s/console\nemail:    %s\n", api.url, c.Email)
	if made {
		fmt.Fprintf(out, "password: %s\n", c.Password)
	}
	return nil
}

// madePassword is how long a password is that is made: 120 bits.
const madePassword = 20

// passwordOf makes a password of a key.
func passwordOf(key string) string { return strings.TrimPrefix(key, keyPrefix)[:madePassword] }

// await makes the user as soon as the gateway manages; one that is there gets the password.
func (c *userCommand) await(ctx context.Context) error {
	api := &management{c.URL, c.AdminKey}
	ctx, cancel := context.WithTimeout(ctx, userWithin)
	defer cancel()
	for {
		status, err := c.make(ctx, api)
		if status == http.StatusConflict {
			return c.renew(ctx, api)
		}
		if err == nil || status != 0 && status < http.StatusInternalServerError {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(userPause):
		}
	}
}

// renew gives a user that is there the password.
func (c *userCommand) renew(ctx context.Context, api *management) error {
	users := "/admin/orgs/" + url.PathEscape(c.Org) + "/users"
	var list struct {
		Users []struct {
			ID, Email string
		}
	}
	if _, err := api.call(ctx, http.MethodGet, users+"?limit=1000", nil, &list); err != nil {
		return err
	}
	for _, u := range list.Users {
		if u.Email == c.Email {
			_, err := api.call(ctx, http.MethodPut, users+"/"+url.PathEscape(u.ID), c.body(), nil)
			return err
		}
	}
	return fmt.Errorf("%s is a user of another org", c.Email)
}

// body is the user as the API takes it.
func (c *userCommand) body() map[string]string {
	return map[string]string{"email": c.Email, "role": c.Role, "password": c.Password}
}

// make makes the org if there is none, then the user. status is of the last answer; 0: there was none.
func (c *userCommand) make(ctx context.Context, api *management) (status int, err error) {
	org := "/admin/orgs/" + url.PathEscape(c.Org)
	status, err = api.call(ctx, http.MethodGet, org, nil, nil)
	if status == http.StatusNotFound {
		status, err = api.call(ctx, http.MethodPut, org, map[string]string{"billing": c.Billing}, nil)
	}
	if err != nil {
		return status, err
	}
	return api.call(ctx, http.MethodPost, org+"/users", c.body(), nil)
}
