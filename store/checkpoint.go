package store

import (
	"slices"

	"lockfs"
	"lockfs/store/storepb"
)

// version tells one state in the life of a cell from every other: no two states that a replica
// goes through between two entries have the same, but for a collision of the hash.
type version struct{ applied, hash uint64 }

func (s *State) version() version { return version{s.applied, s.Hash()} }

// A Checkpoint is what changed in a state since the checkpoint before. It takes part in no later
// change of the state and may be saved while others go on applying.
type Checkpoint struct {
	base    version // the state that the changes are to
	meta    *storepb.Meta
	changes []change
}

type change struct {
	key    string
	record recorder // nil: the record is gone
}

// A recorder is a record in memory: a *node, *delay, *session or *cell.
type recorder interface{ record() *storepb.Record }

// Applied returns the index of the last entry in the checkpoint.
func (c *Checkpoint) Applied() uint64 { return c.meta.Applied }

// Changes returns how many records the checkpoint writes.
func (c *Checkpoint) Changes() int { return len(c.changes) }

// Checkpoint takes all records that changed since the last one was taken, which costs time for
// those alone. Position is kept with them, for the log to know where to go on. Every checkpoint is
// to be saved, in order: one that was lost cannot be made good by a later one, which DB.Save
// notices.
func (s *State) Checkpoint(position []byte) *Checkpoint {
	at := s.cell
	c := &Checkpoint{base: s.base, meta: s.meta(position), changes: make([]change, 0, len(s.dirty)+1)}
	c.changes = append(c.changes, change{string(byte(cellKey)), &at})
	for id := range s.dirty {
		c.changes = append(c.changes, s.changeOf(id))
	}
	s.settle()
	return c
}

// settle notes that the file has, or is about to have, all of the state.
func (s *State) settle() {
	s.dirty = map[recordID]struct{}{}
	s.base = s.version()
}

func (s *State) changeOf(id recordID) change {
	c := change{key: pathKey(id.kind, id.path)}
	switch id.kind {
	case nodeKey:
		if n := s.nodes[id.path]; n != nil {
			c.record = n
		}
	case delayKey:
		if d := s.delays[id.path]; d != nil {
			c.record = d
		}
	case sessionKey:
		c.key = idKey(id.id)
		if ses := s.sessions[id.id]; ses != nil {
			c.record = ses
		}
	}
	return c
}

func (s *State) meta(position []byte) *storepb.Meta {
	return &storepb.Meta{
		Cell: s.cell.name, ClusterId: s.cell.clusterID, Applied: s.applied, Position: slices.Clone(position),
		Records: uint64(1 + len(s.nodes) + len(s.delays) + len(s.sessions)), Hash: s.Hash(),
	}
}

// records yields all records in key order.
func (s *State) records(yield func(recorder) bool) {
	if !yield(&s.cell) {
		return
	}
	_ = yieldSorted(s.delays, yield) && yieldSorted(s.nodes, yield) && yieldSorted(s.sessions, yield)
}

func yieldSorted[K lockfs.Path | uint64, R recorder](all map[K]R, yield func(recorder) bool) bool {
	keys := make([]K, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if !yield(all[key]) {
			return false
		}
	}
	return true
}
