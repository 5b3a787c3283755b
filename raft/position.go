package raft

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// A position is where in the log a state stands, and what goes with that place: who is in the
// cell. It is immutable; the zero position is before the first entry.
type position struct {
	index, term uint64
	conf        *raftpb.ConfState // nil stands for that of nobody
	members     map[uint64]Member
}

var deterministic = proto.MarshalOptions{Deterministic: true}

func (p position) marshal() ([]byte, error) {
	conf, err := deterministic.Marshal(p.confState())
	if err != nil {
		return nil, err
	}
	message := &raftrpc.Position{Index: p.index, Term: p.term, ConfState: conf}
	for _, m := range sortedMembers(p.members) {
		message.Members = append(message.Members, memberInfo(m))
	}
	return deterministic.Marshal(message)
}

func parsePosition(b []byte) (position, error) {
	message, conf := new(raftrpc.Position), new(raftpb.ConfState)
	if err := errors.Join(proto.Unmarshal(b, message), proto.Unmarshal(message.GetConfState(), conf)); err != nil {
		return position{}, fmt.Errorf("read the position of a checkpoint: %w", err)
	}
	p := position{index: message.Index, term: message.Term, conf: conf, members: make(map[uint64]Member)}
	for _, m := range message.Members {
		p.members[m.Id] = memberOf(m)
	}
	return p, nil
}

// confState returns the configuration, of nobody if there is none yet.
func (p position) confState() *raftpb.ConfState { return raftpb.EnsureConfState(p.conf) }

// metadata returns the position as raft speaks of it.
func (p position) metadata() *raftpb.SnapshotMetadata {
	return &raftpb.SnapshotMetadata{Index: new(p.index), Term: new(p.term), ConfState: p.confState()}
}

func memberInfo(m Member) *raftrpc.MemberInfo {
	return &raftrpc.MemberInfo{Id: m.ID, Name: m.Name, Address: m.Address}
}

func memberOf(m *raftrpc.MemberInfo) Member {
	return Member{ID: m.GetId(), Name: m.GetName(), Address: m.GetAddress()}
}

func sortedMembers(members map[uint64]Member) []Member {
	return slices.SortedFunc(maps.Values(members), func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
}

// addMember returns the members after a configuration change, which so far always adds one.
func addMember(before map[uint64]Member, change *raftpb.ConfChange) (map[uint64]Member, error) {
	if change.GetType() != raftpb.ConfChangeAddNode {
		return nil, fmt.Errorf("unknown change %v of member %d", change.GetType(), change.GetNodeId())
	}
	info := new(raftrpc.MemberInfo)
	if err := proto.Unmarshal(change.GetContext(), info); err != nil {
		return nil, fmt.Errorf("read who member %d is: %w", change.GetNodeId(), err)
	}
	after := make(map[uint64]Member)
	maps.Copy(after, before)
	after[change.GetNodeId()] = memberOf(info)
	return after, nil
}

// firstEntries is how the log of a new cell begins, on every replica alike: with the addition of
// each member, which all of them agreed on by being given the same list. They are of term 1 and
// committed; the first election is for term 2.
func firstEntries(members []Member) (*raftpb.HardState, []*raftpb.Entry, error) {
	members = slices.SortedFunc(slices.Values(members), func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	var entries []*raftpb.Entry
	for i, m := range members {
		info, err := deterministic.Marshal(memberInfo(m))
		if err != nil {
			return nil, nil, err
		}
		data, err := deterministic.Marshal(&raftpb.ConfChange{
			Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(m.ID), Context: info,
		})
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, &raftpb.Entry{
			Type: raftpb.EntryConfChange.Enum(), Term: new(uint64(1)), Index: new(uint64(i + 1)), Data: data,
		})
	}
	state := &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: new(uint64(len(entries)))}
	return state, entries, nil
}
