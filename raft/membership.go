package raft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// promoteDistance is by how many entries a learner may be behind that is made a voter: what it
	// has not got yet is on its way, unless it is much slower than the others.
	promoteDistance = 500
	// promoteTicks is for how long it has to be that close before the leader promotes it by itself.
	promoteTicks = 10
)

// A view is what the leader knows when it decides about the membership.
type view struct {
	configuration
	self         uint64
	live         map[uint64]bool   // answered the leader within an election timeout; self is
	behind       map[uint64]uint64 // by how many committed entries
	incarnations map[uint64]uint64 // as heard
	steady       map[uint64]int    // learners: for how many ticks it could have been promoted
}

// A change is one of a member.
type change struct {
	kind   raftpb.ConfChangeType
	member Member
}

// AddLearner adds m, who is sent the log and has no vote. Once m is heard from and has nearly all
// of the log, the leader makes it a voter and removes the one whom it Replaces, whose name and
// address it may have. The id must be a new one.
//
// AddLearner, Promote and Remove are for the leader, else ErrNotLeader. They wait until the change
// is in force here; if ctx or the leadership ends before, it may come into force all the same. One
// change goes on at a time, else ErrBusy.
func (r *Replica) AddLearner(ctx context.Context, m Member) error {
	return r.changeMembers(ctx, func(v view) (change, error) {
		m := Member{ID: m.ID, Name: m.Name, Address: m.Address, Replaces: m.Replaces}
		return change{raftpb.ConfChangeAddLearnerNode, m}, v.checkAdd(m)
	})
}

// Promote makes a learner a voter without waiting until the leader does it. It is refused where the
// learner is not heard from or far behind, or where too few voters are.
func (r *Replica) Promote(ctx context.Context, id uint64) error {
	return r.changeMembers(ctx, func(v view) (change, error) {
		return change{raftpb.ConfChangeAddNode, v.members[id]}, v.checkPromote(id)
	})
}

// Remove removes a member for good. It is refused where most of the voters that stay would not be
// alive. If it is the leader, that hands its leadership over first and fails with ErrNotLeader: the
// next one is to be asked.
func (r *Replica) Remove(ctx context.Context, id uint64) error {
	if id == r.cfg.ID {
		if err := r.TransferLeadership(ctx); err != nil {
			return err
		}
		return ErrNotLeader
	}
	return r.changeMembers(ctx, func(v view) (change, error) {
		return change{raftpb.ConfChangeRemoveNode, v.members[id]}, v.checkRemove(id)
	})
}

func (v view) checkAdd(m Member) error {
	refuse := func(why string, of ...any) error {
		return fmt.Errorf("raft: add member %s: %s", m.Name, fmt.Sprintf(why, of...))
	}
	if _, ok := v.members[m.ID]; ok || m.ID == 0 || slices.Contains(v.removed, m.ID) {
		return refuse("the id %d is 0 or taken, now or before", m.ID)
	}
	if _, ok := v.members[m.Replaces]; !ok && m.Replaces != 0 {
		return refuse("there is no member %d that it could replace", m.Replaces)
	}
	for _, other := range sortedMembers(v.members) {
		switch {
		case other.ID == m.Replaces:
		case other.Replaces != 0 && other.Replaces == m.Replaces:
			return refuse("member %d, %s at %s, is about to replace %d already", other.ID, other.Name, other.Address, m.Replaces)
		case other.Name == m.Name:
			return refuse("there is a member of that name, at %s", other.Address)
		case other.Address == m.Address:
			return refuse("the address %s is that of member %s", m.Address, other.Name)
		}
	}
	return nil
}

func (v view) checkPromote(id uint64) error {
	m, ok := v.members[id]
	refuse := func(why string, of ...any) error {
		return fmt.Errorf("raft: promote member %d (%s): %s", id, m.Name, fmt.Sprintf(why, of...))
	}
	switch behind, known := v.behind[id]; {
	case !ok:
		return refuse("there is no such member")
	case !v.isLearner(id):
		return refuse("it is a voter already")
	case !v.live[id]:
		return refuse("it is not heard from at %s", m.Address)
	case !known || behind > promoteDistance:
		return refuse("it is %d entries behind", behind)
	case m.Incarnation == 0 && v.incarnations[id] != 0:
		return refuse("it has only just been heard for the first time")
	}
	if voters := append(slices.Clone(v.conf.GetVoters()), id); !v.enoughLive(voters) {
		return refuse("%s", v.tooFew(voters))
	}
	return nil
}

func (v view) checkRemove(id uint64) error {
	m, ok := v.members[id]
	refuse := func(why string) error { return fmt.Errorf("raft: remove member %d (%s): %s", id, m.Name, why) }
	rest := slices.DeleteFunc(slices.Clone(v.conf.GetVoters()), func(voter uint64) bool { return voter == id })
	switch {
	case !ok:
		return refuse("there is no such member")
	case len(rest) == 0:
		return refuse("it is the only voter")
	case v.isVoter(id) && !v.enoughLive(rest):
		return refuse(v.tooFew(rest))
	}
	return nil
}

func (v view) countLive(voters []uint64) (n int) {
	for _, id := range voters {
		if v.live[id] {
			n++
		}
	}
	return n
}

func (v view) enoughLive(voters []uint64) bool { return v.countLive(voters) > len(voters)/2 }

func (v view) tooFew(voters []uint64) string {
	return fmt.Sprintf("of the %d voters that there would be then %d are heard from, and %d are needed",
		len(voters), v.countLive(voters), len(voters)/2+1)
}

// due returns what the leader is to do of itself. It follows from what all replicas have, so that
// the next leader goes on where this one ends.
func (v view) due() (c change, ok bool) {
	members := sortedMembers(v.members)
	for _, m := range members {
		if m.Incarnation == 0 && v.incarnations[m.ID] != 0 {
			m.Incarnation = v.incarnations[m.ID]
			return change{raftpb.ConfChangeUpdateNode, m}, true
		}
	}
	for _, m := range members {
		if old, ok := v.members[m.Replaces]; ok && v.isVoter(m.ID) && v.checkRemove(old.ID) == nil {
			return change{raftpb.ConfChangeRemoveNode, old}, true
		}
	}
	for _, m := range members {
		if v.steady[m.ID] >= promoteTicks {
			return change{raftpb.ConfChangeAddNode, m}, true
		}
	}
	return change{}, false
}

// view returns what a leader knows.
func (r *Replica) view() view {
	v := view{
		configuration: r.conf, self: r.cfg.ID, live: map[uint64]bool{r.cfg.ID: true}, behind: make(map[uint64]uint64),
		incarnations: map[uint64]uint64{r.cfg.ID: r.cfg.Incarnation}, steady: r.steady,
	}
	for id := range r.conf.members {
		if p, ok := r.members.peer(id); ok {
			v.live[id], v.incarnations[id] = p.answers(), p.incarnation.Load()
		}
	}
	commit := r.node.BasicStatus().GetCommit()
	r.node.WithProgress(func(id uint64, _ etcdraft.ProgressType, p progress) {
		v.behind[id] = commit - min(commit, p.Match)
	})
	return v
}

// tend does, as the leader, what is due of itself, once a tick.
func (r *Replica) tend() {
	if !r.leadership.Leading {
		return
	}
	v := r.view()
	for id := range v.members {
		if v.checkPromote(id) == nil {
			r.steady[id]++
		} else {
			delete(r.steady, id)
		}
	}
	maps.DeleteFunc(r.steady, func(id uint64, _ int) bool { return !v.isLearner(id) })
	c, ok := v.due()
	switch {
	case !ok || !r.mayChange():
	case c.kind == raftpb.ConfChangeRemoveNode && c.member.ID == r.cfg.ID:
		// The next leader removes this one.
		if to := r.successor(nil); to != 0 {
			r.node.TransferLeader(to)
		}
	default:
		if err := r.proposeChange(c, nil); err != nil {
			r.log.Warn("cannot change the membership", "member", c.member.ID, "change", c.kind, "error", err)
		}
	}
}

// mayChange reports whether raft takes a change of the membership now: one at a time, and none
// while this leader may not know of one of the leader before, or is handing over.
func (r *Replica) mayChange() bool {
	s := r.node.BasicStatus()
	return !r.changing && r.committedTerm == r.leadership.Term && s.Applied >= r.changeAfter && s.LeadTransferee == 0
}

func (r *Replica) changeMembers(ctx context.Context, decide func(view) (change, error)) error {
	over := make(chan error, 1)
	return r.await(ctx, over, func() {
		if !r.leadership.Leading {
			over <- ErrNotLeader
			return
		}
		c, err := decide(r.view())
		if err == nil && !r.mayChange() {
			err = ErrBusy
		}
		if err == nil {
			err = r.proposeChange(c, over)
		}
		if err != nil {
			over <- err
		}
	})
}

// await has the run goroutine do something, and waits for what comes of it.
func (r *Replica) await(ctx context.Context, over <-chan error, do func()) error {
	if !r.call(do) {
		return ErrStopped
	}
	select {
	case err := <-over:
		return err
	case <-r.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// proposeChange puts a change into the log. Over, if it is not nil, hears when it is in force.
func (r *Replica) proposeChange(c change, over chan<- error) error {
	data, err := changeData(c.kind, c.member)
	if err != nil {
		return err
	}
	m := &raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.cfg.ID),
		Entries: []*raftpb.Entry{{Type: raftpb.EntryConfChange.Enum(), Data: data}}}
	err = r.node.Step(m)
	switch {
	case errors.Is(err, etcdraft.ErrProposalDropped):
		return ErrBusy // leadership is being handed over, or too much is not committed
	case err != nil:
		return err
	case m.GetEntries()[0].GetType() != raftpb.EntryConfChange:
		return ErrBusy // raft has put an empty entry in its place
	}
	r.changing, r.changeOver = true, over
	return nil
}

// changeConcluded tells whoever waits for the change under way what became of it.
func (r *Replica) changeConcluded(err error) {
	if r.changeOver != nil {
		r.changeOver <- err
	}
	r.changing, r.changeOver = false, nil
}

// changeConfiguration makes a change that is committed take force.
func (r *Replica) changeConfiguration(entry *raftpb.Entry) error {
	c, err := parseChange(entry)
	if err != nil {
		return err
	}
	after, err := r.conf.changed(c, entry.GetIndex())
	if err != nil {
		return err
	}
	after.conf = r.node.ApplyConfChange(c)
	m := after.members[c.GetNodeId()]
	if c.GetType() == raftpb.ConfChangeRemoveNode {
		m = r.conf.members[c.GetNodeId()]
		r.removal.Store(entry.GetIndex())
	}
	r.log.Info("the membership changed", "entry", entry.GetIndex(), "change", changes[c.GetType()],
		"member", c.GetNodeId(), "name", m.Name, "address", m.Address)
	r.conf, r.changeAfter = after, entry.GetIndex()
	r.setMembers(after)
	if r.changing && entry.GetTerm() == r.leadership.Term {
		r.changeConcluded(nil)
	}
	return fits(r.cfg, after)
}

var changes = map[raftpb.ConfChangeType]string{
	raftpb.ConfChangeAddNode: "voter", raftpb.ConfChangeAddLearnerNode: "learner",
	raftpb.ConfChangeUpdateNode: "data folder known", raftpb.ConfChangeRemoveNode: "removed",
}

// fits returns ErrReplaced if the log knows this member with another data folder.
//
// That this member was removed is no reason to end of itself: the others may not know it yet and
// need its vote to come so far. One who does know tells it.
func fits(cfg Config, now configuration) error {
	if self := now.members[cfg.ID]; self.Incarnation != 0 && self.Incarnation != cfg.Incarnation {
		return ErrReplaced
	}
	return nil
}
