package raft

import (
	"fmt"
	"io"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Storage keeps a replica's log. One goroutine writes, and others may read meanwhile.
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

// A tail is the part of a log that is in memory: all that Storage reads, and the writing that
// happens there once the disk has it.
type tail struct{ *etcdraft.MemoryStorage }

// newTail returns a log of nothing that goes on after at.
func newTail(at *raftpb.SnapshotMetadata) (tail, error) {
	t := tail{etcdraft.NewMemoryStorage()}
	if at.GetIndex() == 0 {
		return t, nil
	}
	return t, t.ApplySnapshot(&raftpb.Snapshot{Metadata: at})
}

func (t tail) append(state *raftpb.HardState, entries []*raftpb.Entry) error {
	if !etcdraft.IsEmptyHardState(state) {
		if err := t.SetHardState(state); err != nil {
			return err
		}
	}
	return t.MemoryStorage.Append(entries)
}

// How a mark stands to a log.
type markKind int

const (
	markOld     markKind = iota // not beyond the last mark: nothing to do
	markWithin                  // of an entry that is in the log
	markReplace                 // of an entry that is not: the log is of no use any more
)

func (t tail) kindOf(at *raftpb.SnapshotMetadata) (markKind, error) {
	last, err := t.Snapshot()
	if err != nil {
		return markOld, err
	}
	if at.GetIndex() <= last.GetMetadata().GetIndex() {
		return markOld, nil
	}
	if t.has(at.GetIndex(), at.GetTerm()) {
		return markWithin, nil
	}
	return markReplace, nil
}

func (t tail) has(index, term uint64) bool {
	have, err := t.Term(index)
	return err == nil && have == term
}

func (t tail) mark(at *raftpb.SnapshotMetadata) error {
	kind, err := t.kindOf(at)
	if err != nil {
		return err
	}
	switch kind {
	case markWithin:
		_, err = t.CreateSnapshot(at.GetIndex(), at.GetConfState(), nil)
	case markReplace:
		err = t.ApplySnapshot(&raftpb.Snapshot{Metadata: at})
	}
	return err
}

// compact drops the entries up to and with index, if they are still there.
func (t tail) compact(index uint64) error {
	first, last, err := t.bounds()
	if err != nil {
		return err
	}
	if index > last {
		return fmt.Errorf("drop the log up to entry %d: it ends with %d", index, last)
	}
	if index < first {
		return nil
	}
	return t.MemoryStorage.Compact(index)
}

// bounds returns the indexes of the first and the last entry; of an empty log, first is last + 1.
func (t tail) bounds() (first, last uint64, err error) { return bounds(t) }

func bounds(s etcdraft.Storage) (first, last uint64, err error) {
	if first, err = s.FirstIndex(); err != nil {
		return 0, 0, err
	}
	last, err = s.LastIndex()
	return first, last, err
}
