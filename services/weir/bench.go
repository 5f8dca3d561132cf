package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/weirhq/weir/services/load"
)

// benchCommand measures a gateway.
type benchCommand struct {
	URL      string        `default:"http://127.0.0.1:8080/v1/chat/completions" help:"Endpoint to send to."`
	Key      string        `env:"WEIR_API_KEY" help:"Inference key."`
	Model    string        `default:"weir-demo" help:"Model to ask for."`
	Stream   bool          `help:"Ask for streams."`
	Rate     float64       `help:"Requests a second of an open loop; without it a closed loop."`
	Clients  int           `default:"64" help:"Clients of a closed loop; the most requests under way in an open one."`
	Duration time.Duration `default:"10s" help:"How long to measure."`
	Warmup   time.Duration `default:"2s" help:"How long to send before."`
	Suite    bool          `help:"Start the product and a model here, and print what the product adds to calling the model directly."`
}

// Run measures.
func (c *benchCommand) Run(out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Suite {
		return c.suite(ctx, out)
	}
	r, err := load.Run(ctx, c.config(c.URL, c.Key, c.Rate))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n%s\n", header, row("measured", r, nil))
	if r.Error != "" {
		fmt.Fprintln(out, "first error:", r.Error)
	}
	return nil
}

func (c *benchCommand) config(url, key string, rate float64) load.Config {
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"How calm is the weir at dawn?"}],"max_tokens":16,"stream":%t}`, c.Model, c.Stream)
	clients := c.Clients
	if rate > 0 {
		clients = max(clients, 512)
	}
	return load.Config{URL: url, Key: key, Body: []byte(body), Rate: rate, Clients: clients, Duration: c.Duration, Warmup: c.Warmup}
}

const header = "                              asked/s  got/s     p50 ms   p99 ms  p99.9 ms  added p50  added p99  not 2xx"

// row prints a measurement, beside what calling the model directly took in the same round.
func row(name string, r, direct *load.Result) string {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	added := "        -          -"
	if direct != nil {
		added = fmt.Sprintf("%9.2f  %9.2f", ms(r.Quantile(50)-direct.Quantile(50)), ms(r.Quantile(99)-direct.Quantile(99)))
	}
	return fmt.Sprintf("%-30s %7d  %6.0f  %8.2f %8.2f  %8.2f  %s  %7d", name, r.Sent, r.Rate, ms(r.Quantile(50)), ms(r.Quantile(99)), ms(r.Quantile(99.9)), added, r.Refused+r.Failed+r.Dropped)
}

// suite measures what the product adds: each rate directly and through the gateway, one after the other, then saturation. The product
// runs in a process of its own with everything on: embedded log, projector, auditor, views.
func (c *benchCommand) suite(ctx context.Context, out io.Writer) error {
	p, err := startProduct(ctx, "tokens=16")
	if err != nil {
		return err
	}
	defer p.stop()
	direct, through := p.model+"/v1/chat/completions", p.gateway+"/v1/chat/completions"
	for _, stream := range []bool{false, true} {
		c.Stream = stream
		kind := "whole"
		if stream {
			kind = "stream"
		}
		fmt.Fprintf(out, "\n%s answers of 16 tokens, everything on, one process beside this one\n%s\n", kind, header)
		for _, rate := range []float64{200, 500, 1000} {
			base, err := load.Run(ctx, c.config(direct, "", rate))
			if err != nil {
				return err
			}
			got, err := load.Run(ctx, c.config(through, p.key, rate))
			if err != nil {
				return err
			}
			fmt.Fprintln(out, row(fmt.Sprintf("direct, open loop %.0f/s", rate), base, nil))
			fmt.Fprintln(out, row(fmt.Sprintf("weir, open loop %.0f/s", rate), got, base))
		}
		base, err := load.Run(ctx, c.config(direct, "", 0))
		if err != nil {
			return err
		}
		got, err := load.Run(ctx, c.config(through, p.key, 0))
		if err != nil {
			return err
		}
		fmt.Fprintln(out, row(fmt.Sprintf("direct, closed loop %d clients", c.Clients), base, nil))
		fmt.Fprintln(out, row(fmt.Sprintf("weir, closed loop %d clients", c.Clients), got, base))
		fmt.Fprintf(out, "saturation: %.3f of direct\n", got.Rate/base.Rate)
	}
	return nil
}

// product is the product in another process.
type product struct {
	cmd                 *exec.Cmd
	gateway, model, key string
}

func startProduct(ctx context.Context, script string) (*product, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p := &product{cmd: exec.CommandContext(ctx, self, "demo", "--listen", "127.0.0.1:0", "--free", "--script", script)}
	p.cmd.Stderr = os.Stderr
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(os.Interrupt) }
	text, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		for prefix, into := range map[string]*string{"Weir is running at ": &p.gateway, "The model is at ": &p.model, "WEIR_API_KEY=": &p.key} {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				*into = rest
			}
		}
		if p.key != "" {
			go func() { _, _ = io.Copy(io.Discard, text) }() // the rest of what it prints
			return p, nil
		}
	}
	p.stop()
	return nil, errors.New("bench: the product did not start")
}

func (p *product) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	_ = p.cmd.Wait() // how it ended says nothing about what was measured
}
