package master

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"lockfs"
	"lockfs/lockpb"
	"lockfs/raft"
)

// Join tells who the member of a name is, as far as this replica knows.
func (r *Replica) Join(_ context.Context, q *lockpb.JoinRequest) (*lockpb.JoinAnswer, error) {
	a := &lockpb.JoinAnswer{Cell: r.cfg.Cell, ClusterId: r.cfg.ClusterID, Member: new(lockpb.Member)}
	status := r.raft.Status()
	if m, ok := memberNamed(status, q.GetName()); ok {
		a.Member = memberToWire(status, m)
	}
	for _, m := range status.Members {
		a.Members = append(a.Members, memberToWire(status, m))
	}
	return a, nil
}

// Members returns who is in the cell, as far as this replica knows.
func (r *Replica) Members() []raft.Member {
	var all []raft.Member
	for _, m := range r.raft.Status().Members {
		all = append(all, m.Member)
	}
	return all
}

// memberNamed returns the newest member of a name: while one replaces another there are two.
func memberNamed(s raft.Status, name string) (raft.MemberStatus, bool) {
	var found raft.MemberStatus
	for _, m := range s.Members {
		if m.Name == name && (found.ID == 0 || m.Replaces == found.ID) {
			found = m
		}
	}
	return found, found.ID != 0
}

func memberToWire(s raft.Status, m raft.MemberStatus) *lockpb.Member {
	return &lockpb.Member{Id: m.ID, Name: m.Name, Address: m.Address, Master: m.ID == s.Leader, Voter: !m.Learner,
		Reachable: m.Active, Matched: m.Match, Begun: m.Incarnation != 0, Replaces: m.Replaces}
}

// ChangeMember adds a member, gives one its vote, or removes one. It returns when that is in the
// log. It is refused where it could leave the cell without a majority.
func (r *Replica) ChangeMember(ctx context.Context, q *lockpb.ChangeMemberRequest) (*lockpb.ChangeMemberAnswer, error) {
	var m raft.MemberStatus
	err := r.confirmed(ctx, func(moment) {})
	if err == nil {
		m, err = r.changeMember(ctx, q)
	}
	if err != nil {
		return nil, lockpb.StatusOf(err)
	}
	return &lockpb.ChangeMemberAnswer{Member: memberToWire(r.raft.Status(), m)}, nil
}

func (r *Replica) changeMember(ctx context.Context, q *lockpb.ChangeMemberRequest) (raft.MemberStatus, error) {
	if add := q.GetAdd(); add != nil {
		return r.addMember(ctx, add)
	}
	name, change := q.GetRemove(), r.raft.Remove
	if q.GetPromote() != "" {
		name, change = q.GetPromote(), r.raft.Promote
	}
	status := r.raft.Status()
	m, ok := memberNamed(status, name)
	switch {
	case !ok:
		return m, &lockfs.Error{Kind: lockfs.ErrNotExist, Detail: fmt.Sprintf("the cell has no member %q", name)}
	case q.GetRemove() != "" && m.ID == status.ID && voters(status) == 1:
		return m, &lockfs.Error{Kind: lockfs.ErrInvalid, Detail: fmt.Sprintf("%s is the only voter", name)}
	}
	return m, r.membershipError(change(ctx, m.ID))
}

// addMember adds a member under an id that nobody ever had.
func (r *Replica) addMember(ctx context.Context, add *lockpb.AddMember) (raft.MemberStatus, error) {
	if err := checkMember(add); err != nil {
		return raft.MemberStatus{}, err
	}
	status := r.raft.Status()
	old, taken := memberNamed(status, add.GetName())
	pending := slices.ContainsFunc(status.Members, func(m raft.MemberStatus) bool { return m.ID == old.Replaces })
	switch {
	case add.GetReplace() && !taken:
		return old, &lockfs.Error{Kind: lockfs.ErrNotExist, Detail: fmt.Sprintf("the cell has no member %q", add.GetName())}
	case add.GetReplace() && pending:
		return old, &lockfs.Error{Kind: lockfs.ErrInvalid, Detail: fmt.Sprintf(
			"%s is being replaced already, by member %d at %s; lockfs member remove %s withdraws that", old.Name, old.ID, old.Address, old.Name)}
	case !add.GetReplace() && taken:
		return old, &lockfs.Error{Kind: lockfs.ErrExist, Detail: fmt.Sprintf("%s is a member already, at %s", old.Name, old.Address)}
	}
	m := raft.Member{ID: newID(), Name: add.GetName(), Address: add.GetAddress(), Replaces: old.ID}
	if err := r.membershipError(r.raft.AddLearner(ctx, m)); err != nil {
		return old, err
	}
	r.log.Info("added a member, without a vote until its log has caught up", "name", m.Name, "address", m.Address, "member", m.ID)
	return raft.MemberStatus{Member: m, Learner: true}, nil
}

func voters(s raft.Status) (n int) {
	for _, m := range s.Members {
		if !m.Learner {
			n++
		}
	}
	return n
}

func checkMember(add *lockpb.AddMember) error {
	if err := lockfs.CheckReplicaName(add.GetName()); err != nil {
		return err
	}
	if host, port, err := net.SplitHostPort(add.GetAddress()); err != nil || host == "" || port == "" {
		return &lockfs.Error{Kind: lockfs.ErrInvalid, Detail: fmt.Sprintf("%q is no HOST:PORT", add.GetAddress())}
	}
	return nil
}

// newID returns a number that no member has had, but for a chance of nothing.
func newID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return max(1, binary.BigEndian.Uint64(b[:]))
}

// membershipError gives an error of raft's its kind.
func (r *Replica) membershipError(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, raft.ErrNotLeader):
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.notMaster()
	case errors.Is(err, raft.ErrStopped):
		return &lockfs.Error{Kind: lockfs.ErrUnavailable, Detail: "the replica is stopping"}
	}
	return &lockfs.Error{Kind: lockfs.ErrInvalid, Detail: strings.TrimPrefix(err.Error(), "raft: ")}
}
