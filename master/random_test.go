package master

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lockfs"
	"lockfs/store/storepb"
)

var seeds = flag.Int("seeds", 200, "how many random histories of the machine to play")

// TestEveryCallIsAnsweredOnce plays random calls on two files, with proposals under way for a
// while, sessions that expire and lock-delays. Every call must be answered once and no more, no
// exclusive waiter may overtake another, and when everybody lets go in the end nobody may be left
// waiting.
func TestEveryCallIsAnsweredOnce(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newHistory(t, uint64(seed))
			for range 300 {
				h.step()
			}
			h.finish()
		})
	}
}

type history struct {
	*teller
	random  *rand.Rand
	open    map[*call]bool
	silent  map[uint64]bool // sessions that nobody renews any more
	arrival map[*call]int   // of exclusive waiters who hold nothing
	clock   int
	served  map[lockfs.Path]int // the arrival of the last of them that was granted
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		teller: newTeller(t), random: rand.New(rand.NewPCG(seed, 0)), open: make(map[*call]bool),
		silent: make(map[uint64]bool), arrival: make(map[*call]int), served: make(map[lockfs.Path]int),
	}
	h.machine.lead(h.at, 1)
	h.drain()
	for range 4 {
		h.session()
	}
	for _, path := range []string{"/ls/c/x", "/ls/c/y"} {
		h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_Create{Create: &storepb.Create{Path: path, Type: uint32(lockfs.File)}}})
		h.drain()
	}
	return h
}

func (h *history) session() {
	c := new(call)
	h.open[c] = true
	h.machine.createSession(h.at, c, new(storepb.CreateSession))
	h.drain()
}

// call has the machine take a mutation under the session's next number, if the session lives.
func (h *history) call(m *storepb.Mutation) {
	if h.machine.session(m.Session, "") != nil {
		return
	}
	h.numbers[m.Session]++
	m.Number = h.numbers[m.Session]
	c := &call{mutation: m}
	h.open[c] = true
	h.machine.mutate(h.at, c)
	if c.waiter != nil && !c.waiter.converts && c.waiter.mode == lockfs.Exclusive {
		h.clock++
		h.arrival[c] = h.clock
	}
	h.hear()
}

func (h *history) step() {
	session, owner := 1+h.random.Uint64N(6), 1+h.random.Uint64N(3)
	path := []string{"/ls/c/x", "/ls/c/y"}[h.random.IntN(2)]
	switch h.random.IntN(12) {
	case 0, 1, 2, 3:
		h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_Acquire{Acquire: &storepb.Acquire{
			Path: path, Owner: owner, Mode: 1 + h.random.Uint32N(2), Waits: h.random.IntN(3) > 0,
			LockDelayMs: int64(h.random.IntN(3)) * 1000}}})
	case 4, 5:
		h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_Release{Release: &storepb.Release{Path: path, Owner: owner}}})
	case 6:
		h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_CloseOwner{CloseOwner: &storepb.CloseOwner{Owner: owner}}})
	case 7:
		number := 1 + h.random.Uint64N(h.numbers[session]+1)
		h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_GiveUp{GiveUp: &storepb.GiveUp{Number: number}}})
	case 8:
		h.at.now = h.at.now.Add(time.Duration(h.random.IntN(4000)) * time.Millisecond)
		h.machine.tick(h.at)
	case 9:
		switch h.random.IntN(6) {
		case 0:
			h.session()
		case 1:
			h.silent[session] = true
		case 2:
			h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_Delete{Delete: &storepb.Delete{Path: path}}})
			h.served[lockfs.Path(path)] = 0
		case 3:
			h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_CloseSession{CloseSession: new(storepb.CloseSession)}})
		default:
			h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_Create{Create: &storepb.Create{Path: path, Type: uint32(lockfs.File)}}})
		}
	default:
		h.applyOne()
	}
	h.renew()
	h.hear()
}

// renew keeps those sessions alive that are not silent.
func (h *history) renew() {
	for _, s := range h.machine.state.Sessions() {
		if !h.silent[s.ID] {
			h.machine.hellos[s.ID] = hello{}
			h.machine.renew(h.at, s.ID, nil)
		}
	}
}

func (h *history) applyOne() bool {
	if len(h.machine.proposals) == 0 {
		return false
	}
	p := h.machine.proposals[0]
	h.machine.proposals = h.machine.proposals[1:]
	h.index++
	outcome, err := h.machine.state.Apply(h.index, p)
	h.must(err)
	h.machine.applied(h.at, p, outcome)
	h.hear()
	return true
}

func (h *history) drain() {
	for h.applyOne() {
	}
	h.hear()
}

// hear takes the machine's replies and checks them.
func (h *history) hear() {
	for len(h.machine.replies) > 0 || len(h.machine.unsure) > 0 {
		replies, unsure := h.machine.replies, h.machine.unsure
		h.machine.replies, h.machine.unsure = nil, nil
		for _, r := range replies {
			if r.result != nil {
				h.answered(r)
			}
		}
		for _, w := range unsure {
			h.machine.confirmed(h.at, w)
		}
	}
}

func (h *history) answered(r reply) {
	if !h.open[r.call] {
		h.t.Fatalf("a second answer to %v: %v", r.call.mutation, r.result)
	}
	delete(h.open, r.call)
	turn, waited := h.arrival[r.call]
	if !waited || r.result.GetKind() != 0 {
		return
	}
	path := lockfs.Path(r.call.mutation.GetAcquire().GetPath())
	if turn < h.served[path] {
		h.t.Fatalf("%v was overtaken", r.call.mutation)
	}
	h.served[path] = turn
}

// finish lets everybody let go, and all delays pass.
func (h *history) finish() {
	for range 200 {
		h.drain()
		h.renew()
		for _, s := range h.machine.state.Sessions() {
			for _, held := range h.machine.state.HeldBy(s.ID) {
				h.call(&storepb.Mutation{Session: s.ID, Op: &storepb.Mutation_Release{
					Release: &storepb.Release{Path: string(held.Node.Path), Owner: held.Owner}}})
			}
		}
		h.at.now = h.at.now.Add(time.Second)
		h.machine.tick(h.at)
	}
	h.drain()
	for c := range h.open {
		h.t.Errorf("never answered: %v", c.mutation)
	}
	if n := len(h.machine.queues) + len(h.machine.waiting) + len(h.machine.calls) + len(h.machine.pending); n > 0 {
		h.t.Errorf("left over: %d queues, %d waiting, %d calls, %d pending", len(h.machine.queues),
			len(h.machine.waiting), len(h.machine.calls), len(h.machine.pending))
	}
}
