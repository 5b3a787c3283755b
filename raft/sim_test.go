package raft

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeed  = flag.Uint64("seed", 1, "first seed of TestSim")
	simSeeds = flag.Uint64("seeds", 8, "how many seeds TestSim tries")
)

// A ledger knows what must be true of a cell whatever happens to it.
type ledger struct {
	t *testing.T

	mu       sync.Mutex
	byIndex  map[uint64]string // what is applied at an index, on whichever replica
	acked    map[string]uint64 // proposals applied by who proposed them, by index
	last     uint64            // the highest of these indexes
	proposed map[string][]string
	reads    int
}

// applied hears of each entry that a replica applies.
func (l *ledger) applied(h *host, index uint64, texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Join(texts, ",")
	if was, ok := l.byIndex[index]; ok && was != all {
		l.t.Errorf("%s applies %q as entry %d, and another applied %q", h.Name, all, index, was)
	}
	l.byIndex[index] = all
	for _, text := range texts {
		if strings.HasPrefix(text, h.Name+"/") {
			l.acked[text] = index
			l.last = max(l.last, index)
		}
	}
}

// TestSim lets replicas crash, lose their ways to each other, freeze and wait for slow disks, as
// the seed says, while proposals and reads go on. (The schedule of goroutines is not the seed's.)
func TestSim(t *testing.T) {
	for seed := *simSeed; seed < *simSeed+*simSeeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	l := &ledger{t: t, byIndex: make(map[uint64]string), acked: make(map[string]uint64), proposed: make(map[string][]string)}
	random := rand.New(rand.NewPCG(seed, 0))
	size := 3 + 2*random.IntN(2)
	c := layCell(t, size, seed, func(cfg *Config) {
		cfg.CheckpointEntries, cfg.TailEntries = 30, 10
	})
	c.ready = func(h *host) {
		h.machine.watch = func(index uint64, texts []string) { l.applied(h, index, texts) }
	}
	for _, h := range c.hosts {
		h.disk.SyncTime = time.Duration(random.IntN(5)) * time.Millisecond
		c.start(h)
	}
	defer c.stop()

	w := &world{cell: c, random: random, ledger: l, turn: make(chan struct{}, 1), pace: 30}
	ctx, cancel := context.WithCancel(t.Context())
	var users sync.WaitGroup
	for _, h := range c.hosts {
		users.Go(func() { w.proposer(ctx, h) })
		users.Go(func() { w.reader(ctx, h) })
	}
	for range 150 {
		w.fault(12)
		time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond)
	}
	cancel()
	users.Wait()
	w.heal()
	w.check(w.leader())
}

// A world is a cell with its faults. Users keep off a host that is being restarted: whoever has
// put something into turn may look. (Waiting for a mutex, virtual time would stand still.)
type world struct {
	*cell
	turn   chan struct{}
	pace   int        // of the users: the longest pause of a proposer, in milliseconds
	random *rand.Rand // of the goroutine that makes faults
	ledger *ledger
}

// replicaOf returns what runs on h, nil if nothing does.
func (w *world) replicaOf(h *host) (*Replica, *recorder) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	return h.replica, h.machine
}

// proposer proposes at its host whenever that believes to lead.
func (w *world) proposer(ctx context.Context, h *host) {
	random := rand.New(rand.NewPCG(h.ID, 7))
	for n := 0; ctx.Err() == nil; time.Sleep(time.Duration(random.IntN(w.pace)) * time.Millisecond) {
		r, machine := w.replicaOf(h)
		if r == nil || !machine.told().Leading {
			continue
		}
		term := machine.told().Term
		for range random.IntN(8) {
			n++
			text := fmt.Sprintf("%s/%d/%d", h.Name, term, n)
			if r.Propose(term, []byte(text)) != nil {
				break
			}
			w.ledger.mu.Lock()
			key := fmt.Sprintf("%s/%d", h.Name, term)
			w.ledger.proposed[key] = append(w.ledger.proposed[key], text)
			w.ledger.mu.Unlock()
		}
	}
}

// reader checks that an index it gets covers all that was acknowledged anywhere before it asked.
func (w *world) reader(ctx context.Context, h *host) {
	random := rand.New(rand.NewPCG(h.ID, 9))
	for ; ctx.Err() == nil; time.Sleep(time.Duration(random.IntN(2*w.pace)) * time.Millisecond) {
		r, _ := w.replicaOf(h)
		if r == nil {
			continue
		}
		w.ledger.mu.Lock()
		acked := w.ledger.last
		w.ledger.mu.Unlock()
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		index, err := r.ReadIndex(short)
		cancel()
		w.ledger.mu.Lock()
		if err == nil {
			w.ledger.reads++
			if index < acked {
				w.t.Errorf("%s read at %d what was acknowledged up to %d", h.Name, index, acked)
			}
		}
		w.ledger.mu.Unlock()
	}
}

// fault does something to one host or two, or mends it: one of the first kinds.
func (w *world) fault(kinds int) {
	h := w.hosts[w.random.IntN(len(w.hosts))]
	other := w.hosts[w.random.IntN(len(w.hosts))]
	switch w.random.IntN(kinds) {
	case 0:
		w.isolate(h, true)
	case 1:
		w.isolate(h, false)
	case 2:
		w.net.set(h.Name, other.Name, true)
	case 3:
		w.net.set(h.Name, other.Name, false)
	case 4:
		w.net.slow(time.Duration(w.random.IntN(60)) * time.Millisecond)
	case 5:
		h.disk.Hang()
	case 6:
		w.quiet()
	case 7, 8:
		w.restart(h, w.crash)
	case 9:
		w.restart(h, func(h *host) { w.halt(h, func() {}) })
	case 10:
		h.clock.Freeze()
		w.isolate(h, true)
	case 11:
		w.isolate(h, false)
		h.clock.Thaw()
	}
}

// quiet ends all faults, but whoever is down stays so.
func (w *world) quiet() {
	w.net.slow(0)
	for _, h := range w.hosts {
		h.disk.Resume()
		w.isolate(h, false)
		h.clock.Thaw()
	}
}

// restart takes a host down, or up again if it was down.
func (w *world) restart(h *host, down func(*host)) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	h.disk.Resume()
	if h.replica == nil {
		w.start(h)
	} else {
		down(h)
	}
}

// heal mends everything.
func (w *world) heal() {
	w.quiet()
	for _, h := range w.hosts {
		if h.replica == nil {
			w.start(h)
		}
	}
}

// check looks at a cell that has been healed: it works again, and nothing is lost, twice or out of
// order.
func (w *world) check(leader *host) {
	began := time.Now()
	w.propose(leader, "the end")
	w.until("all have applied the end", func() bool {
		return !slices.ContainsFunc(w.hosts, func(h *host) bool { return !slices.Contains(h.machine.list(), "the end") })
	})
	took := time.Since(began)
	list := leader.machine.list()
	for _, h := range w.hosts {
		select {
		case <-h.replica.Done():
			w.t.Errorf("%s ended: %v", h.Name, h.replica.Err())
		default:
		}
		if !slices.Equal(h.machine.list(), list) {
			w.t.Errorf("%s and %s applied different things", h.Name, leader.Name)
		}
	}
	place := make(map[string]int)
	for i, text := range list {
		if _, twice := place[text]; twice {
			w.t.Errorf("%s is there twice", text)
		}
		place[text] = i
	}
	l := w.ledger
	for text := range l.acked {
		if _, ok := place[text]; !ok {
			w.t.Errorf("%s was acknowledged and is lost", text)
		}
	}
	for _, texts := range l.proposed {
		w.checkOrder(texts, place)
	}
	w.t.Logf("%d replicas: %d proposals acknowledged of %d applied, %d reads, the last one by all after %v",
		len(w.hosts), len(l.acked), len(list), l.reads, took)
	if len(l.acked) < 100 || l.reads < 20 {
		w.t.Error("there was hardly anything to check")
	}
}

// checkOrder checks that of what one leader proposed a beginning is there, in its order.
func (w *world) checkOrder(texts []string, place map[string]int) {
	before, gone := -1, ""
	for _, text := range texts {
		at, ok := place[text]
		switch {
		case !ok:
			gone = text
		case gone != "":
			w.t.Errorf("%s is there, and %s, proposed before it, is not", text, gone)
		case at < before:
			w.t.Errorf("%s comes before what was proposed before it", text)
		}
		before = max(before, at)
	}
}
