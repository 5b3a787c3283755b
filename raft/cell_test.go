package raft

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"lockfs/internal/clock"
)

// A recorder is a Machine whose state is the list of all proposals.
type recorder struct {
	t    testing.TB
	busy atomic.Bool // inside a method: there must be one at a time

	mu       sync.Mutex
	applied  []string
	index    uint64
	indexes  []uint64 // of the entries with proposals that were applied
	leading  []Leadership
	saved    image // the checkpoint on its disk
	crashed  bool  // what is saved now does not get there any more
	saves    int
	restores int
	hold     chan struct{}                        // if not nil, Apply waits until it is closed
	holdBack chan struct{}                        // if not nil, Restore does
	holdDisk chan struct{}                        // if not nil, saving a checkpoint does
	saving   bool                                 // a checkpoint is under way
	breaks   int                                  // so many snapshots fail half way
	watch    func(index uint64, applied []string) // if not nil, is told what is applied
}

// An image is a state with its position.
type image struct {
	At      []byte
	Applied []string
	Index   uint64
}

func newRecorder(t testing.TB, saved image) *recorder {
	return &recorder{t: t, applied: slices.Clone(saved.Applied), index: saved.Index, saved: saved}
}

func (m *recorder) enter() func() {
	if !m.busy.CompareAndSwap(false, true) {
		m.t.Error("two methods of the machine run at once")
	}
	return func() { m.busy.Store(false) }
}

func (m *recorder) Apply(index uint64, proposals [][]byte) error {
	defer m.enter()()
	m.mu.Lock()
	hold := m.hold
	m.mu.Unlock()
	if hold != nil {
		<-hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if index <= m.index {
		m.t.Errorf("entry %d is applied after entry %d", index, m.index)
	}
	m.index = index
	if len(proposals) > 0 {
		m.indexes = append(m.indexes, index)
	}
	was := len(m.applied)
	defer func() {
		if m.watch != nil {
			m.watch(index, m.applied[was:])
		}
	}()
	for _, p := range proposals {
		if string(p) == "poison" {
			return errors.New("this proposal is not to be applied")
		}
		m.applied = append(m.applied, string(p))
	}
	return nil
}

func (m *recorder) Checkpoint(position []byte) func() error {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.saving {
		m.t.Error("two checkpoints are under way")
	}
	m.saving = true
	taken := image{position, slices.Clone(m.applied), m.index}
	hold := m.holdDisk
	return func() error {
		if hold != nil {
			<-hold
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.saving = false
		if m.crashed {
			return errors.New("crashed")
		}
		m.saved = taken
		m.saves++
		return nil
	}
}

func (m *recorder) Snapshot() (Snapshot, error) {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.breaks > 0 {
		m.breaks--
		return breaking{m.saved}, nil
	}
	return m.saved, nil
}

func (i image) Position() []byte                   { return i.At }
func (i image) WriteTo(w io.Writer) (int64, error) { return 0, gob.NewEncoder(w).Encode(i) }
func (i image) Close() error                       { return nil }

func (m *recorder) Restore(r io.Reader) ([]byte, uint64, error) {
	defer m.enter()()
	var got image
	if err := gob.NewDecoder(r).Decode(&got); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	hold := m.holdBack
	m.mu.Unlock()
	if hold != nil {
		<-hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.saving {
		m.t.Error("a checkpoint is under way while a snapshot is restored")
	}
	if m.crashed {
		return nil, 0, errors.New("crashed")
	}
	m.saved, m.applied, m.index = got, slices.Clone(got.Applied), got.Index
	m.restores++
	return got.At, got.Index, nil
}

func (m *recorder) Leadership(l Leadership) {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading = append(m.leading, l)
}

func (m *recorder) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.applied)
}

// told returns the last Leadership.
func (m *recorder) told() Leadership {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.leading) == 0 {
		return Leadership{}
	}
	return m.leading[len(m.leading)-1]
}

// holdApply makes Apply wait until the returned function is called.
func (m *recorder) holdApply() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	hold := make(chan struct{})
	m.hold = hold
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.hold = nil
		close(hold)
	}
}

// holdRestore makes Restore wait until the returned function is called.
func (m *recorder) holdRestore() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holdBack = make(chan struct{})
	return sync.OnceFunc(func() { close(m.holdBack) })
}

// holdSave makes saving a checkpoint wait until the returned function is called.
func (m *recorder) holdSave() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holdDisk = make(chan struct{})
	return sync.OnceFunc(func() { close(m.holdDisk) })
}

// tellings returns how often Leadership was called.
func (m *recorder) tellings() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.leading)
}

func (m *recorder) durable() image {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved
}

// A host is one member of a test's cell, with what outlives its replica.
type host struct {
	Member
	clock   *clock.Virtual
	disk    *MemoryDisk
	machine *recorder
	replica *Replica // nil while it is down
	failure error    // why the last replica ended
	joining bool     // it was added to a running cell
	server  *grpc.Server
	serving sync.WaitGroup
}

// A cell is some hosts and their network.
type cell struct {
	t     testing.TB
	net   *network
	hosts []*host
	// The members that it begins with.
	founders []Member
	tune     func(*Config) // changes the configuration of each replica
	ready    func(*host)   // is called with a new machine, before its replica starts
}

const testCluster = 0xce11

// inCell runs a test in virtual time, on a cell of so many hosts.
func inCell(t *testing.T, size int, tune func(*Config), test func(*testing.T, *cell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, size, 1, tune)
		defer c.stop()
		test(t, c)
	})
}

func newCell(t testing.TB, size int, seed uint64, tune func(*Config)) *cell {
	c := layCell(t, size, seed, tune)
	for _, h := range c.hosts {
		c.start(h)
	}
	return c
}

// layCell makes the hosts of a cell, all down.
func layCell(t testing.TB, size int, seed uint64, tune func(*Config)) *cell {
	c := &cell{t: t, net: newNetwork(seed), tune: tune}
	for i := range size {
		h := c.lay(uint64(i + 1))
		h.joining = false
		c.founders = append(c.founders, h.Member)
	}
	return c
}

// lay makes a host that is down, for a member of that id who is to join.
func (c *cell) lay(id uint64) *host {
	name := fmt.Sprintf("r%d", id)
	h := &host{
		Member: Member{ID: id, Name: name, Address: name, Incarnation: 0xda7a + id},
		clock:  clock.NewVirtual(), disk: NewMemoryDisk(), machine: newRecorder(c.t, image{}), joining: true,
	}
	c.hosts = append(c.hosts, h)
	return h
}

// wipe gives a host that is down a new data folder.
func (h *host) wipe(t testing.TB) {
	h.disk, h.machine = NewMemoryDisk(), newRecorder(t, image{})
	h.Incarnation += 0x10000
}

func (c *cell) config(h *host) Config {
	cfg := Config{
		ClusterID: testCluster, ID: h.ID, Incarnation: h.Incarnation, Joining: h.joining,
		Machine: h.machine, Position: h.machine.durable().At, Storage: h.disk.Open(),
		Clock: h.clock, Logger: testLogger(h.Name), Dial: c.net.dial(h.Name),
	}
	if !h.joining {
		cfg.Members = slices.Clone(c.founders)
	}
	if c.tune != nil {
		c.tune(&cfg)
	}
	return cfg
}

// testLogger is silent unless LOCKFS_TEST_LOG is set.
func testLogger(name string) *slog.Logger {
	if os.Getenv("LOCKFS_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	return slog.New(slog.NewTextHandler(os.Stderr, options)).With("replica", name)
}

// start starts a replica on what its disks have.
func (c *cell) start(h *host) {
	c.t.Helper()
	h.machine = newRecorder(c.t, h.machine.durable())
	if c.ready != nil {
		c.ready(h)
	}
	r, err := Start(c.config(h))
	if err != nil {
		c.t.Fatalf("%s: %v", h.Name, err)
	}
	h.replica, h.failure, h.server = r, nil, grpc.NewServer()
	r.Register(h.server)
	listener := c.net.listen(h.Address)
	h.serving.Go(func() { h.server.Serve(listener) })
}

// halt takes a host down; what is to end its replica is end's choice.
func (c *cell) halt(h *host, end func()) {
	end()
	h.replica.Stop()
	h.server.Stop()
	h.serving.Wait()
	h.failure, h.replica = h.replica.Err(), nil
}

// ended waits until a replica ends of itself, takes its host down and returns why.
func (c *cell) ended(h *host) error {
	c.t.Helper()
	select {
	case <-h.replica.Done():
	case <-time.After(30 * time.Second):
		c.t.Errorf("%s did not end within 30 s: %+v", h.Name, h.replica.Status())
	}
	c.halt(h, func() {})
	return h.failure
}

// crash takes a host down so that its disks forget what was not synced.
func (c *cell) crash(h *host) {
	c.halt(h, func() {
		h.machine.mu.Lock()
		h.machine.crashed = true
		h.machine.mu.Unlock()
		h.disk.Crash()
	})
}

func (c *cell) stop() {
	for _, h := range c.hosts {
		h.clock.Thaw()
		h.disk.Resume()
		if h.replica != nil {
			c.halt(h, func() {})
		}
	}
	time.Sleep(10 * time.Second) // connections take their time to end
}

// isolate cuts a host off from all others, or heals that.
func (c *cell) isolate(h *host, cut bool) {
	for _, other := range c.hosts {
		if other != h {
			c.net.set(h.Name, other.Name, cut)
		}
	}
}

// lastBut returns the last host that is not h: of equals, leadership is handed to it.
func (c *cell) lastBut(h *host) *host {
	if last := c.hosts[len(c.hosts)-1]; last != h {
		return last
	}
	return c.hosts[len(c.hosts)-2]
}

func (c *cell) up() []*host {
	return slices.DeleteFunc(slices.Clone(c.hosts), func(h *host) bool { return h.replica == nil })
}

// until waits, in virtual time, for something to become true.
func (c *cell) until(what string, is func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, h := range c.up() {
				c.t.Logf("%s: %+v", h.Name, h.replica.Status())
			}
			c.t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// leader waits until a replica that is not in but leads, and a majority agrees.
func (c *cell) leader(but ...*host) *host {
	c.t.Helper()
	var leader *host
	c.until("a leader", func() bool {
		for _, h := range c.up() {
			if !slices.Contains(but, h) && h.replica.Status().Role == "leader" && c.followers(h) > len(c.hosts)/2 {
				leader = h
				return true
			}
		}
		return false
	})
	return leader
}

// followers counts those who take h for the leader, h included.
func (c *cell) followers(h *host) int {
	n := 0
	for _, other := range c.up() {
		if other.replica.Status().Leader == h.ID {
			n++
		}
	}
	return n
}

// propose puts a text into the log through h, and waits until h has applied it.
func (c *cell) propose(h *host, text string) {
	c.t.Helper()
	if err := h.replica.Propose(h.replica.Status().Term, []byte(text)); err != nil {
		c.t.Fatalf("%s: propose %s: %v", h.Name, text, err)
	}
	c.until(h.Name+" has applied "+text, func() bool { return slices.Contains(h.machine.list(), text) })
}

// agree waits until all that are up have applied the same, and that many.
func (c *cell) agree(count int) {
	c.t.Helper()
	c.until(fmt.Sprintf("all have applied the same %d", count), func() bool {
		for _, h := range c.up() {
			if list := h.machine.list(); len(list) != count || !slices.Equal(list, c.up()[0].machine.list()) {
				return false
			}
		}
		return true
	})
}

func numbered(format string, n int) []string {
	var texts []string
	for i := range n {
		texts = append(texts, fmt.Sprintf(format, i))
	}
	return texts
}
