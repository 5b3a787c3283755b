package store

import (
	"time"

	"lockfs"
)

// A State is the replicated state of one cell. It is not safe for concurrent use: whoever applies
// to it also guards it. What its methods return is shared and never changed afterwards.
type State struct {
	cell     cell
	nodes    map[lockfs.Path]*node
	delays   map[lockfs.Path]*delay
	sessions map[uint64]*session
	applied  uint64

	// What the replica knows and the cell does not.
	knows knowledge
	notes []HashNote // at most hashNotesMax, oldest first

	// What follows can be told from the records. swapNode, swapDelay and swapSession alone
	// change the records, and keep these in step.
	children  map[lockfs.Path]pathSet        // of each directory that has any
	listings  map[lockfs.Path][]lockfs.Entry // some of them, in order; see List
	held      map[uint64]map[uint64]pathSet  // what is locked, by session and owner
	locked    pathSet                        // nodes whose lock is held
	ephemeral map[uint64]pathSet             // by the session that owns them, which may have ended
	print     uint64                         // sum of the prints of all records but the cell
	dirty     map[recordID]struct{}          // records changed since the last checkpoint
	base      version                        // what the last checkpoint left in the file
	// Of the command that is being applied.
	undo    []func()
	effects Effects
	hasher  hasher
}

// New returns the state of a cell before its first master: only a TakeOffice with a seed changes
// it. The name is one that lockfs.CellRoot accepts.
func New(name string) *State {
	return &State{
		knows:     ours,
		cell:      cell{name: name},
		nodes:     map[lockfs.Path]*node{},
		delays:    map[lockfs.Path]*delay{},
		sessions:  map[uint64]*session{},
		children:  map[lockfs.Path]pathSet{},
		listings:  map[lockfs.Path][]lockfs.Entry{},
		held:      map[uint64]map[uint64]pathSet{},
		locked:    pathSet{},
		ephemeral: map[uint64]pathSet{},
		dirty:     map[recordID]struct{}{},
	}
}

// Cell returns the cell's name.
func (s *State) Cell() string { return s.cell.name }

// ClusterID returns the number that tells this cell from another of the same name; 0 before the
// seed.
func (s *State) ClusterID() uint64 { return s.cell.clusterID }

// Epoch returns the epoch of the last master that took office; 0 before the first.
func (s *State) Epoch() uint64 { return s.cell.epoch }

// Lease returns the longest lease of the cell's sessions.
func (s *State) Lease() time.Duration { return time.Duration(s.cell.leaseMS) * time.Millisecond }

// Grace returns for how long clients wait for a master after their lease has run out.
func (s *State) Grace() time.Duration { return time.Duration(s.cell.graceMS) * time.Millisecond }

// Limits returns what the cell accepts to store.
func (s *State) Limits() lockfs.Limits { return s.cell.limits }

// Level returns the level of commands and rules that all members know.
func (s *State) Level() uint32 { return s.cell.level }

// Nodes returns the number of nodes, the root included.
func (s *State) Nodes() int64 { return s.cell.nodes }

// Bytes returns the size of all contents together.
func (s *State) Bytes() int64 { return s.cell.bytes }

// Applied returns the index of the last log entry that was applied, also where its proposal was
// refused.
func (s *State) Applied() uint64 { return s.applied }

// Hash returns the running hash over all records: the sum, modulo 2^64, of a 64-bit hash of each.
// Replicas that applied the same entries have the same.
func (s *State) Hash() uint64 {
	var h hasher // not the state's, so that readers need not exclude each other
	return s.print + h.cell(&s.cell)
}
