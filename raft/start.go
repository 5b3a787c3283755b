package raft

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

func withDefaults(cfg Config) Config {
	cfg.Tick = cmp.Or(cfg.Tick, 50*time.Millisecond)
	cfg.CheckpointEntries = cmp.Or(cfg.CheckpointEntries, 20_000)
	cfg.CheckpointBytes = cmp.Or(cfg.CheckpointBytes, 4<<20)
	cfg.TailEntries = cmp.Or(cfg.TailEntries, 10_000)
	cfg.TailBytes = cmp.Or(cfg.TailBytes, 32<<20)
	return cfg
}

// prepare makes the log fit what the machine has, and returns where the machine stands. The log
// of a new cell gets its first entries.
func prepare(cfg Config) (position, error) {
	state, _, err := cfg.Storage.InitialState()
	if err != nil {
		return position{}, err
	}
	switch fresh := etcdraft.IsEmptyHardState(state); {
	case fresh && cfg.Position != nil:
		return position{}, fmt.Errorf("there is a state of this member, but its log is gone: %w", ErrReplaced)
	case fresh && cfg.Joining:
		// From here on the log is one that was begun, so that its loss shows.
		return position{}, cfg.Storage.Append(&raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: new(uint64(0))}, nil)
	case fresh:
		return found(cfg)
	case cfg.Position == nil:
		return replayAll(cfg)
	}
	at, err := parsePosition(cfg.Position)
	if err != nil {
		return position{}, err
	}
	if err := fits(cfg, at.configuration); err != nil {
		return position{}, err
	}
	return at, join(cfg.Storage, state, at)
}

// found begins the log of a new cell. If the process dies before that is durable, it is done
// again.
func found(cfg Config) (position, error) {
	if !slices.ContainsFunc(cfg.Members, func(m Member) bool { return m.ID == cfg.ID }) {
		return position{}, errors.New("it is not among the members of the new cell")
	}
	if err := checkFounders(cfg.Members); err != nil {
		return position{}, err
	}
	state, entries, err := firstEntries(cfg.Members)
	if err != nil {
		return position{}, err
	}
	return foundedBy(cfg), cfg.Storage.Append(state, entries)
}

func checkFounders(members []Member) error {
	ids := make(map[uint64]bool)
	for _, m := range members {
		if m.ID == 0 || ids[m.ID] {
			return fmt.Errorf("the id %d of member %s of the new cell is 0 or taken", m.ID, m.Name)
		}
		ids[m.ID] = true
	}
	return nil
}

// replayAll is for a machine that made no checkpoint yet. The members are those of the new cell
// until the log says who they are.
func replayAll(cfg Config) (position, error) {
	first, err := cfg.Storage.FirstIndex()
	if err == nil && first > 1 {
		err = fmt.Errorf("%w: the log begins with entry %d, and there is no state", ErrGap, first)
	}
	return foundedBy(cfg), err
}

// foundedBy is where a log stands before its first entry. The members are those of the new cell.
func foundedBy(cfg Config) position {
	if cfg.Joining {
		return position{}
	}
	return position{configuration: configuration{members: byID(cfg.Members)}}
}

// join makes the log go on from a checkpoint of the machine. If it ends before that, the process
// died after a snapshot was restored and before the log was told.
func join(s Storage, state *raftpb.HardState, at position) error {
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	if at.index+1 < first {
		return fmt.Errorf("%w: the state is at entry %d, and the log begins with entry %d", ErrGap, at.index, first)
	}
	if err := s.Mark(at.metadata()); err != nil {
		return err
	}
	if state.GetCommit() >= at.index {
		return nil
	}
	// A commit index is written without haste, but what is in a checkpoint is committed.
	term, vote := state.GetTerm(), state.GetVote()
	if at.term > term {
		term, vote = at.term, 0
	}
	return s.Append(&raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(at.index)}, nil)
}

func byID(members []Member) map[uint64]Member {
	known := make(map[uint64]Member)
	for _, m := range members {
		known[m.ID] = Member{ID: m.ID, Name: m.Name, Address: m.Address}
	}
	return known
}
