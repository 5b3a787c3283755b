// Package lockfs holds the nouns that every room of lockfs speaks: paths, lock modes, what is
// known of a node, the limits of a cell and the kinds of error. It imports nothing else of the
// project, and whatever stands here has one meaning in the store, on the wire and on a mount.
package lockfs

import "time"

// Mode is the mode of a lock. (Permission bits are called perm.)
type Mode uint8

// The numbers cross the wire and stand in the log; they are never changed.
const (
	Free      Mode = 0
	Shared    Mode = 1
	Exclusive Mode = 2
)

// String returns the mode as a sequencer spells it.
func (m Mode) String() string {
	switch m {
	case Free:
		return "FREE"
	case Shared:
		return "SHARED"
	case Exclusive:
		return "EXCLUSIVE"
	}
	return "INVALID"
}

// Conflicts reports whether two different owners may not hold a and b at the same time.
func (m Mode) Conflicts(other Mode) bool {
	return m != Free && other != Free && (m == Exclusive || other == Exclusive)
}

// Type tells files from directories.
type Type uint8

// The numbers cross the wire and stand in the log; they are never changed.
const (
	File Type = 1
	Dir  Type = 2
)

// ACLNames are the paths of the ACL files that decide who may read, write and change the ACL
// names of a node. A node made without names of its own takes its parent's.
type ACLNames struct {
	Read, Write, ChangeACL string
}

// Stat is what is known of a node without its contents and without its lock.
type Stat struct {
	Path      Path
	Type      Type
	Ephemeral bool
	// OwnerSession is the session whose end deletes an ephemeral node, else 0.
	OwnerSession uint64

	// Instance tells a node from every other node of the cell that ever was. Drawn from one
	// counter, it is also the inode number.
	Instance uint64
	// ContentGeneration grows with every write, LockGeneration with every change from free to
	// held and of mode, ACLGeneration with every change of the ACL names. None ever goes back
	// for a path, whatever is deleted and made again.
	ContentGeneration uint64
	LockGeneration    uint64
	ACLGeneration     uint64

	Checksum uint64 // xxhash64 of the contents
	Size     int64  // bytes of a file; of a directory the number of its children
	ACL      ACLNames
	Mtime    time.Time // the master's clock at the last write; never goes back
}

// Entry is a name in a directory listing.
type Entry struct {
	Name     string
	Type     Type
	Instance uint64
}

// Limits bound what a cell stores. They are replicated; whatever would pass one is refused whole,
// never cut.
type Limits struct {
	FileBytes int64 // the contents of one file
	Nodes     int64 // nodes of the cell, the root included
	Bytes     int64 // the contents of all files together
	Children  int64 // names in one directory
}

// DefaultLimits are what a new cell starts with.
var DefaultLimits = Limits{
	FileBytes: 256 << 10,
	Nodes:     1_000_000,
	Bytes:     1 << 30,
	Children:  100_000,
}

// Bounds of what a caller may choose.
const (
	DefaultLease     = 12 * time.Second
	DefaultGrace     = 45 * time.Second
	DefaultLockDelay = 30 * time.Second
	MaxLockDelay     = 60 * time.Second
)
