package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/insight"
)

// tailWarm is how many messages before the first one that is shown are read, to know whose what comes is.
const tailWarm = 4096

// tailCommand follows the log.
type tailCommand struct {
	sourceFlags `embed:""`

	Since    string   `help:"Begin so long ago, or at a time: 10m, 2026-03-02T10:00:00Z." placeholder:"AGO|TIME"`
	FromSeq  uint64   `help:"Begin at a sequence." placeholder:"SEQ"`
	NoFollow bool     `help:"End at the log's end. Without --since or --from-seq it then begins at its start."`
	Org      []string `help:"Only these orgs."`
	Key      []string `help:"Only these keys, by id."`
	Model    []string `help:"Only these models."`
	Kind     []string `help:"Only these kinds: reserve, verdict, true-up, release, refused, lease, tick, cooldown, fence, credit, correction, recover, rules. By default all but lease and tick."`
	Outcome  []string `help:"Only these outcomes: admitted, refused, completed, failed, cancelled, timeout, not_dispatched, abandoned, or a refusal's reason."`
	Gateway  []string `help:"Only these gateways, with or without their last part."`
	Request  []string `help:"Only these requests: ids, or how they begin or end."`
	JSON     bool     `help:"One JSON object a line."`
}

// Run follows the log until it is told to stop.
func (c *tailCommand) Run(cli *cli, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := c.run(ctx, cli.Config, out)
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

func (c *tailCommand) run(ctx context.Context, configFile string, out io.Writer) error {
	s, err := c.open(ctx, configFile)
	if err != nil {
		return err
	}
	defer s.close()
	var from int64
	if c.Since != "" {
		if from, err = since(c.Since, s.now); err != nil {
			return err
		}
	}
	p := newTailPrinter(c, out)
	p.from = from
	live, follows := s.(following)
	if !follows || c.NoFollow {
		start := c.FromSeq
		if from > 0 {
			if start, err = s.SeqAt(ctx, from); err != nil {
				return err
			}
		}
		p.fromSeq = max(start, c.FromSeq)
		err := s.Read(ctx, p.fromSeq-min(p.fromSeq, tailWarm), p.take)
		return errors.Join(err, p.flush())
	}
	return c.follow(ctx, live, p)
}

// follow shows what comes, from the log's end on unless the flags say where.
func (c *tailCommand) follow(ctx context.Context, l following, p *tailPrinter) error {
	first, last, err := l.ends(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.FromSeq > 0:
		p.fromSeq = c.FromSeq
	case p.from > 0:
		if p.fromSeq, err = l.SeqAt(ctx, p.from); err != nil {
			return err
		}
	default:
		p.fromSeq = last + 1
	}
	return l.follow(ctx, max(p.fromSeq-min(p.fromSeq, tailWarm), first, 1), p.take, p.flush)
}

// tailPrinter writes lines.
type tailPrinter struct {
	tail    *insight.Tail
	filter  insight.Filter
	out     *bufio.Writer
	json    bool
	colour  bool
	width   func() int // of the terminal, in characters; 0: it is none, or does not say
	from    int64
	fromSeq uint64
	day     string
	err     error
}

func newTailPrinter(c *tailCommand, out io.Writer) *tailPrinter {
	return &tailPrinter{
		tail: insight.NewTail(), width: func() int { return terminalWidth(out) }, out: bufio.NewWriterSize(out, 1<<16), json: c.JSON, colour: !c.JSON && isTerminal(out) && os.Getenv("NO_COLOR") == "",
		filter: insight.Filter{Orgs: c.Org, Keys: c.Key, Models: c.Model, Kinds: c.Kind, Outcomes: c.Outcome, Gateways: c.Gateway, Requests: c.Request},
	}
}

func (p *tailPrinter) flush() error { return errors.Join(p.err, p.out.Flush()) }

func (p *tailPrinter) take(r *events.Record) error {
	p.tail.Take(r, p.json, func(l *insight.Line) {
		if r.Seq >= p.fromSeq && r.At >= p.from && p.filter.Match(l) && p.err == nil {
			p.err = p.print(l)
		}
	})
	return p.err
}

func (p *tailPrinter) print(l *insight.Line) error {
	if p.json {
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		_, err = p.out.Write(append(text, '\n'))
		return err
	}
	at := time.Unix(0, l.At).UTC()
	if day := at.Format("2006-01-02"); day != p.day {
		p.day = day
		fmt.Fprintf(p.out, "%s UTC\n", day)
	}
	before, after := p.paint(l)
	if width := p.width(); width > 0 && width < wideFrom {
		_, err := fmt.Fprint(p.out, narrow(l, at, width, before, after))
		return err
	}
	_, err := fmt.Fprintf(p.out, "%s %9d %-10s %s %s %s %s %s%s%s\n", at.Format("15:04:05.000"), l.Seq, l.Kind, column(l.Org, 12),
		column(insight.ShortID(events.RequestID(l.Request)), 8), column(l.Key, 14), column(l.Model, 14), before, l.Text, after)
	return err
}

// Layouts of lines on a terminal, in characters.
const (
	wideFrom  = 124 // all columns, and some room for the words
	keysFrom  = 100 // the key as well
	leastText = 24  // for the words, whatever the terminal says
)

// narrow writes a line on a terminal that is no wider than some characters: without the sequence, org and model, of which the filters
// tell, and with what the words do not fit in on lines of their own.
func narrow(l *insight.Line, at time.Time, width int, before, after string) string {
	head := fmt.Sprintf("%s %-10s %s ", at.Format("15:04:05"), l.Kind, column(insight.ShortID(events.RequestID(l.Request)), 8))
	if width >= keysFrom {
		head += column(l.Key, 14) + " "
	}
	indent := utf8.RuneCountInString(head)
	var b strings.Builder
	b.WriteString(head)
	for i, part := range folded(l.Text, max(width-indent, leastText)) {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(before + part + after + "\n")
	}
	return b.String()
}

// folded cuts words into lines of a width; one that is longer is cut itself.
func folded(text string, width int) (lines []string) {
	line := []rune{}
	for _, word := range strings.Fields(text) {
		w := []rune(word)
		if len(line) > 0 && len(line)+1+len(w) > width {
			lines, line = append(lines, string(line)), nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for line = append(line, w...); len(line) > width; line = line[width:] {
			lines = append(lines, string(line[:width]))
		}
	}
	return append(lines, string(line))
}

// column writes a value in a width, cut where it is longer.
func column(value string, width int) string {
	if value == "" {
		value = "-"
	}
	if n := utf8.RuneCountInString(value); n > width {
		runes := []rune(value)
		return string(runes[:width-1]) + "…"
	}
	return fmt.Sprintf("%-*s", width, value)
}

// paint gives what makes a line's words coloured on a terminal.
func (p *tailPrinter) paint(l *insight.Line) (before, after string) {
	if !p.colour {
		return "", ""
	}
	switch l.Outcome {
	case "admitted", string(events.Completed):
		return "\x1b[32m", "\x1b[0m"
	case "refused":
		return "\x1b[31m", "\x1b[0m"
	case "":
		return "", ""
	}
	return "\x1b[33m", "\x1b[0m"
}
