package raft

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// short makes checkpoints often and keeps little of the log before them.
func short(cfg *Config) { cfg.CheckpointEntries, cfg.TailEntries = 20, 5 }

// A member that was away for longer than the log goes back gets a snapshot, while the cell goes
// on, and then the log.
func TestStragglerGetsASnapshot(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		leader := c.leader()
		straggler := c.hosts[leader.ID%3]
		c.propose(leader, "first")
		c.crash(straggler)
		for i := range 100 {
			c.propose(leader, fmt.Sprint(i, strings.Repeat("x", 20_000)))
		}
		c.start(straggler)
		for i := range 100 {
			c.propose(leader, fmt.Sprint("meanwhile ", i))
		}
		c.agree(201)
		if straggler.machine.restores == 0 {
			t.Error("it was not restored from a snapshot")
		}
		if m, ok := straggler.replica.Member(leader.ID); !ok || m != leader.Member {
			t.Errorf("after that it takes the leader for %+v", m)
		}
		c.halt(straggler, func() {})
		c.start(straggler) // on the log that goes on after the snapshot
		c.propose(c.leader(), "last")
		c.agree(202)
	})
}

// A crash between the moment at which the machine has a snapshot and that at which the log knows
// leaves a machine that is ahead of its log.
func TestCrashBetweenRestoreAndMark(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		leader := c.leader()
		straggler := c.hosts[leader.ID%3]
		c.crash(straggler)
		for i := range 100 {
			c.propose(leader, fmt.Sprint(i))
		}
		straggler.disk.Hang()
		c.start(straggler)
		c.until("the machine has the snapshot", func() bool { return straggler.machine.durable().Applied != nil })
		c.crash(straggler)
		if _, last, _ := bounds(straggler.disk.Open()); last > 10 {
			t.Fatalf("the log has entry %d", last)
		}
		c.start(straggler)
		c.propose(c.leader(), "last")
		c.agree(101)
	})
}

// What a follower needs who is being sent a snapshot stays in the log, however long it takes it.
func TestLogStaysForASnapshotUnderWay(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		leader := c.leader()
		straggler := c.hosts[leader.ID%3]
		c.crash(straggler)
		for i := range 100 {
			c.propose(leader, fmt.Sprint(i))
		}
		var release func()
		c.ready = func(h *host) { release = h.machine.holdRestore() }
		c.start(straggler)
		c.until("the machine is asked to restore", func() bool { return straggler.machine.busy.Load() })
		for i := range 300 {
			c.propose(leader, fmt.Sprint("meanwhile ", i))
		}
		time.Sleep(5 * time.Second)
		if s := leader.replica.Status(); s.Role != "leader" || !s.Members[straggler.ID-1].Active {
			t.Errorf("while it restores the leader has %+v", s)
		}
		release()
		c.agree(400)
		if n := straggler.machine.restores; n != 1 {
			t.Errorf("it needed %d snapshots", n)
		}
		// Once it has caught up the log need not stay any longer.
		for i := range 100 {
			c.propose(leader, fmt.Sprint("afterwards ", i))
		}
		synctest.Wait()
		if first, last, _ := bounds(leader.replica.storage); last-first > 60 {
			t.Errorf("the log has still %d entries", last-first)
		}
	})
}

// A replica that is stopped while it restores leaves out of its log what comes after the snapshot.
func TestStopWhileRestoring(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		leader := c.leader()
		straggler := c.hosts[leader.ID%3]
		c.crash(straggler)
		for i := range 100 {
			c.propose(leader, fmt.Sprint(i))
		}
		var release func()
		c.ready = func(h *host) { release = h.machine.holdRestore() }
		c.start(straggler)
		c.until("the machine is asked to restore", func() bool { return straggler.machine.busy.Load() })
		for i := range 10 {
			c.propose(leader, fmt.Sprint("meanwhile ", i))
			time.Sleep(time.Second)
		}
		c.halt(straggler, func() {
			straggler.replica.end(nil)
			synctest.Wait()
			release()
		})
		c.ready = nil
		if err := straggler.failure; err != nil {
			t.Errorf("it ended with %v", err)
		}
		c.start(straggler)
		c.agree(110)
	})
}

// A snapshot under way that comes to nothing does not keep the log for ever.
func TestLogDoesNotStayForNothing(t *testing.T) {
	for name, spoil := range map[string]func(c *cell, leader, straggler *host){
		"the member is gone": func(c *cell, _, straggler *host) { c.isolate(straggler, true) },
		"leadership is": func(c *cell, leader, _ *host) {
			if err := leader.replica.TransferLeadership(c.t.Context()); err != nil {
				c.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, short, func(t *testing.T, c *cell) {
				leader := c.leader()
				straggler := c.hosts[leader.ID%3]
				c.crash(straggler)
				for i := range 100 {
					c.propose(leader, fmt.Sprint(i))
				}
				var release func()
				c.ready = func(h *host) { release = h.machine.holdRestore() }
				c.start(straggler)
				c.until("the machine is asked to restore", func() bool { return straggler.machine.busy.Load() })
				defer release()
				spoil(c, leader, straggler)
				time.Sleep(5 * time.Second)
				for i := range 100 {
					c.propose(c.leader(), fmt.Sprint("afterwards ", i))
				}
				synctest.Wait()
				if first, last, _ := bounds(leader.replica.storage); last-first > 60 {
					t.Errorf("the log has still %d entries", last-first)
				}
			})
		})
	}
}

// A checkpoint of before must not be saved over what was restored.
func TestRestoreWaitsForTheCheckpointUnderWay(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		leader := c.leader()
		straggler := c.hosts[leader.ID%3]
		release := straggler.machine.holdSave()
		for i := range 25 {
			c.propose(leader, fmt.Sprint(i))
		}
		c.agree(25)
		c.isolate(straggler, true)
		for i := range 100 {
			c.propose(leader, fmt.Sprint("meanwhile ", i))
		}
		time.Sleep(5 * time.Second) // what is on its way to it is given up
		c.isolate(straggler, false)
		time.Sleep(5 * time.Second)
		if len(straggler.machine.list()) != 25 { // (that it is none during Restore the recorder checks)
			t.Error("it was restored meanwhile")
		}
		release()
		c.agree(125)
		if straggler.machine.restores == 0 {
			t.Error("it was not restored from a snapshot")
		}
	})
}

// A snapshot that breaks off is not taken for a whole one; it is sent again.
func TestSnapshotBreaksOff(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		leader := c.leader()
		straggler := c.hosts[leader.ID%3]
		c.crash(straggler)
		for i := range 60 {
			c.propose(leader, fmt.Sprint(i, strings.Repeat("x", 100_000)))
		}
		for _, h := range c.hosts {
			h.machine.mu.Lock()
			h.machine.breaks = 2
			h.machine.mu.Unlock()
		}
		c.start(straggler)
		c.agree(60)
		if left := leader.machine.breaks; left != 0 {
			t.Errorf("%d of 2 breaks were not met", left)
		}
	})
}

// Who sends a snapshot that would stop the receiver later is refused at once.
func TestCheckSnapshot(t *testing.T) {
	at := position{index: 9, term: 3, configuration: configuration{conf: &raftpb.ConfState{Voters: []uint64{1, 2}}}}
	data, err := at.marshal()
	if err != nil {
		t.Fatal(err)
	}
	snap := func(index, term uint64, data []byte, voters ...uint64) *raftpb.Message {
		return &raftpb.Message{Type: raftpb.MsgSnap.Enum(), Snapshot: &raftpb.Snapshot{Data: data, Metadata: &raftpb.SnapshotMetadata{
			Index: new(index), Term: new(term), ConfState: &raftpb.ConfState{Voters: voters}}}}
	}
	for name, test := range map[string]struct {
		m    *raftpb.Message
		good bool
	}{
		"as it is":       {snap(9, 3, data, 1, 2), true},
		"another index":  {snap(8, 3, data, 1, 2), false},
		"another term":   {snap(9, 4, data, 1, 2), false},
		"other voters":   {snap(9, 3, data, 1), false},
		"no position":    {snap(9, 3, nil, 1, 2), false},
		"noise":          {snap(9, 3, []byte{0xff}, 1, 2), false},
		"nothing at all": {&raftpb.Message{Type: raftpb.MsgSnap.Enum()}, false},
		"another kind":   {&raftpb.Message{Type: raftpb.MsgApp.Enum()}, false},
	} {
		if err := checkSnapshot(test.m); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// breaking is a snapshot that fails half way.
type breaking struct{ image }

func (b breaking) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write([]byte(b.Applied[0]))
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return int64(n), err
}
