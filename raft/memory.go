package raft

import (
	"bytes"
	"errors"
	"math"
	"sync"
	"time"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// A MemoryDisk is a disk for tests on which one log lives. It outlives the replicas that use it,
// and it can crash: then it forgets what no Append had made durable when it was to return.
type MemoryDisk struct {
	// SyncTime is how long it takes to make an Append or a Mark durable. A crash meanwhile loses
	// it. Set it before Open.
	SyncTime time.Duration

	mu struct {
		sync.Mutex
		durable tail
		opened  uint64        // how often the disk was opened or crashed: only the last opening is good
		hung    chan struct{} // closed when the disk works again; nil while it works
	}
}

var errMemoryDisk = errors.New("the disk has crashed or was opened anew")

// NewMemoryDisk returns an empty disk.
func NewMemoryDisk() *MemoryDisk {
	d := new(MemoryDisk)
	d.mu.durable = tail{etcdraft.NewMemoryStorage()}
	return d
}

// Open returns the log as it is on the disk. What was opened before fails from now on.
func (d *MemoryDisk) Open() Storage {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.opened++
	live, err := d.mu.durable.clone()
	if err != nil {
		panic("raft: copying a log in memory: " + err.Error()) // there is nothing in it that can fail
	}
	state, _, err := live.InitialState()
	if err != nil {
		panic("raft: copying a log in memory: " + err.Error())
	}
	return &memoryLog{tail: live, disk: d, opened: d.mu.opened, state: state}
}

// Crash fails all that is open. A replica that uses it stops.
func (d *MemoryDisk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.opened++
	d.resumeLocked()
}

// Hang makes every write wait until Resume or Crash.
func (d *MemoryDisk) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.hung == nil {
		d.mu.hung = make(chan struct{})
	}
}

// Resume ends Hang.
func (d *MemoryDisk) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resumeLocked()
}

func (d *MemoryDisk) resumeLocked() {
	if d.mu.hung != nil {
		close(d.mu.hung)
		d.mu.hung = nil
	}
}

// wait takes as long as a disk takes.
func (d *MemoryDisk) wait() {
	time.Sleep(d.SyncTime)
	d.mu.Lock()
	hung := d.mu.hung
	d.mu.Unlock()
	if hung != nil {
		<-hung
	}
}

// A memoryLog is one opening of a MemoryDisk.
type memoryLog struct {
	tail
	disk   *MemoryDisk
	opened uint64
	state  *raftpb.HardState // the last given to Append
	lazy   bool              // it did not have to become durable yet
}

// write waits as long as a disk takes, and then does the same to the disk and to the memory.
func (l *memoryLog) write(what func(tail) error) error {
	l.disk.wait()
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	if l.disk.mu.opened != l.opened {
		return errMemoryDisk
	}
	if err := what(l.disk.mu.durable); err != nil {
		return err
	}
	return what(l.tail)
}

func (l *memoryLog) Append(state *raftpb.HardState, entries []*raftpb.Entry) error {
	if etcdraft.IsEmptyHardState(state) {
		state = l.state
	}
	l.lazy = !etcdraft.MustSync(state, l.state, len(entries))
	l.state = state
	if l.lazy {
		return l.SetHardState(state)
	}
	return l.write(func(t tail) error { return t.append(state, entries) })
}

func (l *memoryLog) Mark(at *raftpb.SnapshotMetadata) error {
	return l.write(func(t tail) error { return t.mark(at) })
}

func (l *memoryLog) Compact(index uint64) error {
	return l.write(func(t tail) error { return t.compact(index) })
}

func (l *memoryLog) Spool() (Spool, error) { return memorySpool{new(bytes.Buffer)}, nil }

func (l *memoryLog) Close() error {
	if !l.lazy {
		return nil
	}
	return l.write(func(t tail) error { return t.append(l.state, nil) })
}

// clone returns a copy of t. Entries are never changed, so they are shared.
func (t tail) clone() (tail, error) {
	state, _, err := t.InitialState()
	if err != nil {
		return tail{}, err
	}
	mark, err := t.Snapshot()
	if err != nil {
		return tail{}, err
	}
	first, last, err := t.bounds()
	if err != nil {
		return tail{}, err
	}
	before, err := t.Term(first - 1)
	if err != nil {
		return tail{}, err
	}
	start := &raftpb.SnapshotMetadata{Index: new(first - 1), Term: new(before)}
	if first-1 == mark.GetMetadata().GetIndex() {
		start = mark.GetMetadata()
	}
	c, err := newTail(start)
	if err != nil {
		return tail{}, err
	}
	var entries []*raftpb.Entry
	if first <= last {
		if entries, err = t.Entries(first, last+1, math.MaxUint64); err != nil {
			return tail{}, err
		}
	}
	if err := c.append(state, entries); err != nil {
		return tail{}, err
	}
	return c, c.mark(mark.GetMetadata())
}

type memorySpool struct{ *bytes.Buffer }

func (s memorySpool) Close() error {
	*s.Buffer = bytes.Buffer{}
	return nil
}
