package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/config"
)

// Bounds of reading a log.
const (
	readBatch   = 512              // records handed on together
	readAhead   = 8                // batches that may wait for the fold
	tailOfFile  = 1 << 20          // bytes at a file's end in which its last record is looked for
	toolName    = "tools"          // begins the name of a connection without a secret
	openingTool = 30 * time.Second // for the broker; after a crash it reads its files back first
)

// sourceFlags say which log a tool reads.
type sourceFlags struct {
	File        string `help:"Read a recorded log, one JSON record a line, in place of a live one. - reads standard input." placeholder:"FILE"`
	Log         string `help:"Broker that holds the log, nats://host:port. By default log.url of the configuration, else the log in the data directory, which no other process may be using." placeholder:"URL"`
	Credentials string `type:"path" help:"File with this process's secret at that broker. By default log.credentials of the configuration." placeholder:"FILE"`
	DataDir     string `type:"path" help:"Data directory. By default that of the configuration." placeholder:"DIR"`
}

// source is a log that is read.
type source interface {
	inquiry.Log

	// now is the instant from which a time ago is counted.
	now() (time.Time, error)

	close()
}

// open opens the log that the flags and the configuration name.
func (f *sourceFlags) open(ctx context.Context, configFile string) (source, error) {
	if f.File != "" {
		if f.Log != "" {
			return nil, errors.New("--file and --log: give one of them")
		}
		return &fileLog{name: f.File}, nil
	}
	listen := ""
	if f.DataDir == "" || f.Log == "" {
		cfg, _, err := config.Load(configFile, os.Getenv)
		if err != nil {
			return nil, err
		}
		if f.DataDir == "" {
			f.DataDir, listen = cfg.DataDir, cfg.OperatorsAddress()
		}
		if f.Log == "" && cfg.Log.URL != "" {
			f.Log = cfg.Log.URL
			if f.Credentials == "" {
				f.Credentials = cfg.Log.Credentials
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openingTool)
	defer cancel()
	if f.Log != "" {
		l, err := joinLog(ctx, f.Log, f.Credentials)
		if err != nil {
			return nil, err
		}
		l.dataDir = f.DataDir
		return l, nil
	}
	l, err := openDataDir(ctx, f.DataDir)
	if errors.Is(err, embedded.ErrInUse) && listen != "" {
		return newHTTPLog(listen), nil // the process that uses it gives it
	}
	if err != nil {
		return nil, err
	}
	l.dataDir = f.DataDir
	return l, nil
}

// liveLog is a log on a broker.
type liveLog struct {
	log     *journal.Log
	conn    *nats.Conn
	broker  *embedded.Broker // nil if it is another process's
	dataDir string           // in which folds may be kept
}

func joinLog(ctx context.Context, url, credentials string) (*liveLog, error) {
	options := journal.Options("weir " + toolName)
	if credentials != "" {
		secret, err := access.ReadSecret(credentials)
		if err != nil {
			return nil, err
		}
		name, err := access.NewName(secret.Name)
		if err != nil {
			return nil, err
		}
		options = append(journal.Options(name), secret.Options(access.Identity{Name: name, Roles: []access.Role{access.Monitor}})...)
	}
	refused := make(chan error, 1)
	conn, err := nats.Connect(url, append(options, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case refused <- err:
		default: // the first one is told
		}
	}))...)
	if err != nil {
		return nil, fmt.Errorf("join the log at %s: %w", url, err)
	}
	l := &liveLog{conn: conn}
	if l.log, err = journal.Open(ctx, conn, journal.Config{}); err == nil {
		err = l.mayRead(ctx, refused)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// mayReadWithin bounds the question whether a tool may read the log. Who may not gets no answer.
const mayReadWithin = 5 * time.Second

// mayRead fails where the broker keeps the log from this process.
func (l *liveLog) mayRead(ctx context.Context, refused <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, mayReadWithin)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := l.conn.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+l.log.Stream(), []byte(`{"seq":1}`))
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		return nil
	case err := <-refused:
		cancel()
		<-answered
		return fmt.Errorf("this process's secret may not read the log: use --credentials with one of the role operator (weir credentials add ops --roles operator, where the log is): %w", err)
	}
}

// openDataDir runs the broker of a data directory that no process uses.
func openDataDir(ctx context.Context, dir string) (*liveLog, error) {
	if _, err := os.Stat(filepath.Join(dir, "broker")); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("data directory %s: holds no log; name the configuration of the process that keeps it with -c, another directory with --data-dir, or the broker with --log", dir)
	}
	broker, err := embedded.Start(ctx, embedded.Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("%w; if a process is using the log, let it listen (log.listen) and name it with --log", err)
	}
	l := &liveLog{broker: broker}
	name, err := access.NewName(toolName)
	if err == nil {
		l.conn, err = broker.Connect(access.Identity{Name: name, Roles: []access.Role{access.Monitor}}, journal.Options(name)...)
	}
	if err == nil {
		l.log, err = journal.Open(ctx, l.conn, journal.Config{})
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *liveLog) close() {
	if l.conn != nil {
		l.conn.Close()
	}
	if l.broker != nil {
		l.broker.Shutdown()
	}
}

func (l *liveLog) now() (time.Time, error) { return time.Now(), nil }

func (l *liveLog) Read(ctx context.Context, from uint64, each func(*events.Record) error) error {
	return pipe(ctx, func(ctx context.Context, put func(events.Record) error) error {
		info, err := l.log.Info(ctx)
		if err != nil {
			return err
		}
		return l.log.Read(ctx, max(from, info.First), info.Last, put)
	}, each)
}

// seqAt looks for an instant by halves. A clock that stepped back makes it find one such place of several.
func (l *liveLog) SeqAt(ctx context.Context, at int64) (uint64, error) {
	info, err := l.log.Info(ctx)
	if err != nil {
		return 0, err
	}
	low, high := info.First, info.Last+1 // the answer is in [low, high]
	for low < high {
		middle := low + (high-low)/2
		var when int64
		err := l.log.Read(ctx, middle, middle, func(r events.Record) error { when = r.At; return nil })
		if err != nil {
			return 0, fmt.Errorf("look for %s in the log: %w", time.Unix(0, at).UTC().Format(time.RFC3339), err)
		}
		if when < at {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// fileLog is a recorded log.
type fileLog struct{ name string }

func (f *fileLog) close() {}

// FoldBefore gives none: a recording is folded from its start.
func (f *fileLog) FoldBefore(context.Context, uint64) (*admission.Fold, error) { return nil, nil }

func (f *fileLog) SeqAt(context.Context, int64) (uint64, error) { return 0, nil }

// now is the time of the file's last record.
func (f *fileLog) now() (time.Time, error) {
	if f.name == "-" {
		return time.Time{}, errors.New("standard input: give a time and no duration, its end is not known")
	}
	file, err := os.Open(f.name)
	if err != nil {
		return time.Time{}, err
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return time.Time{}, err
	}
	buffer := make([]byte, min(size, tailOfFile))
	if _, err := file.ReadAt(buffer, size-int64(len(buffer))); err != nil {
		return time.Time{}, err
	}
	end := len(buffer)
	for end > 0 && (buffer[end-1] == '\n' || buffer[end-1] == '\r') {
		end--
	}
	start := end
	for start > 0 && buffer[start-1] != '\n' {
		start--
	}
	at, err := time.Parse(time.RFC3339Nano, gjson.GetBytes(buffer[start:end], "time").String())
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: time of the last record: %w", f.name, err)
	}
	return at, nil
}

func (f *fileLog) Read(ctx context.Context, from uint64, each func(*events.Record) error) error {
	in := io.Reader(os.Stdin)
	if f.name != "-" {
		file, err := os.Open(f.name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	return pipe(ctx, func(ctx context.Context, put func(events.Record) error) error {
		return readLines(f.name, in, from, put)
	}, each)
}

// readLines gives a file's records. Lines with the same seq are elements of one pack.
func readLines(name string, in io.Reader, from uint64, put func(events.Record) error) error {
	lines := bufio.NewReaderSize(in, 1<<20)
	var last uint64
	index := 0
	for number := 1; ; number++ {
		line, err := readText(lines)
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s, line %d: %w", name, number, err)
		}
		if len(line) == 0 {
			continue
		}
		r, err := lineRecord(line)
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", name, number, err)
		}
		if r.Seq == last && number > 1 {
			index++
		} else {
			index = 0
		}
		last, r.Index = r.Seq, index
		if r.Seq < from {
			continue
		}
		if err := put(r); err != nil {
			return err
		}
	}
}

// readText reads a line without its end, copied once. An error goes with what was read before it.
func readText(r *bufio.Reader) (string, error) {
	part, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return string(bytes.TrimRight(part, "\r\n")), err
	}
	start := bytes.Clone(part) // longer than the buffer: the rest is read as any line
	rest, err := readLine(r)
	if len(start)+len(rest) > maxReplayLine {
		return "", fmt.Errorf("longer than %d bytes", maxReplayLine)
	}
	return string(start) + string(rest), err
}

// lineRecord reads a line as replayRecord does, several times as fast. The record refers to the line.
func lineRecord(line string) (events.Record, error) {
	var seq, at, subject, data gjson.Result
	gjson.Parse(line).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "seq":
			seq = value
		case "time":
			at = value
		case "subject":
			subject = value
		case "data":
			data = value
		}
		return true
	})
	if seq.Type != gjson.Number || at.Type != gjson.String || subject.Type != gjson.String {
		return replayRecord([]byte(line)) // which says what is wrong
	}
	when, err := time.Parse(time.RFC3339Nano, at.Str)
	if err != nil {
		return events.Record{}, err
	}
	s, err := events.ParseSubject(subject.Str)
	r := events.Record{Seq: seq.Uint(), At: events.Nanos(when), Gateway: s.Gateway, Event: events.Event{Org: s.Org}}
	if err != nil {
		r.Fault = err.Error()
		return r, nil
	}
	kind := s.Kind.Type()
	if s.Kind == events.KindUnknown {
		kind = "weir." + s.Type + ".v1"
	}
	if r.Data, err = events.DecodeText(kind, data.Raw); err != nil {
		return replayRecord([]byte(line)) // a fault, unless the line is cut off
	}
	r.Fault = events.Check(s, &r.Event)
	return r, nil
}

// pipe reads on one goroutine while each takes on another.
func pipe(ctx context.Context, read func(context.Context, func(events.Record) error) error, each func(*events.Record) error) error {
	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan []events.Record, readAhead)
	group.Go(func() error {
		defer close(batches)
		batch := make([]events.Record, 0, readBatch)
		send := func() error {
			select {
			case batches <- batch:
				batch = make([]events.Record, 0, readBatch)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		err := read(ctx, func(r events.Record) error {
			if batch = append(batch, r); len(batch) < readBatch {
				return nil
			}
			return send()
		})
		if err == nil && len(batch) > 0 {
			err = send()
		}
		return err
	})
	group.Go(func() error {
		for batch := range batches {
			for i := range batch {
				if err := each(&batch[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err := group.Wait(); !errors.Is(err, inquiry.ErrEnough) {
		return err
	}
	return nil
}

// since reads a time, or a duration before the log's now: "2026-03-02T10:00:00Z", "24h".
func since(text string, now func() (time.Time, error)) (int64, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return events.Nanos(at), nil
	}
	if _, err := time.ParseDuration(text); err != nil {
		return inquiry.Since(text, time.Time{}) // which says what is wrong
	}
	from, err := now()
	if err != nil {
		return 0, fmt.Errorf("since %s: %w", text, err)
	}
	return inquiry.Since(text, from)
}

// isTerminal says whether a person reads what is written.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// terminalWidth is how many characters fit a line of a terminal; 0: out is none, or it does not say.
func terminalWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok || !isTerminal(out) {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// progress shows on a terminal how far a long reading has come.
type progress struct {
	out   io.Writer // nil: nobody reads it
	doing string
	count int64
	shown time.Time
}

// progressEvery is how many records lie between two looks at the clock.
const progressEvery = 1 << 14

func newProgress(doing string) *progress {
	p := &progress{doing: doing}
	if isTerminal(os.Stderr) {
		p.out = os.Stderr
	}
	return p
}

func (p *progress) step(r *events.Record) {
	p.count++
	if p.out == nil || p.count%progressEvery != 0 || time.Since(p.shown) < 200*time.Millisecond {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.out, "\r\x1b[K%s: %d records, at %s", p.doing, p.count, time.Unix(0, r.At).UTC().Format("2006-01-02 15:04:05"))
}

func (p *progress) done() {
	if p.out != nil && !p.shown.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
