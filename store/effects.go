package store

import (
	"cmp"
	"slices"
	"time"

	"lockfs"
)

// Effects are what a proposal did, for the master to act on: whom to tell, which waiters to look
// at, which deadlines to set. Every list is sorted and holds nothing twice.
type Effects struct {
	Changed []lockfs.Path // nodes made, written, deleted, or given other ACL names or another permanence; directories that gained or lost a name
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
// which the master counts, grants that conflict with Mode wait.
type Delay struct {
	Path      lockfs.Path
	Mode      lockfs.Mode
	LockDelay time.Duration
	Index     uint64 // of the log entry that set the mark last
}

// extent is how far the lists of an Effects went, to return to when a command fails.
type extent [7]int

func (e *Effects) extent() extent {
	return extent{len(e.Changed), len(e.Locks), len(e.Deleted), len(e.Lost), len(e.Ended), len(e.Delays), len(e.Orphans)}
}

func (e *Effects) cut(to extent) {
	e.Changed, e.Locks, e.Deleted = e.Changed[:to[0]], e.Locks[:to[1]], e.Deleted[:to[2]]
	e.Lost, e.Ended, e.Delays, e.Orphans = e.Lost[:to[3]], e.Ended[:to[4]], e.Delays[:to[5]], e.Orphans[:to[6]]
}

// node notes what became of a node; either of old and next may be nil.
func (e *Effects) node(old, next *node) {
	switch {
	case old == nil:
		e.Changed = append(e.Changed, next.path)
		return
	case next == nil:
		e.Changed = append(e.Changed, old.path)
		e.Deleted = append(e.Deleted, old.id())
		for _, h := range old.holders {
			e.Lost = append(e.Lost, Loss{old.id(), h.session, h.owner})
		}
		return
	}
	if next.contentGeneration != old.contentGeneration || next.aclGeneration != old.aclGeneration ||
		next.ownerSession != old.ownerSession {
		e.Changed = append(e.Changed, next.path)
	}
	if next.lockGeneration != old.lockGeneration || !slices.Equal(next.holders, old.holders) {
		e.Locks = append(e.Locks, next.path)
	}
}

// tidy sorts the lists and drops what is in them twice.
func (e *Effects) tidy() {
	slices.Sort(e.Changed)
	slices.Sort(e.Locks)
	slices.SortFunc(e.Deleted, NodeID.compare)
	slices.SortFunc(e.Lost, Loss.compare)
	slices.Sort(e.Ended)
	// Of two settings of one mark the later is right, so the sort is stable and keeps the last.
	slices.SortStableFunc(e.Delays, Delay.compare)
	slices.SortFunc(e.Orphans, NodeID.compare)

	e.Changed, e.Locks = slices.Compact(e.Changed), slices.Compact(e.Locks)
	e.Orphans = slices.Compact(e.Orphans)
	e.Delays = lastOfEach(e.Delays)
}

func lastOfEach(delays []Delay) []Delay {
	kept := delays[:0]
	for i, d := range delays {
		if i+1 == len(delays) || d.compare(delays[i+1]) != 0 {
			kept = append(kept, d)
		}
	}
	return kept
}

func (a NodeID) compare(b NodeID) int {
	return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Instance, b.Instance))
}

func (a Loss) compare(b Loss) int {
	return cmp.Or(a.Node.compare(b.Node), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Owner, b.Owner))
}

func (a Delay) compare(b Delay) int {
	return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Mode, b.Mode))
}
