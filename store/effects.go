package store

import (
	"time"

	"lockfs"
)

// Effects are what a proposal did, for the master to act on: which waiters to look at, whom to
// tell, which deadlines to set. Every list is sorted and holds nothing twice.
type Effects struct {
	Changed []lockfs.Path // nodes made, written, deleted, or given other ACL names; and directories that gained or lost a name
	Locks   []lockfs.Path // nodes whose lock changed, or whose delay was cleared: waiters may get in
	Deleted []NodeID      // nodes gone: who waits for their lock gets ErrStale
	Lost    []Loss        // locks that ended against their holder's will: delete, rename away, expiry
	Ended   []uint64      // sessions
	Delays  []Delay       // marks set by this proposal
	Orphans []NodeID      // ephemeral nodes of ended sessions that can be deleted now (directories only when empty)
}

// NodeID names one node for good: a path may be used again, an instance never is.
type NodeID struct {
	Path     lockfs.Path
	Instance uint64
}

// Loss is a lock that an owner held and holds no more.
type Loss struct {
	Node           NodeID
	Session, Owner uint64
}

// Delay says that a lock of this name, held in Mode, ended by expiry: until LockDelay has passed,
// counted by the master, grants that conflict with Mode wait.
type Delay struct {
	Path      lockfs.Path
	Mode      lockfs.Mode
	LockDelay time.Duration
	Index     uint64 // of the log entry that set the mark last
}
