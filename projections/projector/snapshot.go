package projector

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

const (
	snapshotDir      = "snapshots"
	snapshotPrefix   = "admission-"
	snapshotSuffix   = ".snapshot"
	asideSuffix      = ".corrupt"
	unfinishedPrefix = ".writing-"
	snapshotMagic    = "WEIRSNP1"
	snapshotsKept    = 2
	asideKept        = 2                // snapshots that could not be read, kept to be looked at
	maxHeader        = 64 << 20         // bytes before the fold's
	recentFor        = 10 * time.Second // answers that a restart still knows: a gateway waits for less
	recentMost       = 8192
)

// saver says when the next snapshot is due.
type saver struct {
	at     time.Time // zero while one is being written
	seq    uint64    // of the last one
	saving bool
}

// header is what a snapshot holds beside the fold's state.
type header struct {
	Seq     uint64    `json:"seq"`
	Created time.Time `json:"created"` // of the stream
	Chain   string    `json:"chain"`
	From    uint64    `json:"from"`    // where the next pack of verdicts begins
	Pending saved     `json:"pending"` // verdicts that are in no pack yet
	Recent  saved     `json:"recent"`  // answers that may still be asked for
	Fold    int       `json:"fold"`    // bytes of the fold's state

	// ClockStop is why it did not answer, for the stream's clock: a restart is no recover.
	ClockStop string `json:"clock_stop,omitempty"`
}

// saved are verdicts with what their encoding leaves out.
type saved struct {
	Gateways []events.Gateway `json:"gateways"`
	Fell     []uint64         `json:"fell,omitempty"`
	Verdicts json.RawMessage  `json:"verdicts"`
	Lapses   []savedLapse     `json:"lapses,omitempty"`
}

// savedLapse is a lapse among verdicts.
type savedLapse struct {
	Before int    `json:"before"` // how many verdicts stand before it
	Fell   uint64 `json:"fell"`

	Request events.RequestID  `json:"request"`
	State   events.LapseState `json:"state"`
	Time    int64             `json:"time"` // ns since 1970
}

func save(all []decided, fell bool) saved {
	s := saved{Gateways: make([]events.Gateway, 0, len(all)), Verdicts: []byte{'['}}
	for i := range all {
		if l := &all[i].lapse; all[i].isLapse() {
			s.Lapses = append(s.Lapses, savedLapse{len(s.Gateways), all[i].fell, l.Request, l.State, l.Time})
			continue
		}
		if len(s.Gateways) > 0 {
			s.Verdicts = append(s.Verdicts, ',')
		}
		s.Gateways = append(s.Gateways, all[i].verdict.Gateway)
		if fell {
			s.Fell = append(s.Fell, all[i].fell)
		}
		s.Verdicts = events.AppendVerdict(s.Verdicts, &all[i].verdict)
	}
	s.Verdicts = append(s.Verdicts, ']')
	return s
}

func (s *saved) load() ([]decided, error) {
	verdicts, err := events.DecodeVerdicts(s.Verdicts)
	if err != nil {
		return nil, err
	}
	if len(verdicts) != len(s.Gateways) || len(s.Fell) > 0 && len(s.Fell) != len(verdicts) {
		return nil, errors.New("verdicts without their gateways")
	}
	all := make([]decided, 0, len(verdicts)+len(s.Lapses))
	lapses := s.Lapses
	upTo := func(n int) {
		for ; len(lapses) > 0 && lapses[0].Before <= n; lapses = lapses[1:] {
			l := &lapses[0]
			all = append(all, decided{fell: l.Fell, lapse: events.Lapse{Request: l.Request, State: l.State, Time: l.Time}})
		}
	}
	for i := range verdicts {
		upTo(i)
		d := decided{verdict: verdicts[i]}
		d.verdict.Gateway = s.Gateways[i]
		if len(s.Fell) > 0 {
			d.fell = s.Fell[i]
		}
		all = append(all, d)
	}
	upTo(len(verdicts))
	return all, nil
}

// image is what is to be written, apart from what is still changing.
type image struct {
	header  header
	pending []decided
	recent  []events.Verdict
	fold    []byte
}

// image takes a picture of the state.
func (l *loop) image() image {
	since := l.now.Add(-recentFor).UnixNano()
	return image{
		header:  header{Seq: l.fold.Seq(), Created: l.created, Chain: l.chain.String(), From: l.packs.from, ClockStop: l.p.status.get(clockStop)},
		pending: append([]decided(nil), l.packs.pending...),
		recent:  l.p.answers.newest(recentMost, since),
		fold:    l.fold.Snapshot(nil),
	}
}

func (m *image) encode() ([]byte, error) {
	recent := make([]decided, len(m.recent))
	for i := range m.recent {
		recent[i].verdict = m.recent[i]
	}
	m.header.Pending, m.header.Recent, m.header.Fold = save(m.pending, true), save(recent, false), len(m.fold)
	head, err := json.Marshal(&m.header)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(snapshotMagic)+4+len(head)+len(m.fold)+sha256.Size)
	b = append(b, snapshotMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = append(append(b, head...), m.fold...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// decodeSnapshot reads what encode wrote. The error says what is wrong with it.
func decodeSnapshot(b []byte) (h header, fold *admission.Fold, err error) {
	start := len(snapshotMagic) + 4
	if len(b) < start+sha256.Size || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return h, nil, errors.New("is no snapshot of this version")
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if want := sha256.Sum256(body); string(want[:]) != string(sum) {
		return h, nil, errors.New("its checksum is wrong")
	}
	size := int(binary.BigEndian.Uint32(body[len(snapshotMagic):start]))
	if size > maxHeader || start+size > len(body) {
		return h, nil, errors.New("its header is cut off")
	}
	if err := json.Unmarshal(body[start:start+size], &h); err != nil {
		return h, nil, fmt.Errorf("its header: %w", err)
	}
	if start+size+h.Fold != len(body) {
		return h, nil, errors.New("its state is cut off")
	}
	if fold, err = admission.Restore(body[start+size:]); err != nil {
		return h, nil, err
	}
	if fold.Seq() != h.Seq {
		return h, nil, fmt.Errorf("its header says sequence %d, its state %d", h.Seq, fold.Seq())
	}
	return h, fold, nil
}

// ReadSnapshot reads the fold's state from a projector's snapshot, and when the stream of its log was made. The error says what is wrong
// with it.
func ReadSnapshot(b []byte) (created time.Time, fold *admission.Fold, err error) {
	h, fold, err := decodeSnapshot(b)
	return h.Created, fold, err
}

// ClockStopped says whether the projector that wrote a snapshot did not answer, for the stream's clock.
func ClockStopped(b []byte) bool {
	h, _, err := decodeSnapshot(b)
	return err == nil && h.ClockStop != ""
}

func (p *Projector) dir() string { return filepath.Join(p.cfg.DataDir, snapshotDir) }

// restore takes up the newest snapshot that can be read, if there is one. One that cannot is set aside.
func (l *loop) restore() error {
	if l.p.cfg.DataDir == "" {
		return nil
	}
	for _, path := range l.p.unfinished() {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove an unfinished snapshot: %w", err)
		}
	}
	names, err := snapshots(l.p.dir())
	if err != nil {
		return fmt.Errorf("read snapshots: %w", err)
	}
	for i := len(names) - 1; i >= 0; i-- {
		path := filepath.Join(l.p.dir(), names[i])
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read snapshots: %w", err)
		}
		if err = l.load(b); err == nil {
			l.stats.SnapshotSeq, l.saver.seq = l.fold.Seq(), l.fold.Seq()
			return nil
		}
		l.p.cfg.Logger.Warn("projector: a snapshot cannot be used and is set aside", "file", path, "error", err)
		if err := os.Rename(path, path+asideSuffix); err != nil {
			return fmt.Errorf("set a snapshot aside: %w", err)
		}
	}
	return nil
}

// unfinished lists the files of snapshots that a process which ended did not finish.
func (p *Projector) unfinished() []string {
	paths, _ := filepath.Glob(filepath.Join(p.dir(), unfinishedPrefix+"*")) // the pattern is well-formed
	return paths
}

// load takes a snapshot's state up, all or nothing.
func (l *loop) load(b []byte) error {
	h, fold, err := decodeSnapshot(b)
	if err != nil {
		return err
	}
	return l.takeUp(h, fold)
}

// takeUp goes on from where a snapshot was taken, all or nothing.
func (l *loop) takeUp(h header, fold *admission.Fold) error {
	pending, err := h.Pending.load()
	if err != nil {
		return err
	}
	recent, err := h.Recent.load()
	if err != nil {
		return err
	}
	var chain journal.Chain
	if n, err := hex.Decode(chain[:], []byte(h.Chain)); err != nil || n != len(chain) {
		return fmt.Errorf("chain %q is not 64 hex digits", h.Chain)
	}
	l.fold, l.chain, l.created = fold, chain, h.Created
	l.packs.pending, l.packs.from = pending, h.From
	l.packs.ended(h.Seq, fold.Digest(), chain)
	l.packs.digest(h.Seq, fold.Digest())
	l.p.answers.keep(recent, l.now.UnixNano())
	l.p.status.set(clockStop, h.ClockStop)
	if !fold.Supported() {
		l.unsupported()
	}
	return nil
}

// snapshots lists the snapshots in a directory, oldest first.
func snapshots(dir string) ([]string, error) { return files(dir, snapshotSuffix) }

func files(dir, suffix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), snapshotPrefix) && strings.HasSuffix(e.Name(), suffix) {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

// save takes a snapshot if one is due, and has it written beside the fold.
func (l *loop) save() {
	s := &l.saver
	if s.saving || l.now.Before(s.at) {
		return
	}
	share := l.shareDue()
	keep := l.p.cfg.DataDir != "" && l.fold.Seq() != s.seq
	if !keep && !share || l.unproven() {
		s.at = l.now.Add(l.p.cfg.SnapshotEvery)
		return
	}
	m := l.image()
	s.saving, s.at = true, time.Time{}
	ctx, stop := context.WithTimeout(l.ctx, shareFor)
	l.sharer.stop = stop
	l.async(func(context.Context) func() {
		defer stop()
		return l.store(ctx, &m, share)
	})
}

// unproven says whether nothing may be kept yet: nothing was folded, or it began from what another shared and has not been compared with
// what the log says was decided since.
func (l *loop) unproven() bool {
	return l.p.status.get(catching) != "" && (l.borrowed || l.fold.Seq() == 0)
}

// store writes a snapshot, and shares it if that is due. What it returns takes in what became of that.
func (l *loop) store(ctx context.Context, m *image, share bool) (then func()) {
	start := time.Now()
	b, err := m.encode()
	if err == nil && l.p.cfg.DataDir != "" {
		err = l.p.writeSnapshot(m.header.Seq, b)
	}
	took := time.Since(start)
	var failed error
	if share && err == nil {
		failed = l.share(ctx, m, b)
	}
	return func() {
		l.saved(m, len(b), took, err)
		if share && err == nil {
			l.shared(m, failed)
		}
	}
}

// saveSoon has a snapshot taken as soon as can be.
func (l *loop) saveSoon() {
	if !l.saver.saving { // else saved does it
		l.saver.at = l.now
	}
}

// saved takes in what became of a snapshot, and says when the next may be taken.
func (l *loop) saved(m *image, size int, took time.Duration, err error) {
	l.saver.saving = false
	l.saver.at = l.now.Add(max(l.p.cfg.SnapshotEvery, snapshotShare*took))
	if m.header.ClockStop != l.p.status.get(clockStop) {
		l.saveSoon()
	}
	if err == nil && l.p.cfg.DataDir == "" {
		return
	}
	if err != nil {
		l.stats.SnapshotsFailed++
		l.p.cfg.Logger.Error("projector: a snapshot could not be written", "error", err)
		return
	}
	l.saver.seq = m.header.Seq
	l.stats.Snapshots++
	l.stats.SnapshotSeq, l.stats.SnapshotBytes, l.stats.SnapshotTime, l.stats.SnapshotAt = m.header.Seq, int64(size), took, l.now
}

// Keep writes a snapshot at once, as when the log is lost: nothing newer is to come. The error says why there is none, ErrStopped that the
// projector has ended, which writes one itself.
func (p *Projector) Keep(ctx context.Context) error {
	taken := make(chan *image, 1)
	take := func(l *loop) {
		if l.p.cfg.DataDir == "" || l.fold.Seq() == 0 || l.unproven() || l.fold.Seq() == l.saver.seq {
			taken <- nil // there is one, or none can be
			return
		}
		m := l.image()
		taken <- &m
	}
	var m *image
	select {
	case p.commands <- take:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		return ErrStopped
	}
	select {
	case m = <-taken:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		return ErrStopped
	}
	if m == nil {
		return nil
	}
	b, err := m.encode()
	if err == nil {
		err = p.writeSnapshot(m.header.Seq, b)
	}
	if err != nil {
		return fmt.Errorf("keep a snapshot: %w", err)
	}
	return nil
}

// saveLast writes a snapshot when the projector has stopped, so that it starts quickly again, and shares it if it was the writer.
func (l *loop) saveLast() {
	share := l.writer.active() && l.fold.Seq() != l.sharer.seq
	keep := l.p.cfg.DataDir != "" && l.fold.Seq() != l.saver.seq
	if !keep && !share || l.fold.Seq() == 0 || l.unproven() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shareLastFor)
	defer cancel()
	m := l.image()
	l.store(ctx, &m, share)()
	l.publishStats()
}

// writeSnapshot makes a snapshot's file whole and durable before it gets its name, and removes those that are no longer needed.
func (p *Projector) writeSnapshot(seq uint64, b []byte) error {
	dir := p.dir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, unfinishedPrefix+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, fmt.Sprintf("%s%020d%s", snapshotPrefix, seq, snapshotSuffix)))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return errors.Join(syncDir(dir), prune(dir, snapshotSuffix, snapshotsKept), prune(dir, asideSuffix, asideKept))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// prune removes all but the newest files.
func prune(dir, suffix string, keep int) error {
	names, err := files(dir, suffix)
	if err != nil {
		return err
	}
	for len(names) > keep {
		if err := os.Remove(filepath.Join(dir, names[0])); err != nil {
			return err
		}
		names = names[1:]
	}
	return nil
}
