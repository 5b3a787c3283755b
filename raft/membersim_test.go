package raft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A replace that is met by a crash of anybody at any of its steps is carried on by whoever leads.
func TestCrashAtEveryStepOfAReplace(t *testing.T) {
	steps := map[string]func(m Member, learner, there, oldThere bool) bool{
		"added":        func(_ Member, _, there, _ bool) bool { return there },
		"folder known": func(m Member, _, there, _ bool) bool { return there && m.Incarnation != 0 },
		"promoted":     func(_ Member, learner, there, _ bool) bool { return there && !learner },
		"old one gone": func(_ Member, _, there, oldThere bool) bool { return there && !oldThere },
	}
	victims := map[string]func(leader, follower, fresh *host) *host{
		"leader":   func(leader, _, _ *host) *host { return leader },
		"follower": func(_, follower, _ *host) *host { return follower },
		"new one":  func(_, _, fresh *host) *host { return fresh },
	}
	for step, reached := range steps {
		for who, victim := range victims {
			t.Run(step+", "+who, func(t *testing.T) {
				inCell(t, 3, short, func(t *testing.T, c *cell) {
					leader := c.leader()
					c.recorded()
					old, follower := c.hosts[leader.ID%3], c.hosts[(leader.ID+1)%3]
					for i := range 50 {
						c.propose(leader, fmt.Sprint(i))
					}
					c.crash(old)
					fresh := c.lay(9)
					fresh.Name, fresh.Address, fresh.Replaces = old.Name, old.Address, old.ID
					c.start(fresh)
					c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, fresh.Member) })
					c.until(step, func() bool {
						return slices.ContainsFunc(c.up(), func(h *host) bool {
							m, there := h.replica.Member(9)
							_, oldThere := h.replica.Member(old.ID)
							return reached(m, h.replica.members.now().isLearner(9), there, oldThere)
						})
					})
					down := victim(leader, follower, fresh)
					c.crash(down)
					time.Sleep(2 * time.Second)
					c.start(down)
					c.stands(fmt.Sprint(min(leader.ID, follower.ID), max(leader.ID, follower.ID), 9))
					w := &world{cell: c}
					w.propose(w.chief(), "the end")
					c.agree(51)
				})
			})
		}
	}
}

// TestSimMembership changes the members while everything of TestSim goes wrong: members are added,
// also such that never start, removed, replaced, and lose their disks. There stays one log, whoever
// is a member in the end has it all, and all agree on who that is.
func TestSimMembership(t *testing.T) {
	for seed := *simSeed; seed < *simSeed+(*simSeeds+3)/4; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulateMembership(t, seed) })
		})
	}
}

// An admin is a world in which the members change.
type admin struct {
	*world
	ctx   context.Context
	users sync.WaitGroup
	next  uint64           // id
	lost  map[uint64]bool  // whose disk was lost
	never map[uint64]bool  // that never start
	gone  map[uint64]error // who has ended for good
	done  map[string]int   // what was done, how often
}

func simulateMembership(t *testing.T, seed uint64) {
	l := &ledger{t: t, byIndex: make(map[uint64]string), acked: make(map[string]uint64), proposed: make(map[string][]string)}
	random := rand.New(rand.NewPCG(seed, 0))
	c := layCell(t, 3, seed, func(cfg *Config) { cfg.CheckpointEntries, cfg.TailEntries = 30, 10 })
	c.ready = func(h *host) {
		h.machine.watch = func(index uint64, texts []string) { l.applied(h, index, texts) }
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &admin{world: &world{cell: c, random: random, ledger: l, turn: make(chan struct{}, 1), pace: 100}, ctx: ctx, next: 100,
		lost: make(map[uint64]bool), never: make(map[uint64]bool), gone: make(map[uint64]error), done: make(map[string]int)}
	defer c.stop()
	for _, h := range c.hosts {
		c.start(h)
		w.populate(h)
	}
	c.recorded()
	for range 150 {
		if random.IntN(3) == 0 {
			w.change()
		} else {
			w.disturb()
		}
		w.reap()
		time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond)
	}
	cancel()
	w.users.Wait()
	w.mend()
	w.checkMembers()
	t.Log("done: ", w.done)
}

// populate sends users to a host.
func (w *admin) populate(h *host) {
	w.users.Go(func() { w.proposer(w.ctx, h) })
	w.users.Go(func() { w.reader(w.ctx, h) })
}

// disturb does what happens in TestSim. A host of a member that is out stays down.
func (w *admin) disturb() {
	h := w.hosts[w.random.IntN(len(w.hosts))]
	if w.random.IntN(5) > 0 {
		w.fault(7)
		return
	}
	w.restart(h, w.crash)
}

// reap takes away the hosts whose replicas have ended of themselves, and looks why.
func (w *admin) reap() {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	for _, h := range w.up() {
		select {
		case <-h.replica.Done():
		default:
			continue
		}
		h.disk.Resume()
		w.halt(h, func() {})
		if !errors.Is(h.failure, ErrRemoved) && !(w.lost[h.ID] && errors.Is(h.failure, ErrReplaced)) {
			w.t.Errorf("%s ended: %v", h.Name, h.failure)
		}
		w.leave(h, h.failure)
	}
}

func (w *admin) leave(h *host, why error) {
	w.gone[h.ID] = why
	w.isolate(h, false)
	w.hosts = slices.DeleteFunc(w.hosts, func(other *host) bool { return other == h })
}

// chief returns who leads most of the voters, nil if nobody does.
func (w *world) chiefNow() *host {
	for _, h := range w.up() {
		s := h.replica.Status()
		voters, followers := 0, 0
		for _, m := range s.Members {
			if m.Learner {
				continue
			}
			voters++
			i := slices.IndexFunc(w.up(), func(h *host) bool { return h.ID == m.ID })
			if i >= 0 && w.up()[i].replica.Status().Leader == s.ID {
				followers++
			}
		}
		if s.Role == "leader" && followers > voters/2 {
			return h
		}
	}
	return nil
}

// chief waits until somebody leads most of the voters.
func (w *world) chief() (h *host) {
	w.t.Helper()
	w.until("one leads", func() bool {
		h = w.chiefNow()
		return h != nil
	})
	return h
}

// change has the leader, if there is one, change the members.
func (w *admin) change() {
	leader := w.chiefNow()
	if leader == nil {
		w.quiet() // or too little would happen
		for _, h := range w.hosts {
			if h.replica == nil {
				w.restart(h, w.crash)
			}
		}
		time.Sleep(time.Second)
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()
	s := leader.replica.Status()
	any := s.Members[w.random.IntN(len(s.Members))]
	switch w.random.IntN(6) {
	case 0:
		if len(s.Members) < 6 {
			w.add(ctx, leader, 0, w.random.IntN(4) > 0)
		}
	case 1, 2:
		if any.ID == leader.ID && w.random.IntN(2) == 0 {
			return // not always the one who leads
		}
		w.add(ctx, leader, any.ID, true)
	case 3:
		if err := leader.replica.Remove(ctx, any.ID); err == nil {
			w.done["removed"]++
		}
	case 4:
		if err := leader.replica.Promote(ctx, any.ID); err == nil {
			w.done["promoted"]++
			if w.never[any.ID] {
				w.t.Errorf("member %d, which never started, was promoted", any.ID)
			}
		}
	case 5:
		w.lose(s)
	}
}

// add adds a member, also where nobody knows whether that was done.
func (w *admin) add(ctx context.Context, leader *host, replaces uint64, starts bool) {
	w.next++
	m := Member{ID: w.next, Name: fmt.Sprint("r", w.next), Address: fmt.Sprint("r", w.next), Replaces: replaces}
	err := leader.replica.AddLearner(ctx, m)
	if err == nil && replaces != 0 {
		w.done["replacing"]++
	} else if err == nil {
		w.done["added"]++
	}
	w.never[m.ID] = !starts
	if starts {
		w.turn <- struct{}{}
		h := w.lay(w.next)
		h.disk.SyncTime = time.Duration(w.random.IntN(5)) * time.Millisecond
		w.start(h)
		<-w.turn
		w.populate(h)
	}
}

// lose has a member lose its disk and start again, where that leaves the cell a majority that has
// all: one disk is lost at a time, of three voters at least, and none while the members change.
func (w *admin) lose(s Status) {
	for _, m := range s.Members {
		if m.Learner || m.Replaces != 0 && w.gone[m.Replaces] == nil || w.lost[m.ID] || m.Incarnation == 0 {
			return
		}
	}
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return h.ID == s.Members[0].ID })
	if i < 0 || len(s.Members) < 3 {
		return
	}
	w.turn <- struct{}{}
	h := w.hosts[i]
	h.disk.Resume()
	if h.replica != nil {
		w.crash(h)
	}
	h.wipe(w.t)
	w.lost[h.ID] = true
	w.done["lost"]++
	w.start(h)
	<-w.turn
	time.Sleep(2 * time.Second) // until it counts as dead
}

// mend heals the world and replaces the member whose disk is lost.
func (w *admin) mend() {
	w.t.Helper()
	w.world.heal()
	w.reap()
	for _, m := range w.chief().replica.Status().Members {
		if !w.lost[m.ID] {
			continue
		}
		w.next++
		h := w.lay(w.next)
		h.Replaces = m.ID
		w.must(func(ctx context.Context, r *Replica) error {
			err := r.AddLearner(ctx, h.Member)
			if err != nil && slices.ContainsFunc(r.Members(), func(other Member) bool { return other.Replaces == m.ID }) {
				return nil // another one is about to
			}
			return err
		})
		w.start(h)
	}
	for _, m := range w.chief().replica.Status().Members {
		if w.never[m.ID] {
			w.must(func(ctx context.Context, r *Replica) error { return r.Remove(ctx, m.ID) })
		}
	}
}

// checkMembers looks at a cell that has been healed.
func (w *admin) checkMembers() {
	w.t.Helper()
	isMember := func(h *host) bool { _, ok := w.chief().replica.Member(h.ID); return ok }
	w.until("nobody is about to change", func() bool {
		for _, m := range w.chief().replica.Status().Members {
			_, old := w.chief().replica.Member(m.Replaces)
			if m.Learner || old || m.Incarnation == 0 || w.lost[m.ID] {
				return false
			}
		}
		return true
	})
	for _, h := range slices.Clone(w.up()) {
		s := h.replica.Status()
		told := slices.ContainsFunc(s.Members, func(m MemberStatus) bool { _, ok := w.chief().replica.Member(m.ID); return ok })
		if isMember(h) || !told { // it knows nobody any more who could tell it
			continue
		}
		if err := w.ended(h); !errors.Is(err, ErrRemoved) && !(w.lost[h.ID] && errors.Is(err, ErrReplaced)) {
			w.t.Errorf("%s is not a member and ended with %v", h.Name, err)
		}
	}
	for _, h := range slices.Clone(w.hosts) {
		if h.replica == nil || !isMember(h) {
			if h.replica != nil {
				w.halt(h, func() {})
			}
			w.leave(h, errors.New("no member"))
		}
	}
	want := w.chief().replica.Members()
	for _, h := range w.hosts {
		w.until(h.Name+" agrees on the members", func() bool { return slices.Equal(h.replica.Members(), want) })
	}
	if len(want) != len(w.hosts) {
		w.t.Errorf("the members are %v, and %d hosts are up", want, len(w.hosts))
	}
	w.check(w.chief())
}
