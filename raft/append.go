package raft

import (
	"sync/atomic"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A write is work for the append goroutine, which alone writes to the storage.
type write struct {
	// A MsgStorageAppend: what must be durable before its responses are let go, or nil.
	message *raftpb.Message
	// If it brings a snapshot: closed when the machine has made that its state.
	restored <-chan struct{}
	// Or a checkpoint that is durable, and the index that must stay in the log with all after it.
	mark *raftpb.SnapshotMetadata
	keep uint64
}

// An outcome goes back to the run goroutine: messages to be delivered now that what they speak of
// is done, some of them to this replica's own raft.
type outcome struct {
	responses []*raftpb.Message
	appends   int // how many writes with entries this was
}

// An appender makes durable what the run goroutine puts into its queue, in that order. All that
// waits is made durable at once.
type appender struct {
	r     *Replica
	queue *queue[write]
	// Odd while the disk is at work, and another odd number each time.
	disk atomic.Uint64
}

func (a *appender) run() {
	for !a.r.stopping() {
		work := a.queue.take(a.r.stop)
		if err := a.do(work); err != nil {
			a.r.end(err)
			return
		}
	}
}

// do does the work, ordinary appends in a row together.
func (a *appender) do(work []write) error {
	var together batch
	for _, w := range work {
		if w.message != nil && w.restored == nil {
			together.add(w.message)
			continue
		}
		if err := a.flush(&together); err != nil {
			return err
		}
		if err := a.special(w); err != nil || a.r.stopping() {
			return err // entries behind a snapshot that was not restored must not get into the log
		}
	}
	return a.flush(&together)
}

func (a *appender) flush(b *batch) error {
	if len(b.entries) > 0 || !etcdraft.IsEmptyHardState(b.state) {
		a.disk.Add(1)
		if err := a.r.storage.Append(b.state, b.entries); err != nil {
			return err
		}
		a.disk.Add(1)
	}
	if len(b.responses) > 0 {
		a.r.tell(outcome{b.responses, b.appends})
	}
	*b = batch{}
	return nil
}

// special handles what is not an ordinary append.
func (a *appender) special(w write) error {
	if w.mark != nil {
		return a.mark(w.mark, w.keep)
	}
	select {
	case <-w.restored:
	case <-a.r.stop:
		return nil
	}
	// The mark comes after the state is durable, so that the log never begins after what the
	// machine has. If the process dies here, Start finds a machine that is ahead of its log.
	if err := a.r.storage.Mark(w.message.GetSnapshot().GetMetadata()); err != nil {
		return err
	}
	var alone batch
	alone.add(w.message)
	return a.flush(&alone)
}

// mark marks a checkpoint and drops what nobody needs of the log before it.
func (a *appender) mark(at *raftpb.SnapshotMetadata, keep uint64) error {
	if err := a.r.storage.Mark(at); err != nil {
		return err
	}
	first, err := tailStart(a.r.storage, at.GetIndex(), a.r.cfg.TailEntries, a.r.cfg.TailBytes)
	if err != nil {
		return err
	}
	return a.r.storage.Compact(min(first, keep) - 1)
}

// tailStart returns where the tail of the log begins that ends with entry last and has at most so
// many entries and bytes.
func tailStart(s Storage, last, entriesMax, bytesMax uint64) (uint64, error) {
	first, end, err := bounds(s)
	if err != nil || last < first || last > end {
		return first, err
	}
	entries, err := s.Entries(first, last+1, noLimit)
	if err != nil {
		return 0, err
	}
	start, bytes := last+1, uint64(0)
	for i := len(entries) - 1; i >= 0 && last+1-start < entriesMax; i-- {
		if bytes += uint64(proto.Size(entries[i])); bytes > bytesMax {
			break
		}
		start--
	}
	return start, nil
}

// A batch is several MsgStorageAppend made one.
type batch struct {
	state     *raftpb.HardState
	entries   []*raftpb.Entry
	responses []*raftpb.Message
	appends   int // of those, how many had entries
}

func (b *batch) add(m *raftpb.Message) {
	b.responses = append(b.responses, m.GetResponses()...)
	if s := (&raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}); !etcdraft.IsEmptyHardState(s) {
		b.state = s
	}
	if len(m.GetEntries()) == 0 {
		return
	}
	b.appends++
	// Entries replace those of the same and of higher indexes. The slices are raft's own:
	// the third index makes append copy.
	keep := 0
	for keep < len(b.entries) && b.entries[keep].GetIndex() < m.GetEntries()[0].GetIndex() {
		keep++
	}
	b.entries = append(b.entries[:keep:keep], m.GetEntries()...)
}
