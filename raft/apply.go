package raft

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// An applier feeds the machine. Its goroutine alone calls it, and does what the run goroutine puts
// into its queue in that order: entries, changes of leadership, snapshots to open and to restore.
type applier struct {
	r     *Replica
	queue *queue[func() error]

	// Owned by the apply goroutine.
	at       position // what the machine's state is
	entries  uint64   // applied since the last checkpoint was begun
	bytes    uint64
	saving   bool
	saveDone chan error   // of the checkpoint under way, of capacity one
	savers   []chan error // who waits for it
	askers   []chan error // who waits for one that was not begun yet
	savingAt uint64       // the entry that it is at
	saved    uint64       // the entry of the last checkpoint that is durable; noLimit: there is none
}

func (a *applier) run() {
	for {
		work := a.queue.take(a.r.stop)
		if len(work) == 0 {
			return
		}
		for _, do := range work {
			if a.r.stopping() {
				return // what is left is in the log
			}
			if err := do(); err != nil {
				a.r.end(err)
				return
			}
		}
	}
}

// A committed is entries to be applied, and how the cell's configuration is after each change of
// it among them.
type committed struct {
	entries   []*raftpb.Entry
	changes   map[uint64]configuration // by the index of the entry
	responses []*raftpb.Message
}

func (a *applier) apply(c committed) error {
	for _, entry := range c.entries {
		if err := a.applyEntry(entry); err != nil {
			return fmt.Errorf("apply entry %d: %w", entry.GetIndex(), err)
		}
		a.at.index, a.at.term = entry.GetIndex(), entry.GetTerm()
		if change, ok := c.changes[entry.GetIndex()]; ok {
			a.at.configuration = change
		}
		a.entries++
		a.bytes += uint64(len(entry.GetData()))
	}
	a.r.tell(outcome{responses: c.responses})
	if a.entries >= a.r.cfg.CheckpointEntries || a.bytes >= a.r.cfg.CheckpointBytes {
		return a.checkpoint()
	}
	return nil
}

// applyEntry gives the machine what an entry carries. A new leader's first entry and the changes
// of the configuration carry nothing, but ReadIndex may name them.
func (a *applier) applyEntry(entry *raftpb.Entry) error {
	data := new(raftrpc.EntryData)
	if entry.GetType() == raftpb.EntryNormal {
		if err := proto.Unmarshal(entry.GetData(), data); err != nil {
			return err
		}
	}
	return a.r.cfg.Machine.Apply(entry.GetIndex(), data.GetProposals())
}

// checkpoint begins a checkpoint, unless one is under way: then its end or the next entry tries
// again.
func (a *applier) checkpoint() error {
	if a.saving {
		select {
		case err := <-a.saveDone:
			if err := a.ended(err); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	save, mark, err := a.take()
	if err != nil {
		return err
	}
	a.saving = true
	a.savers, a.askers = a.askers, nil
	go func() {
		err := save()
		if err == nil {
			a.r.call(func() { a.r.checkpointed(mark) })
		}
		a.saveDone <- err
		a.queue.put(a.satisfy)
	}()
	return nil
}

// ended is told how the checkpoint under way came out.
func (a *applier) ended(err error) error {
	a.saving = false
	if err == nil {
		a.saved = a.savingAt
	}
	for _, over := range a.savers {
		over <- err
	}
	a.savers = nil
	return err
}

// satisfy begins the checkpoint that somebody asked for, once that can be.
func (a *applier) satisfy() error {
	switch {
	case a.saving && len(a.saveDone) == 0:
		return nil
	case a.saving:
		if err := a.ended(<-a.saveDone); err != nil {
			return err
		}
	}
	if len(a.askers) == 0 {
		return nil
	}
	if a.saved != a.at.index {
		return a.checkpoint()
	}
	for _, over := range a.askers {
		over <- nil
	}
	a.askers = nil
	return nil
}

// Checkpoint returns when everything that is applied now is in a durable checkpoint.
func (r *Replica) Checkpoint(ctx context.Context) error {
	over := make(chan error, 1)
	r.askCheckpoint(over)
	select {
	case err := <-over:
		return err
	case <-r.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// askCheckpoint tells over, which has room for it, when there is a checkpoint of all that the
// applier has been given up to now.
func (r *Replica) askCheckpoint(over chan error) {
	r.applier.queue.put(func() error {
		r.applier.askers = append(r.applier.askers, over)
		return r.applier.satisfy()
	})
}

// take has the machine take hold of its state for a checkpoint.
func (a *applier) take() (save func() error, mark *raftpb.SnapshotMetadata, err error) {
	encoded, err := a.at.marshal()
	if err != nil {
		return nil, nil, err
	}
	a.entries, a.bytes, a.savingAt = 0, 0, a.at.index
	take := a.r.cfg.Machine.Checkpoint(encoded)
	save = func() error {
		if err := take(); err != nil {
			return fmt.Errorf("save the checkpoint at entry %d: %w", mark.GetIndex(), err)
		}
		return nil
	}
	mark = a.at.metadata()
	return save, mark, nil
}

// settle waits for the checkpoint under way, if one is.
func (a *applier) settle() error {
	if !a.saving {
		return nil
	}
	return a.ended(<-a.saveDone)
}

// finish makes a last checkpoint of a replica that ends in order, so that the next start has
// little to replay, and marks it in the log.
func (a *applier) finish() error {
	if a.entries == 0 {
		return nil
	}
	save, mark, err := a.take()
	if err != nil {
		return err
	}
	if err := save(); err != nil {
		return err
	}
	return a.r.storage.Mark(mark)
}

// restore makes the machine's state that of a snapshot which raft has accepted.
func (a *applier) restore(s received, done chan<- struct{}) error {
	defer s.spool.Close()
	meta := s.message.GetSnapshot().GetMetadata()
	// A checkpoint of the state of before must not be saved over it.
	if err := a.settle(); err != nil {
		return err
	}
	encoded, applied, err := a.r.cfg.Machine.Restore(s.spool)
	if err != nil {
		return fmt.Errorf("restore the snapshot at entry %d: %w", meta.GetIndex(), err)
	}
	at, err := parsePosition(encoded)
	if err != nil {
		return err
	}
	if at.index != meta.GetIndex() || at.term != meta.GetTerm() || applied > at.index {
		return fmt.Errorf("restore the snapshot at entry %d of term %d: its state is at entry %d of term %d, applied up to %d",
			meta.GetIndex(), meta.GetTerm(), at.index, at.term, applied)
	}
	a.at, a.entries, a.bytes, a.saved = at, 0, 0, at.index
	a.r.lasting.Store(at.index)
	a.r.log.Info("restored a snapshot from the leader", "entry", at.index, "leader", s.message.GetFrom())
	close(done)
	return nil
}

// errNoCheckpoint is why no snapshot can be sent; raft asks again.
var errNoCheckpoint = errors.New("the checkpoint is not where the log says")

// openSnapshot opens the last checkpoint for a peer. It may be newer than raft knew
// when it asked for it in m, and is sent as what it is.
func (a *applier) openSnapshot(m *raftpb.Message) (outgoing, error) {
	snapshot, err := a.r.cfg.Machine.Snapshot()
	if err != nil {
		return outgoing{}, err
	}
	at, err := parsePosition(snapshot.Position())
	if err == nil && (at.index < m.GetSnapshot().GetMetadata().GetIndex() || at.term > m.GetTerm()) {
		err = errNoCheckpoint
	}
	if _, known := at.members[m.GetTo()]; err == nil && !known {
		err = errors.Join(errors.New("the checkpoint is older than the member, and another one is made"), a.checkpoint())
	}
	if err != nil {
		return outgoing{}, errors.Join(err, snapshot.Close())
	}
	m = proto.CloneOf(m)
	m.Snapshot = &raftpb.Snapshot{Metadata: at.metadata(), Data: snapshot.Position()}
	return outgoing{message: m, state: snapshot}, nil
}
