package raft

import (
	"io"
	"log/slog"
	"time"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Storage keeps a replica's log. Reading may go on while one goroutine writes.
//
// There are two: OpenWAL on a disk, and MemoryDisk for tests. An error of Append, Mark or Compact
// means that nobody knows what is on the disk: the replica stops, and only opening it anew tells.
type Storage interface {
	// Reading. Snapshot returns no state, only what was last marked.
	etcdraft.Storage
	// Append writes entries, which replace all of the same and of higher indexes, and the hard
	// state if it is not empty. They are durable when it returns; a hard state that differs only
	// in its commit index may become so later.
	Append(state *raftpb.HardState, entries []*raftpb.Entry) error
	// Mark notes that the machine's state up to an index is durable. If the log does not have that
	// very entry, the log is dropped and goes on after it. Marks older than the last are ignored.
	Mark(at *raftpb.SnapshotMetadata) error
	// Compact drops the entries up to and with index, which is not beyond the last mark.
	Compact(index uint64) error
	// Spool returns a place for a snapshot that is being received.
	Spool() (Spool, error)
	Close() error
}

// A Spool is read from its beginning, after all was written. Its contents go with Close, or with
// the process.
type Spool interface {
	io.Writer
	io.Reader
	io.Closer
}

// OpenWAL opens the log in the folder dir, or makes one there. A log of another cluster or
// member is refused.
func OpenWAL(dir string, clusterID, id uint64, logger *slog.Logger) (Storage, error) {
	return nil, nil
}

// A MemoryDisk is a disk for tests, on which one log lives. It can crash.
type MemoryDisk struct {
	SyncTime time.Duration // how long it takes to make an Append durable; set before Open
}

// NewMemoryDisk returns an empty disk.
func NewMemoryDisk() *MemoryDisk { return &MemoryDisk{} }

// Open returns the log as it is durable. What was opened before fails from now on.
func (d *MemoryDisk) Open() Storage { return nil }

// Crash forgets what is not durable, and fails all that is open.
func (d *MemoryDisk) Crash() {}
