package raft

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

func TestOneLeaderAndOneOrder(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		for _, text := range numbered("p%d", 10) {
			c.propose(leader, text)
		}
		c.agree(10)
		term := leader.replica.Status().Term
		c.recorded()
		for _, h := range c.hosts {
			if m, ok := h.replica.Member(2); !ok || m != c.hosts[1].Member {
				t.Errorf("%s: member 2 is %+v", h.Name, m)
			}
			if told := h.machine.told(); told != (Leadership{term, leader.ID, h == leader}) {
				t.Errorf("%s was told %+v", h.Name, told)
			}
			if h == leader {
				continue
			}
			if err := h.replica.Propose(term, []byte("x")); !errors.Is(err, ErrNotLeader) {
				t.Errorf("a follower took a proposal: %v", err)
			}
			if _, err := h.replica.ReadIndex(t.Context()); !errors.Is(err, ErrNotLeader) {
				t.Errorf("a follower answered ReadIndex: %v", err)
			}
			if err := h.replica.TransferLeadership(t.Context()); !errors.Is(err, ErrNotLeader) {
				t.Errorf("a follower handed over leadership: %v", err)
			}
		}
		if err := leader.replica.Propose(term+1, []byte("x")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a proposal for another term was taken: %v", err)
		}
	})
}

func TestCellOfOne(t *testing.T) {
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		began := time.Now()
		leader := c.leader()
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("it needed %v to elect itself", took)
		}
		c.propose(leader, "a")
		c.crash(leader)
		c.start(leader)
		c.agree(1)
		c.leader()
		before := leader.replica.Status()
		if index, err := leader.replica.ReadIndex(t.Context()); err != nil || index < before.Applied-1 {
			t.Errorf("ReadIndex: %d, %v; applied is %d", index, err, before.Applied)
		}
		if err := leader.replica.TransferLeadership(t.Context()); err == nil {
			t.Error("it handed over leadership to nobody")
		}
	})
}

// A replica that is a cell of its own could answer reads as soon as it leads. But its log may
// have more committed entries than it knows of: the commit index is written without haste.
func TestCellOfOneReadsWhatItAcknowledged(t *testing.T) {
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		h := c.leader()
		for _, text := range numbered("p%d", 5) {
			c.propose(h, text)
		}
		acknowledged := h.machine.index
		c.crash(h)
		h.disk.SyncTime = 20 * time.Millisecond
		c.start(h)
		c.until("it reads", func() bool {
			index, err := h.replica.ReadIndex(t.Context())
			if err == nil && index < acknowledged {
				t.Errorf("it reads at %d what was acknowledged up to %d", index, acknowledged)
			}
			return err == nil
		})
	})
}

func TestStatus(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		c.recorded()
		c.propose(leader, "a")
		c.agree(1)
		down := c.hosts[leader.ID%3]
		c.crash(down)
		time.Sleep(2 * time.Second)
		s := leader.replica.Status()
		if s.ID != leader.ID || s.Leader != leader.ID || s.Role != "leader" || s.Applied != s.Committed || len(s.Members) != 3 {
			t.Errorf("status %+v", s)
		}
		for i, m := range s.Members {
			if m.Member != c.hosts[i].Member || m.Active != (m.ID != down.ID) || m.Match != s.Committed || m.Learner {
				t.Errorf("member %+v of %+v", m, s)
			}
		}
		leader.replica.Stop()
		if s := leader.replica.Status(); s.ID != leader.ID || s.Role != "" {
			t.Errorf("stopped, its status is %+v", s)
		}
	})
}

func TestKilledLeaderIsReplaced(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		var took []time.Duration
		for i := range 5 {
			old := c.leader()
			c.propose(old, numbered("p%d", 5)[i])
			began := time.Now()
			c.crash(old)
			c.leader(old)
			took = append(took, time.Since(began))
			c.start(old)
			c.agree(i + 1)
		}
		slices.Sort(took)
		t.Logf("replaced after %v", took)
		if took[2] > 1500*time.Millisecond || took[4] > 5*time.Second {
			t.Errorf("replaced only after %v", took)
		}
	})
}

// A leader that nobody hears steps down by itself, and whoever reads from it is told.
func TestIsolatedLeaderStepsDown(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		old := c.leader()
		c.propose(old, "a")
		term := old.replica.Status().Term
		c.isolate(old, true)
		began := time.Now()

		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := old.replica.ReadIndex(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ReadIndex without a majority: %v", err)
		}
		if err := old.replica.Propose(term, []byte("never committed")); err != nil {
			t.Errorf("it leads still: %v", err)
		}
		if _, err := old.replica.ReadIndex(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("ReadIndex of a leader that ceases to be one: %v", err)
		}
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("it stepped down only after %v", took)
		}
		synctest.Wait()
		if told := old.machine.told(); told.Leading {
			t.Errorf("its machine still believes %+v", told)
		}
		if err := old.replica.Propose(term, []byte("x")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("it takes proposals still: %v", err)
		}
		c.propose(c.leader(old), "b")
		time.Sleep(time.Minute)
		c.isolate(old, false)
		healed := time.Now()
		c.agree(2)
		if took := time.Since(healed); took > 2*time.Second {
			t.Errorf("after a minute apart it took %v to agree", took)
		}
	})
}

// A minority does not disturb the others when it comes back: nobody there had a reason to vote.
func TestReturnDoesNotDisturb(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		apart := c.hosts[leader.ID%3]
		c.isolate(apart, true)
		time.Sleep(time.Minute)
		term := leader.replica.Status().Term
		c.isolate(apart, false)
		c.propose(leader, "a")
		c.agree(1)
		if now := leader.replica.Status(); now.Term != term || now.Role != "leader" {
			t.Errorf("there was an election: %+v", now)
		}
	})
}

// Whoever was frozen makes no noise when it wakes, and does not believe for long what it believed.
func TestFrozen(t *testing.T) {
	freeze := func(c *cell, h *host) { h.clock.Freeze(); c.isolate(h, true) }
	thaw := func(c *cell, h *host) { c.isolate(h, false); h.clock.Thaw() }
	t.Run("leader", func(t *testing.T) {
		inCell(t, 3, nil, func(t *testing.T, c *cell) {
			old := c.leader()
			freeze(c, old)
			leader := c.leader(old)
			c.propose(leader, "a")
			time.Sleep(20 * time.Second)
			term := leader.replica.Status().Term
			thaw(c, old)
			time.Sleep(500 * time.Millisecond)
			if told := old.machine.told(); told.Leading {
				t.Errorf("half a second after it woke it believes %+v", told)
			}
			c.agree(1)
			if now := leader.replica.Status().Term; now != term {
				t.Errorf("the term went from %d to %d", term, now)
			}
		})
	})
	t.Run("follower", func(t *testing.T) {
		inCell(t, 3, nil, func(t *testing.T, c *cell) {
			leader := c.leader()
			frozen := c.hosts[leader.ID%3]
			freeze(c, frozen)
			time.Sleep(20 * time.Second)
			term, told := leader.replica.Status().Term, frozen.machine.tellings()
			thaw(c, frozen)
			c.propose(leader, "a")
			c.agree(1)
			if now := leader.replica.Status(); now.Term != term || now.Role != "leader" {
				t.Errorf("there was an election: %+v", now)
			}
			if frozen.machine.tellings() != told {
				t.Errorf("it took the time it had slept for the leader's silence: %v", frozen.machine.leading)
			}
		})
	})
}

func TestRestartReplays(t *testing.T) {
	for name, test := range map[string]struct {
		checkpoint uint64
		end        func(*cell, *host)
		replayed   bool // some of what was applied is applied again
	}{
		"stopped":                    {1000, func(c *cell, h *host) { c.halt(h, func() {}) }, false},
		"crashed, no checkpoint":     {1000, (*cell).crash, true},
		"crashed, after checkpoints": {8, (*cell).crash, true},
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, func(cfg *Config) { cfg.CheckpointEntries = test.checkpoint }, func(t *testing.T, c *cell) {
				leader := c.leader()
				for _, text := range numbered("p%d", 30) {
					c.propose(leader, text)
				}
				c.agree(30)
				synctest.Wait()
				for _, h := range c.hosts {
					test.end(c, h)
				}
				for _, h := range c.hosts {
					saved := len(h.machine.durable().Applied)
					if (saved < 30) != test.replayed {
						t.Errorf("%s: the checkpoint has %d", h.Name, saved)
					}
					c.start(h)
				}
				c.agree(30)
				c.propose(c.leader(), "after")
				c.agree(31)
			})
		})
	}
}

func TestCrashLosesOnlyWhatWasNotSynced(t *testing.T) {
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		h := c.leader()
		c.propose(h, "synced")
		h.disk.Hang()
		if err := h.replica.Propose(h.replica.Status().Term, []byte("lost")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.crash(h)
		if list := h.machine.list(); slices.Contains(list, "lost") {
			t.Error("it was applied before it was durable")
		}
		c.start(h)
		c.propose(c.leader(), "next")
		if list := h.machine.list(); !slices.Equal(list, []string{"synced", "next"}) {
			t.Errorf("after the crash there is %v", list)
		}
	})
}

// A leader whose disk hangs makes room for another, though the others would follow it for ever.
func TestHungDisk(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		old := c.leader()
		c.propose(old, "a")
		old.disk.Hang()
		if err := old.replica.Propose(old.replica.Status().Term, []byte("b")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		leader := c.leader(old)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("replaced only after %v", took)
		}
		synctest.Wait()
		if told := old.machine.told(); told.Leading && time.Since(began) > 2*time.Second {
			t.Errorf("its machine still believes %+v", told)
		}
		c.propose(leader, "c")
		old.disk.Resume()
		c.agree(len(leader.machine.list()))
	})
}

// A slow Machine holds up nobody else, and not even the heartbeats of its own replica.
func TestSlowMachine(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		term := leader.replica.Status().Term
		release := c.hosts[leader.ID%3].machine.holdApply()
		for _, text := range numbered("p%d", 200) {
			c.propose(leader, text)
		}
		time.Sleep(20 * time.Second)
		if s := leader.replica.Status(); s.Term != term || s.Role != "leader" {
			t.Errorf("there was an election: %+v", s)
		}
		release()
		c.agree(200)
	})
}

func TestProposalsShareEntries(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		term := leader.replica.Status().Term
		synctest.Wait()
		leader.disk.Hang()
		texts := numbered("p%d", 3000)
		for _, text := range texts {
			if err := leader.replica.Propose(term, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		leader.disk.Resume()
		c.agree(3000)
		if !slices.Equal(leader.machine.list(), texts) {
			t.Error("they are in another order")
		}
		if n := len(leader.machine.indexes); n < 3 || n > 8 {
			t.Errorf("they are in %d entries", n)
		}
	})
}

func TestOverload(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		term := leader.replica.Status().Term
		if err := leader.replica.Propose(term, make([]byte, proposalBytesMax+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a proposal over the limit: %v", err)
		}
		leader.disk.Hang()
		var err error
		taken := 0
		for ; err == nil && taken < 1000; taken++ {
			err = leader.replica.Propose(term, []byte(strings.Repeat("x", 1<<20)+numbered("%d", taken+1)[taken]))
			synctest.Wait()
		}
		if !errors.Is(err, ErrOverloaded) || taken < 60 {
			t.Fatalf("after %d MiB: %v", taken, err)
		}
		leader.disk.Resume()
		c.agree(taken - 1)
		c.propose(leader, "and on")
	})
}

func TestTransferLeadership(t *testing.T) {
	for name, meanwhile := range map[string]func(c *cell, leader *host){
		"not to the dead":      func(*cell, *host) {},
		"to the most advanced": func(c *cell, leader *host) { c.propose(leader, "b") },
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, nil, func(t *testing.T, c *cell) {
				old := c.leader()
				c.propose(old, "a")
				c.agree(1)
				apart := c.lastBut(old)
				c.isolate(apart, true)
				time.Sleep(time.Second) // it counts as dead
				meanwhile(c, old)
				if err := old.replica.TransferLeadership(t.Context()); err != nil {
					t.Fatal(err)
				}
				if leader := c.leader(old); leader == apart {
					t.Error("it was handed to the one who is apart")
				}
				c.isolate(apart, false)
				c.agree(len(old.machine.list()))
			})
		})
	}
}

// While leadership is being handed over the machine drops proposals. They are kept for it.
func TestProposalsSurviveAFailedTransfer(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		c.propose(leader, "a")
		term := leader.replica.Status().Term
		c.isolate(c.lastBut(leader), true)
		over := make(chan error)
		go func() { over <- leader.replica.TransferLeadership(t.Context()) }()
		synctest.Wait()
		texts := numbered("p%d", 10)
		for _, text := range texts {
			if err := leader.replica.Propose(term, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-over; err == nil {
			t.Error("it was handed to one who cannot hear")
		}
		c.until("all are applied", func() bool { return len(leader.machine.list()) == 11 })
		if list := leader.machine.list(); !slices.Equal(list[1:], texts) {
			t.Errorf("applied %v", list)
		}
	})
}

func TestMachineErrorStopsTheReplica(t *testing.T) {
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		h := c.leader()
		if err := h.replica.Propose(h.replica.Status().Term, []byte("poison")); err != nil {
			t.Fatal(err)
		}
		<-h.replica.Done()
		if err := h.replica.Err(); err == nil || !strings.Contains(err.Error(), "not to be applied") {
			t.Errorf("it ended with %v", err)
		}
		if h.machine.saves != 0 {
			t.Error("it made a checkpoint all the same")
		}
	})
}

// What raft panics with ends the replica, and not the process.
func TestBrokenInvariantStopsTheReplica(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		c.propose(leader, "a")
		c.agree(1)
		follower := c.hosts[leader.ID%3]
		// The leader never says that more is committed than the follower has acknowledged.
		absurd := &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(leader.ID), To: new(follower.ID),
			Term: new(leader.replica.Status().Term), Commit: new(uint64(1000))}
		follower.replica.call(func() { follower.replica.node.Step(absurd) })
		<-follower.replica.Done()
		if err := follower.replica.Err(); err == nil || !strings.Contains(err.Error(), "raft met what cannot be") {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestDiskErrorStopsTheReplica(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		h := c.leader()
		h.disk.Crash()
		if err := h.replica.Propose(h.replica.Status().Term, []byte("x")); err != nil {
			t.Fatal(err)
		}
		<-h.replica.Done()
		if err := h.replica.Err(); !errors.Is(err, errMemoryDisk) {
			t.Errorf("it ended with %v", err)
		}
		if _, err := h.replica.ReadIndex(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("ReadIndex after the end: %v", err)
		}
	})
}

// A member whose disk was wiped must not take part: it would vote without what it had.
func TestWipedDiskIsNoticed(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		for _, text := range numbered("p%d", 20) {
			c.propose(leader, text)
		}
		c.agree(20)
		wiped := c.hosts[leader.ID%3]
		c.crash(wiped)
		wiped.disk, wiped.machine = NewMemoryDisk(), newRecorder(t, image{})
		c.start(wiped)
		<-wiped.replica.Done()
		if err := wiped.replica.Err(); !errors.Is(err, ErrReplaced) {
			t.Errorf("it ended with %v", err)
		}
	})
}
