package raft

import (
	"errors"
	"fmt"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Seed begins the empty log of a cell that was restored from a backup: it goes on after entry index
// of term, and the first election is for a term above that. Each member is seeded alike, and with
// the same state. The position is to be saved with the state, and then Start goes on as after any
// checkpoint. If Seed fails, the log is of no use.
func Seed(s Storage, members []Member, index, term uint64) (encoded []byte, err error) {
	state, _, err := s.InitialState()
	if err != nil {
		return nil, err
	}
	if _, last, err := bounds(s); err != nil || last > 0 || !etcdraft.IsEmptyHardState(state) {
		return nil, errors.Join(err, errors.New("raft: seed the log: it is not empty"))
	}
	if err := checkFounders(members); err != nil {
		return nil, fmt.Errorf("raft: seed the log: %w", err)
	}
	if len(members) == 0 || index == 0 || term == 0 {
		return nil, fmt.Errorf("raft: seed the log of %d members after entry %d of term %d: none of these can be 0", len(members), index, term)
	}
	at := position{index: index, term: term, configuration: configuration{
		conf: &raftpb.ConfState{AutoLeave: new(false)}, members: byID(members)}}
	for _, m := range sortedMembers(at.members) {
		at.conf.Voters = append(at.conf.Voters, m.ID)
	}
	if encoded, err = at.marshal(); err != nil {
		return nil, err
	}
	if err := s.Mark(at.metadata()); err != nil {
		return nil, err
	}
	return encoded, s.Append(&raftpb.HardState{Term: new(term), Vote: new(uint64(0)), Commit: new(index)}, nil)
}
