package embedded

import (
	"fmt"
	"log/slog"
	"sync"
)

// logger hands the server's log to slog, and keeps what the server would have ended the process for.
type logger struct {
	log *slog.Logger

	mu    sync.Mutex
	fatal string
	fell  chan struct{}
}

func newLogger(log *slog.Logger) *logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &logger{log: log, fell: make(chan struct{})}
}

func (l *logger) Noticef(format string, v ...any) {
	l.log.Debug("broker: " + fmt.Sprintf(format, v...))
}
func (l *logger) Warnf(format string, v ...any)  { l.log.Warn("broker: " + fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any) { l.log.Error("broker: " + fmt.Sprintf(format, v...)) }
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}

func (l *logger) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error("broker: " + text)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == "" {
		l.fatal = text
		close(l.fell)
	}
}

func (l *logger) reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
