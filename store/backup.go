package store

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"
)

// SnapshotInfo is what a snapshot says of itself.
type SnapshotInfo struct {
	Cell      string
	ClusterID uint64
	Applied   uint64 // index of the last log entry in it
	Epoch     uint64 // of the last master that took office
	Level     uint32
	Time      time.Time // of the last proposal, on its master's clock
	Nodes     int64     // the root included
	Bytes     int64     // of all contents together
	Sessions  int       // live ones
	Records   uint64
	Hash      uint64 // the running hash
}

// CheckSnapshot reads a snapshot of any cell to its end and checks all of it, as a replica does that
// restores it, for which it takes as much memory. It fails as ReadSnapshot does.
func CheckSnapshot(r io.Reader) (SnapshotInfo, error) {
	s, meta, err := readSnapshot(r, "", ours)
	if err != nil {
		return SnapshotInfo{}, fmt.Errorf("check snapshot: %w", err)
	}
	return SnapshotInfo{
		Cell: meta.Cell, ClusterID: s.ClusterID(), Applied: s.applied, Epoch: s.Epoch(), Level: s.Level(),
		Time: instant(s.cell.time), Nodes: s.Nodes(), Bytes: s.Bytes(), Sessions: len(s.sessions),
		Records: meta.Records, Hash: meta.Hash,
	}, nil
}

// rebirthStep is by how much Rebirth raises what a cell counts. The cell that the snapshot is of went
// on after it, and what that drew in the meantime has to stay below, too.
const rebirthStep = 1 << 32

// Rebirth reads a snapshot of the cell and returns it as the state of a new cell with the same name
// and contents, whose cluster id is another. All sessions have ended, as by expiry: locks are free and
// marked with their lock-delay, and ephemeral nodes are orphans, which the first master deletes. The
// epoch, every generation and instance, the floors, and the numbers that sessions are counted by are
// 2^32 above the snapshot's, so that nothing which was drawn from the old cell, until the snapshot or
// after it, is valid in the new one. Applied stays: the new log begins after that entry, in a term
// that is to be above Epoch.
//
// Equal snapshots and cluster ids give equal states. It fails as ReadSnapshot does.
func Rebirth(r io.Reader, cell string, clusterID uint64) (*State, error) {
	s, _, err := readSnapshot(r, cell, ours)
	if err == nil {
		err = s.bearAnew(clusterID)
	}
	if err != nil {
		return nil, fmt.Errorf("make a new cell of a snapshot of the cell %s: %w", cell, err)
	}
	return s, nil
}

func (s *State) bearAnew(clusterID uint64) error {
	switch {
	case s.cell.clusterID == 0:
		return errors.New("it never had a master")
	case clusterID == 0 || clusterID == s.cell.clusterID:
		return fmt.Errorf("the cluster id %x is not a new one", clusterID)
	}
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		s.endSession(id, func(uint64) bool { return true })
	}
	s.cell.clusterID = clusterID
	s.undo, s.effects = nil, Effects{}
	return s.raiseAll()
}

// raiseAll raises whatever only grows in a cell, but the index and the time.
func (s *State) raiseAll() error {
	var highest uint64
	raise := func(counters ...*uint64) {
		for _, c := range counters {
			highest = max(highest, *c)
			*c += rebirthStep
		}
	}
	c := &s.cell
	raise(&c.epoch, &c.lastInstance, &c.lastSession, &c.contentFloor, &c.lockFloor, &c.aclFloor)
	for _, n := range slices.Collect(maps.Values(s.nodes)) {
		next := *n
		raise(&next.instance, &next.contentGeneration, &next.lockGeneration, &next.aclGeneration)
		next.print = s.hasher.node(&next)
		s.swapNode(n.path, n, &next)
	}
	if highest > math.MaxInt64 {
		return fmt.Errorf("it counts up to %d, which is too high to be raised", highest)
	}
	return nil
}
