package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/proccell"
)

// Nothing that the load asks for may take longer. A lock is waited for behind the other workers,
// each of whom lets go soon.
const (
	callLimit = time.Minute
	waitLimit = 2 * time.Minute
)

const lockDelay = 5 * time.Second

// siege is a cell under load from two mounts and many clients of the library, all of whose calls
// are recorded, to be judged at the end.
type siege struct {
	*hosts
	seed    uint64
	moments moments
	places  map[kind][]*place
	referee referee

	stop    chan struct{} // closed by end
	ending  sync.Once
	workers []*worker
	callers []*caller
	shells  []*shell
	keepers []keeper
	working sync.WaitGroup
	progress
	logs map[string]string // of the mounts, when the load began
}

// progress counts acknowledged changes, by host ("library" is one) and what was changed.
type progress map[string]*atomic.Int64

func newProgress(hosts ...string) progress {
	p := make(progress)
	for _, host := range hosts {
		for _, k := range []kind{registers, journals, locks} {
			p[host+" "+string(k)] = new(atomic.Int64)
		}
	}
	return p
}

func (p progress) count(host string, k kind) { p[host+" "+string(k)].Add(1) }

// behind names what has not come so far as the goals.
func (p progress) behind(goals map[string]int64) []string {
	var names []string
	for name, goal := range goals {
		if p[name].Load() < goal {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// place is where workers meet: one of a few files or locks, which is a fresh one now and then.
type place struct {
	kind kind
	name string

	turning  sync.Mutex // held while the next chapter is made
	current  atomic.Pointer[chapter]
	chapters []*chapter // guarded by turning
}

// open makes the next chapter. It may be repeated after any error.
func (p *place) open(ctx context.Context, cell string, s *client.Session) error {
	name := fmt.Sprintf("%s-%04d", p.name, len(p.chapters))
	st, _, err := s.Create(ctx, client.Create{Path: pathOf(cell, name), Type: lockfs.File})
	if err != nil {
		return err
	}
	c := &chapter{kind: p.kind, name: name, made: st}
	p.chapters = append(p.chapters, c)
	p.current.Store(c)
	return nil
}

func pathOf(cell, name string) lockfs.Path { return lockfs.Path("/ls/" + cell + "/" + name) }

// worker is one of many who load the cell, and what all have in common.
type worker struct {
	*siege
	id     int
	host   string // the mount's name, or library
	random *rand.Rand
	holds  int                    // how often it has asked for a lock
	doing  atomic.Pointer[string] // what it waits for, for people; nil once it has ended
}

func (s *siege) newWorker(host string) *worker {
	w := &worker{siege: s, id: len(s.workers), host: host}
	w.random = rand.New(rand.NewPCG(s.seed, uint64(w.id)))
	s.workers = append(s.workers, w)
	return w
}

// begins says what the worker does from now on.
func (w *worker) begins(what asked, c *chapter) {
	text := fmt.Sprintf("worker %d on %s: %v of %s since %s", w.id, w.host, what, c.name, time.Now().Format(time.TimeOnly))
	w.doing.Store(&text)
}

// work repeats one of the steps, at random, with a moment between, until the siege ends.
func (w *worker) work(pause time.Duration, steps ...func()) {
	defer w.doing.Store(nil)
	timer := time.NewTimer(0)
	for {
		select {
		case <-timer.C:
		case <-w.stop:
			return
		}
		steps[w.random.IntN(len(steps))]()
		timer.Reset(time.Duration(w.random.ExpFloat64() * float64(pause)))
	}
}

// name is the worker's, for people.
func (w *worker) name() string { return fmt.Sprint("w", w.id) }

// owner is who asks for a lock, in the history: each time another.
func (w *worker) owner() string { return fmt.Sprintf("w%d.%d", w.id, w.holds) }

// anywhere chooses a place.
func (w *worker) anywhere(k kind) *place { return w.places[k][w.random.IntN(len(w.places[k]))] }

func (w *worker) mode() lockfs.Mode {
	if w.random.IntN(2) == 0 {
		return lockfs.Shared
	}
	return lockfs.Exclusive
}

// unique is a value that nobody else writes, nor this worker again.
func (w *worker) unique() string { return fmt.Sprintf("%s-%d\n", w.name(), w.moments.now()) }

// referee watches who believes to hold a lock, by locks of local files and by generations: a second
// opinion that needs no history.
type referee struct {
	folder string
	mu     sync.Mutex
	latest map[string]grant // by the lock's name
}

type grant struct {
	mode       lockfs.Mode
	generation uint64
}

// path is the local file that a holder of the lock locks too, without waiting.
func (r *referee) path(lock string) string { return filepath.Join(r.folder, lock) }

// enter is called by every holder of a lock while it holds it.
func (r *referee) enter(lock string, g grant) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.latest[lock]
	shared := g.mode == lockfs.Shared && last.mode == lockfs.Shared
	if g.generation < last.generation || g.generation == last.generation && !shared {
		return fmt.Errorf("%s is held %v at generation %d after it was %v at %d", lock, g.mode, g.generation, last.mode, last.generation)
	}
	r.latest[lock] = g
	return nil
}

// lockLocal takes the local lock, which fails where somebody else believes to hold what excludes it.
func (r *referee) lockLocal(lock string, mode lockfs.Mode) (*os.File, error) {
	file, err := os.OpenFile(r.path(lock), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_SH
	if mode == lockfs.Exclusive {
		how = unix.LOCK_EX
	}
	if err := flock(file, how|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("two hold %s at once: %w", lock, err), file.Close())
	}
	return file, nil
}

// unlockLocal does not leave that to the close: a process that is just being started has the file,
// too, until it becomes its program.
func (r *referee) unlockLocal(file *os.File) {
	flock(file, unix.LOCK_UN)
	file.Close()
}

// besiege starts the load: so many clients of the library, and so many shells on each mount.
func besiege(h *hosts, seed uint64, clients, shells int) *siege {
	s := &siege{hosts: h, seed: seed, stop: make(chan struct{})}
	s.referee = referee{folder: h.TempDir(), latest: make(map[string]grant)}
	s.progress = newProgress("library", h.a.Name, h.b.Name)
	s.places = make(map[kind][]*place)
	for k, n := range map[kind]int{registers: 6, journals: 3, locks: 6} {
		for i := range n {
			s.places[k] = append(s.places[k], &place{kind: k, name: fmt.Sprintf("%s-%d", k, i)})
		}
	}
	for range clients {
		s.callers = append(s.callers, newCaller(s))
	}
	s.openPlaces()
	for i := range 2 * shells {
		s.shells = append(s.shells, newShell(s, []*proccell.Mount{h.a, h.b}[i%2]))
	}
	s.keepers = append(s.keepers, s.keepByLibrary(lockfs.Exclusive))
	s.keepers = append(s.keepers, s.keepByLibrary(lockfs.Shared))
	s.keepers = append(s.keepers, s.keepByFlock(h.a))
	s.logs = map[string]string{h.a.Name: h.a.Log(), h.b.Name: h.b.Log()}
	s.Cleanup(s.end) // before anything ends that the workers use
	for _, c := range s.callers {
		s.working.Go(c.run)
	}
	for _, c := range s.shells {
		s.working.Go(c.run)
	}
	return s
}

func (s *siege) openPlaces() {
	for _, places := range s.places {
		for _, p := range places {
			s.ok(p.open(within(s.T, callLimit), s.cell.Name(), s.callers[0].session))
		}
	}
}

// awaitProgress waits until n more changes of every kind were acknowledged to every host, and
// returns how long that took.
func (s *siege) awaitProgress(n int64, limit time.Duration) time.Duration {
	s.Helper()
	began := time.Now()
	goals := make(map[string]int64)
	for name, count := range s.progress {
		goals[name] = count.Load() + n
	}
	ctx := within(s.T, limit)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		late := s.behind(goals)
		if len(late) == 0 {
			return time.Since(began)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			s.Fatalf("%d more acknowledged changes of each of %s: %v; %s", n, strings.Join(late, ", "), context.Cause(ctx), s.underway())
		}
	}
}

// underway says what the workers do.
func (s *siege) underway() string {
	var lines []string
	for _, w := range s.workers {
		if doing := w.doing.Load(); doing != nil {
			lines = append(lines, *doing)
		}
	}
	return strings.Join(lines, "\n")
}

// end ends the load, if it has not ended, and waits for the last calls.
func (s *siege) end() {
	s.Helper()
	s.ending.Do(func() { close(s.stop) })
	ended := make(chan struct{})
	go func() { s.working.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(waitLimit + callLimit):
		s.Fatalf("the last calls have not ended:\n%s", s.underway())
	}
}

// chapters are all, of one kind or of all kinds.
func (s *siege) chapters(kinds ...kind) []*chapter {
	var all []*chapter
	for _, k := range kinds {
		for _, p := range s.places[k] {
			all = append(all, p.chapters...)
		}
	}
	return all
}

// judge looks at everything the load has left.
func (s *siege) judge() {
	s.Helper()
	finals := s.readFinals()
	chapters := s.chapters(registers, journals, locks)
	for _, k := range s.keepers {
		chapters = append(chapters, k.chapter)
	}
	logs := s.wholeLogs()
	calls, dark := 0, 0
	for _, c := range chapters {
		dark += c.settle(func(host, file string) bool { return unknownIn(logs[host], pathOf(s.cell.Name(), file)) })
		calls += c.length()
	}
	began := time.Now()
	if err := checkAll(chapters, finals, time.Minute); err != nil {
		s.Error(err)
	}
	s.Logf("%d calls on %d files and locks checked in %v; the outcome of %d is unknown", calls, len(chapters), time.Since(began).Round(time.Millisecond), dark)
	for _, name := range slices.Sorted(maps.Keys(s.progress)) {
		s.Logf("%s: %d changes acknowledged", name, s.progress[name].Load())
	}
}

// wholeLogs are the logs of the mounts, which tell what is unknown, if nothing of them was dropped.
func (s *siege) wholeLogs() map[string]string {
	s.Helper()
	logs := map[string]string{s.a.Name: s.a.Log(), s.b.Name: s.b.Log()}
	for host, log := range logs {
		if !strings.HasPrefix(log, s.logs[host]) {
			s.Errorf("the log of the mount on host %s is too long to be kept, and may have told of unknown outcomes", host)
		}
		if strings.Contains(log, "session lost") {
			s.Errorf("the mount on host %s has lost its session", host)
		}
		s.Logf("the mount on host %s has logged %d bytes", host, len(log))
	}
	return logs
}

// readFinals reads every file through both mounts and by the library, which also tells how every lock
// is, as part of their histories. It returns the contents of the journals by name.
func (s *siege) readFinals() map[string]string {
	s.until("all locks are let go", waitLimit, func() bool {
		locks, err := s.cell.Lockfs(s.Context(), "locks")
		return err == nil && locks == ""
	})
	cell, err := client.Open(client.Config{Cell: s.cell.Name(), Addresses: s.addresses()})
	s.ok(err)
	defer cell.Close(within(s.T, callLimit))
	finals := make(map[string]string)
	for _, c := range s.chapters(registers, journals) {
		for _, host := range []*proccell.Mount{s.a, s.b} {
			s.readFinal(c, host.Name, func() (content []byte, generation uint64, err error) {
				content, err = os.ReadFile(host.Path(c.name))
				return content, 0, err
			})
		}
		finals[c.name] = s.readFinal(c, "", func() ([]byte, uint64, error) {
			content, st, err := cell.Reader().Read(within(s.T, callLimit), pathOf(s.cell.Name(), c.name), 0)
			return content, st.ContentGeneration, err
		})
	}
	for _, c := range s.chapters(locks) {
		s.readFinal(c, "", func() ([]byte, uint64, error) {
			state, err := cell.Reader().LockState(within(s.T, callLimit), pathOf(s.cell.Name(), c.name), 0)
			return []byte(state.Mode.String()), state.Generation, err
		})
	}
	return finals
}

func (s *siege) readFinal(c *chapter, host string, read func() (content []byte, generation uint64, err error)) string {
	s.Helper()
	began := s.moments.now()
	content, generation, err := read()
	s.ok(err)
	c.record(len(s.workers), began, asked{verb: reads, host: host}, answered{done, c.shown(content), generation}, s.moments.now())
	return string(content)
}

// shown is how contents stand in the chapter.
func (c *chapter) shown(content []byte) string {
	if c.kind == journals {
		return printOf(string(content))
	}
	return string(content)
}

// addresses are where clients find the cell.
func (s *siege) addresses() []string {
	var addresses []string
	for _, r := range s.cell.Replicas {
		addresses = append(addresses, r.Address)
	}
	return addresses
}
