package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"lockfs/raft/raftrpc"
)

// someView is of voters 1 to 3 and learner 4, all well, seen by 1.
func someView() view {
	v := view{
		configuration: configuration{
			conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}}, members: make(map[uint64]Member), removed: []uint64{8}},
		self: 1, live: make(map[uint64]bool), behind: make(map[uint64]uint64), incarnations: make(map[uint64]uint64), steady: make(map[uint64]int),
	}
	for id := range uint64(4) {
		id++
		v.members[id] = Member{ID: id, Name: fmt.Sprint("r", id), Address: fmt.Sprint("h", id), Incarnation: id * 11}
		v.live[id], v.behind[id], v.incarnations[id] = true, 0, id*11
	}
	return v
}

func (v view) with(id uint64, change func(*Member)) {
	m := v.members[id]
	change(&m)
	v.members[id] = m
}

func TestRulesOfMembership(t *testing.T) {
	for name, test := range map[string]struct {
		how  func(v view)
		ask  func(v view) error
		want string // of the reason, "" if it is allowed
	}{
		"add":                   {nil, func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r5", Address: "h5"}) }, ""},
		"add id 0":              {nil, func(v view) error { return v.checkAdd(Member{Name: "r5", Address: "h5"}) }, "the id 0 is 0 or taken"},
		"add an id":             {nil, func(v view) error { return v.checkAdd(Member{ID: 2, Name: "r5", Address: "h5"}) }, "the id 2 is 0 or taken"},
		"add a former id":       {nil, func(v view) error { return v.checkAdd(Member{ID: 8, Name: "r5", Address: "h5"}) }, "the id 8 is 0 or taken"},
		"add a name":            {nil, func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r2", Address: "h5"}) }, "add member r2: there is a member of that name, at h2"},
		"add an address":        {nil, func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r5", Address: "h2"}) }, "the address h2 is that of member r2"},
		"replace":               {nil, func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r2", Address: "h2", Replaces: 2}) }, ""},
		"replace, another name": {nil, func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r3", Address: "h2", Replaces: 2}) }, "there is a member of that name"},
		"replace nobody":        {nil, func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r2", Address: "h2", Replaces: 7}) }, "there is no member 7 that it could replace"},
		"replace twice": {func(v view) { v.with(4, func(m *Member) { m.Replaces = 2 }) },
			func(v view) error { return v.checkAdd(Member{ID: 5, Name: "r2", Address: "h2", Replaces: 2}) }, "member 4, r4 at h4, is about to replace 2 already"},

		"promote":           {nil, func(v view) error { return v.checkPromote(4) }, ""},
		"promote nobody":    {nil, func(v view) error { return v.checkPromote(9) }, "there is no such member"},
		"promote a voter":   {nil, func(v view) error { return v.checkPromote(2) }, "promote member 2 (r2): it is a voter already"},
		"promote the dead":  {func(v view) { v.live[4] = false }, func(v view) error { return v.checkPromote(4) }, "it is not heard from at h4"},
		"promote the slow":  {func(v view) { v.behind[4] = promoteDistance + 1 }, func(v view) error { return v.checkPromote(4) }, "it is 501 entries behind"},
		"promote a close":   {func(v view) { v.behind[4] = promoteDistance }, func(v view) error { return v.checkPromote(4) }, ""},
		"promote too soon":  {func(v view) { v.with(4, func(m *Member) { m.Incarnation = 0 }) }, func(v view) error { return v.checkPromote(4) }, "heard for the first time"},
		"promote the third": {func(v view) { v.live[2] = false }, func(v view) error { return v.checkPromote(4) }, ""},
		"promote, two dead": {func(v view) { v.live[2], v.live[3] = false, false }, func(v view) error { return v.checkPromote(4) },
			"of the 4 voters that there would be then 2 are heard from, and 3 are needed"},

		"remove":                  {nil, func(v view) error { return v.checkRemove(2) }, ""},
		"remove nobody":           {nil, func(v view) error { return v.checkRemove(9) }, "there is no such member"},
		"remove the dead":         {func(v view) { v.live[3] = false }, func(v view) error { return v.checkRemove(3) }, ""},
		"remove one of two alive": {func(v view) { v.live[3] = false }, func(v view) error { return v.checkRemove(2) }, "remove member 2 (r2): of the 2 voters that there would be then 1 are heard from, and 2 are needed"},
		"remove a learner":        {func(v view) { v.live[2], v.live[3], v.live[4] = false, false, false }, func(v view) error { return v.checkRemove(4) }, ""},
		"remove the last":         {func(v view) { v.conf.Voters = []uint64{2} }, func(v view) error { return v.checkRemove(2) }, "it is the only voter"},
	} {
		v := someView()
		if test.how != nil {
			test.how(v)
		}
		err := test.ask(v)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// What a leader does of itself follows from the members, whoever leads.
func TestDue(t *testing.T) {
	add, update, remove := raftpb.ConfChangeAddNode, raftpb.ConfChangeUpdateNode, raftpb.ConfChangeRemoveNode
	for name, test := range map[string]struct {
		how  func(v view)
		kind raftpb.ConfChangeType
		id   uint64 // 0: nothing
	}{
		"nothing":                     {func(v view) {}, add, 0},
		"a folder heard first":        {func(v view) { v.with(3, func(m *Member) { m.Incarnation = 0 }) }, update, 3},
		"a folder not heard":          {func(v view) { v.with(3, func(m *Member) { m.Incarnation = 0 }); v.incarnations[3] = 0 }, add, 0},
		"a learner that is ready":     {func(v view) { v.steady[4] = promoteTicks }, add, 4},
		"not for long":                {func(v view) { v.steady[4] = promoteTicks - 1 }, add, 0},
		"a learner replaces nobody":   {func(v view) { v.with(4, func(m *Member) { m.Replaces = 2 }) }, add, 0},
		"a voter does":                {func(v view) { v.with(3, func(m *Member) { m.Replaces = 2 }) }, remove, 2},
		"the leader is replaced":      {func(v view) { v.with(3, func(m *Member) { m.Replaces = 1 }) }, remove, 1},
		"who is gone already":         {func(v view) { v.with(3, func(m *Member) { m.Replaces = 7 }) }, add, 0},
		"not where quorum is at risk": {func(v view) { v.with(3, func(m *Member) { m.Replaces = 2 }); v.live[3] = false }, add, 0},
		"the folder comes first":      {func(v view) { v.steady[4] = promoteTicks; v.with(4, func(m *Member) { m.Incarnation = 0 }) }, update, 4},
	} {
		v := someView()
		test.how(v)
		if c, ok := v.due(); ok != (test.id != 0) || c.member.ID != test.id || ok && c.kind != test.kind {
			t.Errorf("%s: %v of member %d is due, %v", name, c.kind, c.member.ID, ok)
		}
	}
}

// standing tells who votes and who learns, as h sees it, such as "1 2 3 +4".
func standing(h *host) string {
	var text []string
	for _, m := range h.replica.Status().Members {
		if m.Learner {
			text = append(text, fmt.Sprint("+", m.ID))
		} else {
			text = append(text, fmt.Sprint(m.ID))
		}
	}
	return strings.Join(text, " ")
}

// stands waits until all that are up see the cell so.
func (c *cell) stands(want string) {
	c.t.Helper()
	c.until("the members are "+want, func() bool {
		return !slices.ContainsFunc(c.up(), func(h *host) bool { return standing(h) != want })
	})
}

// asking calls what on whoever leads until somebody has done it.
func (c *cell) asking(what func(ctx context.Context, r *Replica) error) (err error) {
	c.t.Helper()
	c.until("a leader has answered", func() bool {
		for _, h := range c.up() {
			ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
			err = what(ctx, h.replica)
			cancel()
			if !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrBusy) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrStopped) {
				return true
			}
		}
		return false
	})
	return err
}

func (c *cell) must(what func(ctx context.Context, r *Replica) error) {
	c.t.Helper()
	if err := c.asking(what); err != nil {
		c.t.Fatal(err)
	}
}

// A member whose address is wrong raises no quorum: writes go on, it is never made a voter, and it
// can be removed. (Case L091.)
func TestMemberWithADeadAddress(t *testing.T) {
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inCell(t, size, nil, func(t *testing.T, c *cell) {
				leader := c.leader()
				voters := standing(leader)
				c.recorded()
				typo := Member{ID: 9, Name: "r4", Address: "nowhere"}
				c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, typo) })
				for i := range 60 {
					began := time.Now()
					c.propose(leader, fmt.Sprint(i))
					if took := time.Since(began); took > 100*time.Millisecond {
						t.Errorf("a write took %v", took)
					}
					time.Sleep(time.Second)
				}
				err := c.asking(func(ctx context.Context, r *Replica) error { return r.Promote(ctx, 9) })
				if err == nil || !strings.Contains(err.Error(), "promote member 9 (r4): it is not heard from at nowhere") {
					t.Errorf("it was promoted: %v", err)
				}
				c.stands(voters + " +9")
				c.must(func(ctx context.Context, r *Replica) error { return r.Remove(ctx, 9) })
				c.stands(voters)
				c.propose(leader, "after")
				right := c.lay(4) // the same name, and another id
				c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, right.Member) })
				c.start(right)
				c.stands(voters + " 4")
				c.agree(61)
				if s := leader.replica.Status(); s.Role != "leader" {
					t.Errorf("there was an election: %+v", s)
				}
			})
		})
	}
}

// A new member is told everything, by the log or by a snapshot, and then counts like any other.
func TestMemberJoins(t *testing.T) {
	for name, tune := range map[string]func(*Config){"by the log": nil, "by a snapshot": short} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, tune, func(t *testing.T, c *cell) {
				for i := range 100 {
					c.propose(c.leader(), fmt.Sprint(i))
				}
				synctest.Wait()
				joining := c.lay(4)
				c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, joining.Member) })
				c.start(joining)
				c.stands("1 2 3 4")
				c.agree(100)
				if got := joining.machine.restores > 0; got != (tune != nil) {
					t.Errorf("it was restored from a snapshot: %v", got)
				}
				c.recorded()
				if m, _ := c.hosts[0].replica.Member(4); m.Incarnation != joining.Incarnation || m.Added == 0 {
					t.Errorf("it is known as %+v", m)
				}
				if leader := c.leader(); leader == c.hosts[0] {
					c.crash(c.hosts[1])
				} else {
					c.crash(c.hosts[0])
				}
				c.propose(c.leader(), "with it")
				c.crash(joining)
				c.start(joining)
				c.propose(c.leader(), "and again")
				c.agree(102)
			})
		})
	}
}

// It may start before it is added, or its first start may meet a crash.
func TestMemberJoinsEarlyOrTwice(t *testing.T) {
	inCell(t, 3, short, func(t *testing.T, c *cell) {
		for i := range 100 {
			c.propose(c.leader(), fmt.Sprint(i))
		}
		joining := c.lay(4)
		c.start(joining)
		time.Sleep(10 * time.Second)
		if s := joining.replica.Status(); s.Term > 1 || s.Leader != 0 || len(s.Members) != 0 {
			t.Errorf("that nobody knows of is %+v", s)
		}
		c.crash(joining)
		c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, joining.Member) })
		joining.disk.SyncTime = 30 * time.Millisecond
		c.start(joining)
		c.until("it has the snapshot", func() bool { return joining.machine.durable().Applied != nil })
		c.crash(joining)
		c.start(joining)
		c.stands("1 2 3 4")
		c.agree(100)
	})
}

// A member whose disk is lost is replaced by one of the same name and address, while writes go on.
func TestReplace(t *testing.T) {
	for name, test := range map[string]struct {
		size  int
		alive bool // the old one is
		leads bool // and leads
	}{
		"a dead one": {3, false, false}, "a living one": {3, true, false}, "the leader": {3, true, true}, "the only one": {1, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, test.size, nil, func(t *testing.T, c *cell) {
				leader := c.leader()
				c.recorded()
				old := c.hosts[leader.ID%uint64(test.size)]
				if test.leads {
					old = leader
				}
				c.propose(leader, "before")
				c.agree(1)
				if !test.alive {
					c.crash(old)
				}
				fresh := c.lay(9)
				if !test.alive {
					fresh.Name, fresh.Address = old.Name, old.Address
				}
				fresh.Replaces = old.ID
				c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, fresh.Member) })
				c.start(fresh)
				if test.alive {
					if err := c.ended(old); !errors.Is(err, ErrRemoved) {
						t.Errorf("the old one ended with %v", err)
					}
				}
				c.until("the old one is gone", func() bool {
					return !slices.ContainsFunc(c.up(), func(h *host) bool { _, ok := h.replica.Member(old.ID); return ok })
				})
				voters := []uint64{1, 2, 3, 9}
				if test.size == 1 {
					voters = []uint64{1, 9}
				}
				voters = slices.DeleteFunc(voters, func(id uint64) bool { return id == old.ID })
				c.stands(strings.Trim(fmt.Sprint(voters), "[]"))
				c.until("one leads", func() bool {
					for _, h := range c.up() {
						if h.replica.Status().Role == "leader" {
							leader = h
							return true
						}
					}
					return false
				})
				c.propose(leader, "after")
				c.agree(2)
			})
		})
	}
}

// Whoever was removed ends, at once or when it comes back, and does not start again.
func TestRemovedEnds(t *testing.T) {
	for name, test := range map[string]struct {
		learner bool
		away    func(c *cell, h *host)
		back    func(c *cell, h *host)
	}{
		"a voter":                 {false, func(*cell, *host) {}, func(*cell, *host) {}},
		"a learner":               {true, func(*cell, *host) {}, func(*cell, *host) {}},
		"a voter that was cut":    {false, func(c *cell, h *host) { c.isolate(h, true) }, func(c *cell, h *host) { c.isolate(h, false) }},
		"a learner that was cut":  {true, func(c *cell, h *host) { c.isolate(h, true) }, func(c *cell, h *host) { c.isolate(h, false) }},
		"a voter that was down":   {false, (*cell).crash, (*cell).start},
		"a learner that was down": {true, (*cell).crash, (*cell).start},
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, nil, func(t *testing.T, c *cell) {
				leader := c.leader()
				c.recorded()
				h := c.hosts[leader.ID%3]
				if test.learner {
					h = c.lay(4)
					c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, h.Member) })
					c.start(h)
					c.until("it has the log", func() bool { return standing(h) == "1 2 3 +4" })
				}
				test.away(c, h)
				c.must(func(ctx context.Context, r *Replica) error { return r.Remove(ctx, h.ID) })
				c.propose(leader, "without it")
				time.Sleep(time.Second)
				test.back(c, h)
				if err := c.ended(h); !errors.Is(err, ErrRemoved) {
					t.Errorf("it ended with %v", err)
				}
				c.start(h)
				if err := c.ended(h); !errors.Is(err, ErrRemoved) {
					t.Errorf("started again it ended with %v", err)
				}
				c.propose(leader, "still")
				if s := leader.replica.Status(); s.Role != "leader" {
					t.Errorf("there was an election: %+v", s)
				}
			})
		})
	}
}

// Whoever knows of its own removal, and is the only one to, helps the others to find it out.
func TestRemovedStaysWhileItIsNeeded(t *testing.T) {
	inCell(t, 2, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		c.recorded()
		removed := c.hosts[leader.ID%2]
		release := leader.machine.holdSave()
		c.must(func(ctx context.Context, r *Replica) error { return r.Remove(ctx, removed.ID) })
		at := leader.replica.removal.Load()
		c.halt(leader, func() {
			leader.machine.crashed = true // before there is a checkpoint
			leader.disk.Crash()
			release()
		})
		c.crash(removed)
		// A commit index is written without haste. The removed one has it.
		for h, commit := range map[*host]uint64{leader: at - 1, removed: at} {
			state, _, err := h.disk.mu.durable.InitialState()
			if err != nil {
				t.Fatal(err)
			}
			h.disk.mu.durable.SetHardState(hardState(state.GetTerm(), state.GetVote(), commit))
		}
		c.start(removed)
		c.until("it knows", func() bool { _, ok := removed.replica.Member(removed.ID); return !ok })
		time.Sleep(10 * time.Second)
		if removed.replica.stopping() {
			t.Fatalf("it ended before it was told: %v", removed.replica.Err())
		}
		c.start(leader)
		if err := c.ended(removed); !errors.Is(err, ErrRemoved) {
			t.Errorf("it ended with %v", err)
		}
		c.until("the other leads alone", func() bool {
			return leader.replica.Status().Role == "leader" && standing(leader) == fmt.Sprint(leader.ID)
		})
		c.propose(leader, "alone")
	})
}

// The leader that is to be removed hands over first, and the next one removes it.
func TestRemoveTheLeader(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		old := c.leader()
		c.recorded()
		c.agree(0)
		if err := old.replica.Remove(t.Context(), old.ID); !errors.Is(err, ErrNotLeader) {
			t.Errorf("it removed itself: %v", err)
		}
		c.leader(old)
		c.must(func(ctx context.Context, r *Replica) error { return r.Remove(ctx, old.ID) })
		if err := c.ended(old); !errors.Is(err, ErrRemoved) {
			t.Errorf("it ended with %v", err)
		}
		c.propose(c.leader(old), "after")
	})
}

// While a change is not in force there is no other one.
func TestOneChangeAtATime(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		c.recorded()
		add := func(id uint64) error {
			return leader.replica.AddLearner(t.Context(), Member{ID: id, Name: fmt.Sprint("r", id), Address: fmt.Sprint("r", id)})
		}
		for _, h := range c.hosts {
			if h != leader {
				c.net.set(leader.Name, h.Name, true)
			}
		}
		first := make(chan error, 1)
		go func() { first <- add(8) }()
		synctest.Wait()
		if err := add(9); !errors.Is(err, ErrBusy) {
			t.Errorf("a second change meanwhile: %v", err)
		}
		if err := <-first; !errors.Is(err, ErrNotLeader) {
			t.Errorf("without a majority: %v", err)
		}
		c.isolate(leader, false)
		c.until("there is a leader", func() bool { return leader.replica.Status().Leader != 0 })
		if err := c.asking(func(ctx context.Context, r *Replica) error {
			return r.AddLearner(ctx, Member{ID: 9, Name: "r9", Address: "r9"})
		}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		for _, h := range c.hosts {
			if s := h.replica.Status(); s.Role != "leader" {
				if err := h.replica.Promote(t.Context(), 9); !errors.Is(err, ErrNotLeader) {
					t.Errorf("a follower promoted a member: %v", err)
				}
			}
		}
	})
}

// A member that was away while all whom it knew were replaced follows those it never heard of.
func TestStrangersLead(t *testing.T) {
	for name, tune := range map[string]func(*Config){"by the log": nil, "by a snapshot": short} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, tune, func(t *testing.T, c *cell) {
				c.leader()
				c.recorded()
				away := c.hosts[2]
				c.crash(away)
				for _, old := range c.hosts[:2] {
					fresh := c.lay(old.ID + 10)
					fresh.Replaces = old.ID
					c.must(func(ctx context.Context, r *Replica) error { return r.AddLearner(ctx, fresh.Member) })
					c.start(fresh)
					if err := c.ended(old); !errors.Is(err, ErrRemoved) {
						t.Fatalf("%s ended with %v", old.Name, err)
					}
				}
				c.stands("3 11 12")
				var leader *host
				c.until("one leads", func() bool {
					i := slices.IndexFunc(c.up(), func(h *host) bool { return h.replica.Status().Role == "leader" })
					if i >= 0 {
						leader = c.up()[i]
					}
					return i >= 0
				})
				for i := range 50 {
					c.propose(leader, fmt.Sprint(i))
				}
				c.start(away)
				c.agree(50)
				c.stands("3 11 12")
			})
		})
	}
}

func TestTransferAvoids(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		for range 5 {
			old := c.leader()
			c.propose(old, "a")
			c.until("all are level", func() bool {
				s := old.replica.Status()
				return !slices.ContainsFunc(s.Members, func(m MemberStatus) bool { return m.Match < s.Committed })
			})
			avoid := c.lastBut(old)
			if err := old.replica.TransferLeadership(t.Context(), avoid.ID); err != nil {
				t.Fatal(err)
			}
			if leader := c.leader(old); leader == avoid {
				t.Error("it was handed to the one to be avoided")
			}
		}
		old := c.leader()
		if err := old.replica.TransferLeadership(t.Context(), 1, 2, 3); err == nil {
			t.Error("it was handed over though all are to be avoided")
		}
	})
}

// A replica answers to a member that it cannot know yet, to a few of them, and to no other stranger.
func TestGuests(t *testing.T) {
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		h := c.leader()
		c.recorded()
		reached := h.replica.Status().Applied
		greet := func(id, added uint64) error {
			defer synctest.Wait()
			return h.replica.admit(&raftrpc.Greeting{ClusterId: testCluster, From: id, To: h.ID,
				Sender: &raftrpc.MemberInfo{Id: id, Name: "guest", Address: fmt.Sprint("guest ", id), Added: added}})
		}
		for _, added := range []uint64{0, reached} {
			if err := greet(7, added); err == nil || !strings.Contains(err.Error(), "there is no member 7 in this cell") {
				t.Errorf("added by entry %d, and it has %d: %v", added, reached, err)
			}
		}
		for id := range uint64(2 * guestsMax) {
			if err := greet(id+100, reached+1); err != nil {
				t.Errorf("added by the next entry: %v", err)
			}
			p, ok := h.replica.members.peer(id + 100)
			if room := id < guestsMax; ok != room || ok && p.Address != fmt.Sprint("guest ", id+100) {
				t.Errorf("guest %d is answered: %v", id, ok)
			}
		}
		if n := len(h.replica.Members()); n != 1 {
			t.Errorf("they count as members: %d", n)
		}
		c.must(func(ctx context.Context, r *Replica) error {
			return r.AddLearner(ctx, Member{ID: 100, Name: "guest", Address: "guest 100"})
		})
		c.must(func(ctx context.Context, r *Replica) error { return r.Remove(ctx, 100) })
		if _, ok := h.replica.members.peer(100); ok {
			t.Error("it is still answered when it is removed")
		}
		if err := greet(100, reached+10); err == nil || !strings.Contains(err.Error(), "member 100 was removed from this cell") {
			t.Errorf("removed: %v", err)
		}
	})
}
