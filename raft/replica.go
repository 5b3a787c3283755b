package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"lockfs/internal/clock"
)

type progress = tracker.Progress

// A Replica is one member of a cell. Its run goroutine owns raft and all that hangs on
// it. Two others work for it: one writes to the storage, one calls the Machine. Besides there is a
// goroutine for each other member, and one for a checkpoint or a snapshot on its way.
type Replica struct {
	cfg     Config
	log     *slog.Logger
	storage Storage

	appender  *appender
	applier   *applier
	members   members
	proposals proposals
	reads     reads
	senders   sync.WaitGroup // of snapshots, and peers that are not needed any more

	inbox      chan received // from the other members
	outcomes   chan outcome  // from the appender and the applier
	calls      chan func()   // whatever else is to be done by the run goroutine
	receptions atomic.Uint64 // how many snapshots began to arrive
	removal    atomic.Uint64 // the last entry that removed a member
	lasting    atomic.Uint64 // the entry of the last durable checkpoint
	reached    atomic.Uint64 // the last entry whose changes of the membership are in force here

	stop    chan struct{} // closed by end
	done    chan struct{} // closed last
	ending  sync.Once
	failure error // why it ended of itself; written before stop is closed

	// Owned by the run goroutine.
	node          *etcdraft.RawNode
	conf          configuration
	ticked        clock.Instant // up to when raft knows that time has passed
	leadership    Leadership    // as told
	committedTerm uint64        // of the last entry that was handed to the applier
	held          []byte        // an entry that raft did not want yet
	appending     int           // writes with entries on their way to the disk
	round         readRound
	incoming      []received        // snapshots that raft may accept
	accepted      []Spool           // of those that it did, which the applier may not get to
	pins          map[uint64]uint64 // by member: the index of the snapshot under way to it
	transfers     []chan error      // who waits for leadership to be handed over
	changing      bool              // a change of the membership is on its way
	changeOver    chan<- error      // who waits for it, nil if nobody does
	changeAfter   uint64            // there can be no other one before this entry is applied
	steady        map[uint64]int    // by learner: for how many ticks it could have been promoted
	diskAt        uint64            // what the disk was at when ticked
	last          uint64            // index of the last entry that raft has, on its way to the disk or there
	diskTicks     int               // for how long it has been at that
}

// Start starts a replica from what its storage and its machine hold. A new one begins with
// cfg.Members. If Start fails, the storage is the caller's to close.
func Start(cfg Config) (*Replica, error) {
	cfg = withDefaults(cfg)
	at, err := prepare(cfg)
	if err != nil {
		return nil, fmt.Errorf("raft: start member %d: %w", cfg.ID, err)
	}
	r := newReplica(cfg, at)
	if err := r.boot(at.index); err != nil {
		return nil, fmt.Errorf("raft: start member %d: %w", cfg.ID, err)
	}
	r.setMembers(at.configuration)
	go r.main()
	return r, nil
}

func newReplica(cfg Config, at position) *Replica {
	r := &Replica{
		cfg: cfg, log: cfg.Logger, storage: cfg.Storage, conf: at.configuration,
		inbox: make(chan received, 1024), outcomes: make(chan outcome, 8), calls: make(chan func()),
		stop: make(chan struct{}), done: make(chan struct{}),
		ticked: cfg.Clock.Now(), pins: make(map[uint64]uint64), steady: make(map[uint64]int),
	}
	r.reached.Store(at.index)
	r.lasting.Store(at.index)
	r.appender = &appender{r: r, queue: newQueue[write](0)}
	r.applier = &applier{r: r, queue: newQueue[func() error](0), at: at, saveDone: make(chan error, 1), saved: noLimit}
	if cfg.Position != nil {
		r.applier.saved = at.index // (the machine was loaded from it)
	}
	r.proposals.wake, r.reads.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	return r
}

// boot makes the RawNode. What raft panics with says what is wrong with the log.
func (r *Replica) boot(applied uint64) (err error) {
	defer catchBrokenInvariant(&err)
	r.last = r.lastIndex()
	r.node, err = etcdraft.NewRawNode(r.raftConfig(applied))
	return err
}

// main runs the replica and closes everything, each thing after those that use it.
func (r *Replica) main() {
	defer close(r.done)
	var workers sync.WaitGroup
	workers.Go(r.appender.run)
	workers.Go(r.applier.run)
	r.end(r.run())
	r.proposals.lead(0)
	r.reads.lead(false)
	answerAll(r.round.waiting, readAnswer{err: ErrStopped})
	for _, waiting := range r.transfers {
		waiting <- ErrStopped
	}
	r.changeConcluded(ErrStopped)
	workers.Wait()
	r.leaveAll()
	r.senders.Wait()
	err := r.applier.settle()
	if r.failure == nil && err == nil {
		err = r.applier.finish()
	}
	r.dropIncoming()
	for _, spool := range r.accepted {
		spool.Close() // most are closed already
	}
	err = errors.Join(err, r.storage.Close())
	if r.failure == nil {
		r.failure = err
	}
}

// end begins the end, for a reason, or for none if it was asked for.
func (r *Replica) end(why error) {
	r.ending.Do(func() {
		if why != nil {
			r.log.Error("the replica stops", "error", why)
		}
		r.failure = why
		close(r.stop)
	})
}

func (r *Replica) stopping() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// Stop ends the replica, after a last checkpoint, and waits for its end.
func (r *Replica) Stop() {
	r.end(nil)
	<-r.done
}

// Done is closed when the replica has ended, by Stop or of itself.
func (r *Replica) Done() <-chan struct{} { return r.done }

// Err tells, after Done, why the replica ended of itself or could not end in order; else nil.
func (r *Replica) Err() error {
	<-r.done
	return r.failure
}

// tell gives the run goroutine an outcome.
func (r *Replica) tell(o outcome) {
	select {
	case r.outcomes <- o:
	case <-r.stop:
	}
}

// call has the run goroutine do something. It reports whether that will happen.
func (r *Replica) call(do func()) bool {
	select {
	case r.calls <- do:
		return true
	case <-r.stop:
		return false
	}
}

// send hands a message to whoever sends it. It never waits.
func (r *Replica) send(m *raftpb.Message) {
	if m.GetType() == raftpb.MsgSnap {
		r.sendSnapshot(m)
	} else if p, ok := r.members.peer(m.GetTo()); ok {
		p.send(m)
	}
}

func (r *Replica) unreachable(id uint64) {
	r.node.ReportUnreachable(id)
	delete(r.pins, id)
}

func (r *Replica) lastIndex() uint64 {
	last, err := r.storage.LastIndex()
	if err != nil {
		return 0
	}
	return last
}

// Propose puts data into the log if this replica leads in term, and does not keep a copy.
// Proposals enter the log in the order of the calls. While the replica leads in term none is
// dropped; those still waiting when it ceases to are discarded, which Machine.Leadership tells.
// Propose never waits: it fails with ErrNotLeader, ErrTooLarge (over 2 MiB) or ErrOverloaded.
func (r *Replica) Propose(term uint64, data []byte) error { return r.proposals.add(term, data) }

// Status returns how things stand. Of a replica that has stopped it knows nothing but who it was.
func (r *Replica) Status() Status {
	answer := make(chan Status, 1)
	if r.call(func() { answer <- r.status() }) {
		select {
		case s := <-answer:
			return s
		case <-r.done:
		}
	}
	return Status{ID: r.cfg.ID}
}

func (r *Replica) status() Status {
	basic := r.node.BasicStatus()
	s := Status{
		ID: r.cfg.ID, Term: basic.GetTerm(), Leader: basic.Lead, Role: roles[basic.RaftState],
		Committed: basic.GetCommit(), Applied: basic.Applied,
	}
	match := make(map[uint64]uint64)
	if basic.RaftState == etcdraft.StateLeader {
		r.node.WithProgress(func(id uint64, _ etcdraft.ProgressType, p progress) { match[id] = p.Match })
	}
	for _, m := range r.Members() {
		s.Members = append(s.Members, MemberStatus{
			Member: m, Match: match[m.ID], Active: r.active(m.ID),
			Learner: r.conf.isLearner(m.ID),
		})
	}
	return s
}

var roles = map[etcdraft.StateType]string{
	etcdraft.StateLeader: "leader", etcdraft.StateFollower: "follower",
	etcdraft.StateCandidate: "candidate", etcdraft.StatePreCandidate: "pre-candidate",
}

func (r *Replica) active(id uint64) bool {
	p, ok := r.members.peer(id)
	switch {
	case !ok:
		return id == r.cfg.ID
	case r.leadership.Leading:
		return p.answers()
	}
	return p.active()
}

// TransferLeadership hands leadership to the most advanced live voter that is not to be avoided,
// and waits until it is lost. If that voter does not take over within an election timeout,
// leadership stays here.
func (r *Replica) TransferLeadership(ctx context.Context, avoid ...uint64) error {
	over := make(chan error, 1)
	return r.await(ctx, over, func() { r.transfer(over, avoid) })
}

func (r *Replica) transfer(over chan error, avoid []uint64) {
	if !r.leadership.Leading {
		over <- ErrNotLeader
		return
	}
	to := r.successor(avoid)
	if to == 0 {
		over <- errors.New("raft: hand over leadership: no other voter is alive that could lead")
		return
	}
	r.node.TransferLeader(to)
	r.transfers = append(r.transfers, over)
}

// successor returns who is best to lead next, 0 if nobody can: the most advanced of those alive.
// Whoever is about to be replaced would not lead for long and is taken only if there is no other.
func (r *Replica) successor(avoid []uint64) (id uint64) {
	avoid = append(slices.Clone(avoid), r.cfg.ID)
	leaving := make(map[uint64]bool)
	for _, m := range r.conf.members {
		leaving[m.Replaces] = true
	}
	var match uint64
	r.node.WithProgress(func(voter uint64, kind etcdraft.ProgressType, p progress) {
		if kind != etcdraft.ProgressTypePeer || !r.active(voter) || slices.Contains(avoid, voter) {
			return
		}
		if better := leaving[id] && !leaving[voter]; id == 0 || better || p.Match >= match && leaving[id] == leaving[voter] {
			id, match = voter, p.Match
		}
	})
	return id
}

// watchTransfers answers those who wait for leadership to be handed over, once it is or is not.
func (r *Replica) watchTransfers() {
	if len(r.transfers) == 0 {
		return
	}
	var result error
	if r.leadership.Leading {
		if r.node.BasicStatus().LeadTransferee != 0 {
			return
		}
		result = errors.New("raft: hand over leadership: the other did not take it in time")
	}
	for _, over := range r.transfers {
		over <- result
	}
	r.transfers = nil
}
