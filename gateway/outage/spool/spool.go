// Package spool is a gateway's durable journal of what it does while the log is out of reach. Each event is on the disk before Append
// returns, so that a call to a model is never made without its intent; what is spooled is published when the log is back.
//
// A spool is a directory of segments under the name of the gateway process whose events it holds. A segment is a header and then frames:
// a length and a CRC-32C, both of 4 bytes, big endian, and that many bytes of one event, as a CloudEvents batch of one. A frame that is cut off or
// damaged ends its segment: what stands before it counts. A spool is locked by the process that uses it.
package spool

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/weirhq/weir/events"
)

// Bounds of a spool.
const (
	// MaxBytes bounds what a gateway may have spooled. The allowance is used up long before; a dedicated endpoint's is not.
	MaxBytes = 64 << 20

	// segmentBytes is after how much another segment is begun, so that what was published can be removed.
	segmentBytes = 1 << 20

	// maxFrame bounds one event, so that a damaged length is not taken for one.
	maxFrame = 1 << 20

	frameHead = 8
	maxHead   = 4 << 10
	suffix    = ".spool"
	lockName  = "lock"
	damaged   = ".damaged"
)

const magic = "WEIRSPL1"

// ErrFull says that the spool holds MaxBytes.
var ErrFull = errors.New("the spool is full")

// ErrBroken says that a write failed and could not be taken back: the spool takes no more.
var ErrBroken = errors.New("the spool could not be written and takes no more")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Head says whose events a segment holds.
type Head struct {
	Gateway events.Gateway `json:"gateway"`
	Epoch   int64          `json:"epoch"`
	// After is the last sequence of the log that was seen when the segment was begun: what is spooled can only stand after it.
	After uint64 `json:"after"`
}

// Spool is the spool of one gateway process. Its methods may be called at the same time.
type Spool struct {
	dir  string
	lock *os.File

	mu       sync.Mutex
	head     Head
	segments []*segment // oldest first; the last one is being written
	next     int        // number of the next segment
	broken   error
	waiting  int
	bytes    int64
}

type segment struct {
	path    string
	head    Head
	file    *os.File // nil unless it is being written
	size    int64
	entries []entry // that are not published
	closed  bool    // another one has been begun
}

type entry struct {
	event events.Event
	size  int64
}

// Entry is one event that is spooled.
type Entry struct {
	events.Event
	After uint64 // it can only stand after this sequence of the log
}

// Open opens, or makes, the spool of a gateway process under a directory and locks it. Damage is what of it could not be read: it has been
// cut off, and is kept beside it. The error is os.ErrExist's kind if another process uses the spool.
func Open(dir string, head Head) (s *Spool, damage []string, err error) {
	if !head.Gateway.Valid() {
		return nil, nil, fmt.Errorf("open the spool: gateway %q is no name", head.Gateway)
	}
	s = &Spool{dir: filepath.Join(dir, string(head.Gateway)), head: head, next: 1}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("open the spool: %w", err)
	}
	if s.lock, err = takeLock(s.dir); err != nil {
		return nil, nil, fmt.Errorf("open the spool %s: %w", s.dir, err)
	}
	if damage, err = s.load(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the spool %s: %w", s.dir, err), s.lock.Close())
	}
	return s, damage, syncDir(dir)
}

// Left lists the gateway processes that have a spool under a directory, those in use included.
func Left(dir string) (names []events.Gateway, err error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the spools: %w", err)
	}
	for _, d := range all {
		if name := events.Gateway(d.Name()); d.IsDir() && name.Valid() {
			names = append(names, name)
		}
	}
	return names, nil
}

// InUse says whether an error of Open means that another process uses the spool.
func InUse(err error) bool { return errors.Is(err, syscall.EWOULDBLOCK) }

func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("it is in use: %w", err), f.Close())
	}
	return f, nil
}

// load reads the segments that are there.
func (s *Spool) load() (damage []string, err error) {
	paths, err := filepath.Glob(filepath.Join(s.dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	sort.Strings(paths)
	for _, path := range paths {
		g := &segment{path: path, closed: true}
		why, err := g.read()
		if err != nil {
			return damage, err
		}
		if why != "" {
			damage = append(damage, fmt.Sprintf("%s: %s", path, why))
		}
		var n int
		if _, err := fmt.Sscanf(strings.TrimSuffix(filepath.Base(path), suffix), "%d", &n); err == nil {
			s.next = max(s.next, n+1)
		}
		if g.head.Epoch > 0 { // read, if only its head
			s.head.Epoch = max(s.head.Epoch, g.head.Epoch)
		}
		if len(g.entries) == 0 {
			if err := os.Remove(path); err != nil {
				return damage, err
			}
			continue
		}
		s.segments = append(s.segments, g)
		s.waiting += len(g.entries)
		s.bytes += g.size
	}
	return damage, nil
}

// read reads a segment. What cannot be read is cut off, after a copy of the whole has been set aside; why says what was wrong.
func (g *segment) read() (why string, err error) {
	b, err := os.ReadFile(g.path)
	if err != nil {
		return "", err
	}
	good, why := g.parse(b)
	g.size = good
	if why == "" {
		return "", nil
	}
	if err := os.WriteFile(g.path+damaged, b, 0o600); err != nil {
		return "", err
	}
	f, err := os.OpenFile(g.path, os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	return why, errors.Join(f.Truncate(good), f.Sync(), f.Close())
}

// parse takes in what can be read of a segment, and says up to where that is.
func (g *segment) parse(b []byte) (good int64, why string) {
	head, n, why := frame(b[min(len(magic), len(b)):])
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return 0, "it is no segment of this version"
	}
	if why != "" || len(head) > maxHead || json.Unmarshal(head, &g.head) != nil {
		return 0, "its head cannot be read"
	}
	at := int64(len(magic)) + n
	for at < int64(len(b)) {
		data, n, why := frame(b[at:])
		if why != "" {
			return at, fmt.Sprintf("%s at byte %d of %d", why, at, len(b))
		}
		evs, err := events.DecodePack(data)
		if err != nil || len(evs) != 1 {
			return at, fmt.Sprintf("no event at byte %d of %d", at, len(b))
		}
		g.entries = append(g.entries, entry{evs[0], n})
		at += n
	}
	return at, ""
}

// frame takes the first frame off b.
func frame(b []byte) (data []byte, n int64, why string) {
	if len(b) < frameHead {
		return nil, 0, "a frame is cut off"
	}
	size := binary.BigEndian.Uint32(b)
	switch {
	case size == 0 || size > maxFrame:
		return nil, 0, "a frame has a length that cannot be"
	case int(size) > len(b)-frameHead:
		return nil, 0, "a frame is cut off"
	}
	data = b[frameHead : frameHead+size]
	if crc32.Checksum(data, castagnoli) != binary.BigEndian.Uint32(b[4:]) {
		return nil, 0, "a frame has a wrong checksum"
	}
	return data, int64(frameHead + size), ""
}

func appendFrame(dst, data []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(data, castagnoli))
	return append(dst, data...)
}

// Append spools an event: when it returns nil, the event is on the disk. After is the last sequence of the log that has been seen.
func (s *Spool) Append(ev events.Event, after uint64) error {
	data := events.AppendPack(nil, []events.Event{ev})
	if len(data) > maxFrame {
		return fmt.Errorf("spool event %s: %d bytes, more than %d", ev.ID, len(data), maxFrame)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	size := int64(frameHead + len(data))
	switch {
	case s.broken != nil:
		return s.broken
	case s.bytes+size > MaxBytes:
		return ErrFull
	}
	g, err := s.open(after)
	if err != nil {
		return fmt.Errorf("spool event %s: %w", ev.ID, err)
	}
	if err := g.write(appendFrame(make([]byte, 0, size), data)); err != nil {
		if back := g.file.Truncate(g.size); back != nil {
			s.broken = fmt.Errorf("%w: %w", ErrBroken, back)
		}
		return fmt.Errorf("spool event %s: %w", ev.ID, err)
	}
	g.size += size
	s.bytes += size
	g.entries = append(g.entries, entry{ev, size})
	s.waiting++
	return nil
}

// write puts bytes at the segment's end, and on the disk. What a failed write left behind is cut off by the caller, or overwritten.
func (g *segment) write(b []byte) error {
	if _, err := g.file.WriteAt(b, g.size); err != nil {
		return err
	}
	return g.file.Sync()
}

// open gives the segment to be written, beginning one if need be. The lock is held.
func (s *Spool) open(after uint64) (*segment, error) {
	if n := len(s.segments); n > 0 && s.segments[n-1].file != nil {
		if g := s.segments[n-1]; g.size < segmentBytes {
			return g, nil
		}
		s.segments[n-1].close()
	}
	g := &segment{path: filepath.Join(s.dir, fmt.Sprintf("%012d%s", s.next, suffix)), head: s.head}
	g.head.After = after
	head, err := json.Marshal(g.head)
	if err != nil {
		return nil, err
	}
	if g.file, err = os.OpenFile(g.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	b := appendFrame([]byte(magic), head)
	if err := errors.Join(g.write(b), syncDir(s.dir)); err != nil {
		return nil, errors.Join(err, g.file.Close(), os.Remove(g.path))
	}
	g.size = int64(len(b))
	s.next++
	s.bytes += g.size
	s.segments = append(s.segments, g)
	return g, nil
}

func (g *segment) close() {
	_ = g.file.Close() // everything in it has been synced
	g.file, g.closed = nil, true
}

// Waiting counts the events that are not published.
func (s *Spool) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Head says whose events the spool holds; its epoch is the highest of its segments.
func (s *Spool) Head() Head {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head
}

// Next gives the oldest events that are not published, at most as many, in the order in which they were spooled.
func (s *Spool) Next(most int) (all []Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		for _, e := range g.entries {
			if len(all) == most {
				return all
			}
			all = append(all, Entry{e.event, g.head.After})
		}
	}
	return all
}

// Published notes that the oldest n events are in the log. Segments of which all are, are removed; those of which some are will be
// read whole after a crash, and are looked for then.
func (s *Spool) Published(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n > 0 && len(s.segments) > 0 {
		g := s.segments[0]
		some := min(n, len(g.entries))
		g.entries = g.entries[some:]
		n, s.waiting = n-some, s.waiting-some
		if len(g.entries) > 0 {
			break
		}
		if g.file != nil {
			g.close()
		}
		s.bytes -= g.size
		s.segments[0] = nil
		s.segments = s.segments[1:]
		if err := os.Remove(g.path); err != nil {
			return fmt.Errorf("remove a spool that was published: %w", err)
		}
	}
	return nil
}

// Close gives the spool up. One that is empty, and has nothing set aside, is removed.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		if g.file != nil {
			g.close()
		}
	}
	s.broken = errors.New("the spool is closed")
	var err error
	if kept, globbed := filepath.Glob(filepath.Join(s.dir, "*"+damaged)); s.waiting == 0 && globbed == nil && len(kept) == 0 {
		err = errors.Join(os.Remove(filepath.Join(s.dir, lockName)), os.Remove(s.dir))
	}
	return errors.Join(err, s.lock.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
