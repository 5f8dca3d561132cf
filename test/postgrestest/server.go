package postgrestest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/weirhq/weir/test/freeport"
)

// Server is a server of a test's own, to be stopped, killed, paused and started again. Its schema is its database's own.
type Server struct {
	URL string

	bin, dir string
	port     int
	as       *syscall.SysProcAttr
	cmd      *exec.Cmd
}

// Own starts a server for one test.
func Own(tb testing.TB) *Server {
	tb.Helper()
	s, err := start()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// start runs a new server in a temporary folder, on a free port of this machine.
func start() (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if s.dir, err = os.MkdirTemp("", "weir-postgres-"); err != nil {
		return nil, err
	}
	if s.as, err = notRoot(s.dir); err != nil {
		return nil, err
	}
	if out, err := s.program("initdb", "-D", s.data(), "-U", "weir", "--auth=trust", "--no-sync", "-E", "UTF8").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if s.port, err = freeport.Take(); err != nil {
		return nil, err
	}
	s.URL = fmt.Sprintf("postgres://weir@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	if err := s.Start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.SysProcAttr, cmd.Dir = s.as, s.dir
	return cmd
}

// Start starts the server, again or for the first time, and waits until it answers.
func (s *Server) Start() error {
	s.cmd = s.program("postgres", "-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-k", s.dir, "-c", "fsync=off", "-c", "max_connections=50")
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return await(s.URL)
}

// Stop stops the server as an operator does, without waiting for its clients.
func (s *Server) Stop() { s.end(syscall.SIGINT) }

// Kill ends the server at once, as a crash does.
func (s *Server) Kill() { s.end(syscall.SIGQUIT) }

func (s *Server) end(signal os.Signal) {
	if s.cmd == nil {
		return
	}
	s.signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(signal)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Pause makes the server say nothing more, while its connections stand. Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

// signal sends to the server and to each of its processes, which have groups of their own.
func (s *Server) signal(signal syscall.Signal) {
	_ = syscall.Kill(s.cmd.Process.Pid, signal)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		parent, _ := strconv.Atoi(string(fields[1]))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && parent == s.cmd.Process.Pid {
			_ = syscall.Kill(pid, signal)
		}
	}
}

// Close stops the server and takes away what it kept.
func (s *Server) Close() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}
