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
	configuration
}

// A configuration is who is in the cell at some place in the log. It is immutable.
type configuration struct {
	conf    *raftpb.ConfState // nil stands for that of nobody
	members map[uint64]Member
	removed []uint64 // former members, the last one last
}

// removedMax is how many former members are remembered, so that they can be told.
const removedMax = 256

var deterministic = proto.MarshalOptions{Deterministic: true}

func (p position) marshal() ([]byte, error) {
	conf, err := deterministic.Marshal(p.confState())
	if err != nil {
		return nil, err
	}
	message := &raftrpc.Position{Index: p.index, Term: p.term, ConfState: conf, Removed: p.removed}
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
	p := position{index: message.Index, term: message.Term,
		configuration: configuration{conf: conf, members: make(map[uint64]Member), removed: message.Removed}}
	for _, m := range message.Members {
		p.members[m.Id] = memberOf(m)
	}
	return p, nil
}

// confState returns the configuration, of nobody if there is none yet.
func (c configuration) confState() *raftpb.ConfState { return raftpb.EnsureConfState(c.conf) }

func (c configuration) isLearner(id uint64) bool { return slices.Contains(c.conf.GetLearners(), id) }

func (c configuration) isVoter(id uint64) bool { return slices.Contains(c.conf.GetVoters(), id) }

// metadata returns the position as raft speaks of it.
func (p position) metadata() *raftpb.SnapshotMetadata {
	return &raftpb.SnapshotMetadata{Index: new(p.index), Term: new(p.term), ConfState: p.confState()}
}

func memberInfo(m Member) *raftrpc.MemberInfo {
	return &raftrpc.MemberInfo{Id: m.ID, Name: m.Name, Address: m.Address,
		Incarnation: m.Incarnation, Replaces: m.Replaces, Added: m.Added}
}

func memberOf(m *raftrpc.MemberInfo) Member {
	return Member{ID: m.GetId(), Name: m.GetName(), Address: m.GetAddress(),
		Incarnation: m.GetIncarnation(), Replaces: m.GetReplaces(), Added: m.GetAdded()}
}

func sortedMembers(members map[uint64]Member) []Member {
	return slices.SortedFunc(maps.Values(members), func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
}

// changed returns the members, and who was removed, after a change that stands at index in the log.
// What raft makes of it, conf, is not its business.
func (c configuration) changed(change *raftpb.ConfChange, index uint64) (configuration, error) {
	id, after := change.GetNodeId(), maps.Clone(c.members)
	if after == nil {
		after = make(map[uint64]Member)
	}
	told := new(raftrpc.MemberInfo)
	if err := proto.Unmarshal(change.GetContext(), told); err != nil {
		return c, fmt.Errorf("read who member %d is: %w", id, err)
	}
	known, ok := after[id]
	switch change.GetType() {
	case raftpb.ConfChangeAddNode, raftpb.ConfChangeAddLearnerNode:
		if !ok {
			known = memberOf(told)
		}
		if !ok && change.GetType() == raftpb.ConfChangeAddLearnerNode {
			known.Added = index // voters that were no learners before are those the cell began with
		}
		after[id] = known
	case raftpb.ConfChangeUpdateNode:
		if ok && known.Incarnation == 0 { // what was recorded first stays
			known.Incarnation = told.GetIncarnation()
			after[id] = known
		}
	case raftpb.ConfChangeRemoveNode:
		delete(after, id)
		removed := append(slices.Clone(c.removed), id)
		c.removed = removed[max(0, len(removed)-removedMax):]
	default:
		return c, fmt.Errorf("unknown change %v of member %d", change.GetType(), id)
	}
	c.members = after
	return c, nil
}

// firstEntries is how the log of a new cell begins, on every replica alike: with the addition of
// each member, which all of them agreed on by being given the same list. They are of term 1 and
// committed; the first election is for term 2.
func firstEntries(members []Member) (*raftpb.HardState, []*raftpb.Entry, error) {
	members = slices.SortedFunc(slices.Values(members), func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	var entries []*raftpb.Entry
	for i, m := range members {
		data, err := changeData(raftpb.ConfChangeAddNode, Member{ID: m.ID, Name: m.Name, Address: m.Address})
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

// changeData returns an entry's data that does such a change to m.
func changeData(kind raftpb.ConfChangeType, m Member) ([]byte, error) {
	info, err := deterministic.Marshal(memberInfo(m))
	if err != nil {
		return nil, err
	}
	return deterministic.Marshal(&raftpb.ConfChange{Type: kind.Enum(), NodeId: new(m.ID), Context: info})
}
