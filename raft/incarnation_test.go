package raft

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lockfs/raft/raftrpc"
)

// recorded waits until all that are up have the data folders of all members in their logs.
func (c *cell) recorded() {
	c.t.Helper()
	c.until("the data folders are known", func() bool {
		for _, h := range c.up() {
			for _, m := range h.replica.Members() {
				if m.Incarnation == 0 {
					return false
				}
			}
		}
		return true
	})
}

// A member whose disk was wiped would vote, and acknowledge, without what it had. Its new folder
// betrays it: it neither helps to elect a leader nor to commit anything, and it ends. (Case L092.)
func TestWipedMemberTakesNoPart(t *testing.T) {
	for name, test := range map[string]struct {
		other bool // the other follower is down: the leader alone cannot commit
		first bool // the leader is: nobody else can be elected
	}{
		"all others are up": {}, "the other follower is down": {other: true}, "the leader is down": {first: true},
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, nil, func(t *testing.T, c *cell) {
				leader := c.leader()
				wiped, other := c.hosts[leader.ID%3], c.hosts[(leader.ID+1)%3]
				c.recorded()
				c.propose(leader, "a")
				c.agree(1)
				c.crash(wiped)
				wiped.wipe(t)
				if test.other {
					c.crash(other)
				}
				if test.first {
					c.crash(leader)
				}
				c.start(wiped)
				if test.other {
					if err := leader.replica.Propose(leader.replica.Status().Term, []byte("b")); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.ended(wiped); !errors.Is(err, ErrReplaced) {
					t.Errorf("it ended with %v", err)
				}
				if wiped.machine.told().Leading {
					t.Error("it was elected")
				}
				time.Sleep(10 * time.Second)
				for _, h := range c.up() {
					if s := h.replica.Status(); (test.other || test.first) && s.Leader != 0 {
						t.Errorf("%s follows %d: there was no majority", h.Name, s.Leader)
					}
					if list := h.machine.list(); len(list) != 1 {
						t.Errorf("%s applied %v: there was no majority", h.Name, list)
					}
				}
				for _, h := range []*host{leader, other} {
					if h.replica == nil {
						c.start(h)
					}
				}
				c.until("those two go on", func() bool {
					return leader.replica.Status().Leader != 0 && leader.replica.Status().Leader == other.replica.Status().Leader
				})
			})
		})
	}
}

// It does not even need to be told by those it reaches: whoever greets it says whom they mean.
func TestGreetedAsAnother(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		c.leader()
		c.recorded()
		h := c.hosts[0]
		client := raftrpc.NewPeerClient(stranger(t, c))
		stream, err := client.Messages(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stream.Send(&raftrpc.PeerFrame{Greeting: &raftrpc.Greeting{ClusterId: testCluster, From: 2, To: 1,
			Incarnation: c.hosts[1].Incarnation, ToIncarnation: h.Incarnation + 1}})
		if err := c.ended(h); !errors.Is(err, ErrReplaced) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// The members of a new cell may start one long after the other, and before they elected anybody.
func TestStaggeredStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := layCell(t, 3, 1, nil)
		defer c.stop()
		for i, h := range c.hosts {
			c.start(h)
			time.Sleep(time.Duration(i+1) * 20 * time.Second)
		}
		c.propose(c.leader(), "a")
		c.agree(1)
		c.recorded()
	})
}

// A log from before there were numbers gets them, and then they count.
func TestOldLogGetsIncarnations(t *testing.T) {
	for name, checkpoint := range map[string]uint64{"from the first entry on": 1000, "after a checkpoint": 3} {
		t.Run(name, func(t *testing.T) {
			old := true
			tune := func(cfg *Config) {
				cfg.CheckpointEntries = checkpoint
				if old {
					cfg.Incarnation = 0
				}
			}
			inCell(t, 3, tune, func(t *testing.T, c *cell) {
				for _, text := range numbered("p%d", 10) {
					c.propose(c.leader(), text)
				}
				c.agree(10)
				time.Sleep(time.Minute)
				if m, _ := c.hosts[0].replica.Member(2); m.Incarnation != 0 {
					t.Fatalf("nobody said so, and member 2 is %+v", m)
				}
				old = false
				for _, h := range c.hosts { // one after the other, as for a new version
					c.crash(h)
					c.start(h)
					c.leader()
				}
				c.recorded()
				wiped := c.hosts[0]
				c.crash(wiped)
				wiped.wipe(t)
				c.start(wiped)
				if err := c.ended(wiped); !errors.Is(err, ErrReplaced) {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}

// Who has the log of a member but another number, or none, has another folder.
func TestStartWithAnotherIncarnation(t *testing.T) {
	for name, checkpoint := range map[string]uint64{"the log says so": 1000, "the checkpoint says so": 3} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 1, func(cfg *Config) { cfg.CheckpointEntries = checkpoint }, func(t *testing.T, c *cell) {
				h := c.leader()
				c.recorded()
				for _, text := range numbered("p%d", 5) {
					c.propose(h, text)
				}
				synctest.Wait()
				c.crash(h)
				h.Incarnation = 0
				r, err := Start(c.config(h))
				if err == nil {
					<-r.Done()
					err = r.Err()
				}
				if !errors.Is(err, ErrReplaced) {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}

// Before the log has the number of a folder, whoever heard one does not take another for it.
func TestTwoFoldersBeforeTheFirstIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := layCell(t, 3, 1, nil)
		defer c.stop()
		first, second := c.hosts[0], c.hosts[1]
		c.start(first)
		c.net.set("r1", "r2", true)
		c.start(second)
		hear := func(incarnation uint64) error {
			return first.replica.admit(&raftrpc.Greeting{ClusterId: testCluster, From: 3, To: 1, Incarnation: incarnation})
		}
		for _, step := range []struct {
			incarnation uint64
			refused     bool
		}{{7, false}, {8, true}, {7, false}, {0, false}} {
			if err := hear(step.incarnation); (err != nil) != step.refused {
				t.Errorf("incarnation %d: %v", step.incarnation, err)
			}
		}
		c.net.set("r1", "r2", false)
		if c.leader() == second {
			if err := second.replica.TransferLeadership(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		c.until("the first of the two is recorded", func() bool {
			m, _ := second.replica.Member(3)
			return m.Incarnation == 7
		})
	})
}
