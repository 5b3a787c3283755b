package raft

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Times in ticks, and limits.
const (
	heartbeatTicks = 2
	electionTicks  = 10
	ticksAtOnce    = 2 // made good after a time in which this process did not run

	noLimit = math.MaxUint64
	// pipeline is how many appends may be on their way to the disk before new proposals wait to be
	// made one entry.
	pipeline = 2
	// stepsAtOnce is how many messages are taken in before it is seen what follows from them.
	stepsAtOnce = 64
	// incomingMax is how many snapshots may have arrived that raft did not decide about.
	incomingMax = 4
)

// A startingStorage begins with the configuration at which the machine stands, which may be an
// older one than that of the last mark: it can have lost its state and got another one.
type startingStorage struct {
	Storage
	conf *raftpb.ConfState
}

func (s startingStorage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	state, _, err := s.Storage.InitialState()
	return state, s.conf, err
}

func (r *Replica) raftConfig(applied uint64) *etcdraft.Config {
	return &etcdraft.Config{
		ID:                        r.cfg.ID,
		ElectionTick:              electionTicks,
		HeartbeatTick:             heartbeatTicks,
		Storage:                   startingStorage{r.storage, r.conf.confState()},
		Applied:                   applied,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  8 << 20,
		MaxUncommittedEntriesSize: 64 << 20,
		MaxInflightMsgs:           256,
		MaxInflightBytes:          32 << 20,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            etcdraft.ReadOnlySafe,
		Logger:                    etcdLogger{r.log},
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	}
}

// run owns raft. It never waits for a disk, the network or the Machine. It returns why the replica
// is to end, or nil when that has begun already.
func (r *Replica) run() (err error) {
	defer catchBrokenInvariant(&err)
	timer := r.cfg.Clock.NewTimer(r.cfg.Tick)
	defer timer.Stop()
	for {
		if err := r.settle(); err != nil {
			return err
		}
		select {
		case <-r.stop:
			return nil
		case <-timer.C():
			r.ticks()
			timer.Reset(r.cfg.Tick)
		case m := <-r.inbox:
			r.steps(m)
		case o := <-r.outcomes:
			r.conclude(o)
		case do := <-r.calls:
			do()
		case <-r.proposals.wake:
		case <-r.reads.wake:
		}
	}
}

// ticks tells raft that time has passed. Of a time in which this process was frozen it is told
// little: first it is to hear what the others said meanwhile.
func (r *Replica) ticks() {
	now := r.cfg.Clock.Now()
	due := int(now.Sub(r.ticked) / r.cfg.Tick)
	if due > ticksAtOnce {
		due, r.ticked = ticksAtOnce, now
	} else {
		r.ticked = r.ticked.Add(time.Duration(due) * r.cfg.Tick)
	}
	for range due {
		r.node.Tick()
		r.watchDisk()
	}
	r.tend()
	r.watchLeader()
	if r.leadership.Leader == 0 && r.alone() {
		// Nobody else can be elected. An error would say that it is under way.
		_ = r.node.Campaign()
	}
}

func (r *Replica) alone() bool {
	return len(r.conf.conf.GetVoters()) == 1 && r.conf.isVoter(r.cfg.ID)
}

// watchLeader has connections made anew when no leader speaks on them for long. A voter would ask
// for votes, but a learner says nothing of itself, and who was removed while it was not heard is
// told so only when it greets.
func (r *Replica) watchLeader() {
	if r.leadership.Leading || r.active(r.leadership.Leader) {
		return
	}
	for id := range r.conf.members {
		if p, ok := r.members.peer(id); ok {
			p.noticeSilence()
		}
	}
}

// watchDisk counts for how many ticks the disk has been busy with one write.
func (r *Replica) watchDisk() {
	at := r.appender.disk.Load()
	if at%2 == 1 && at == r.diskAt {
		r.diskTicks++
	} else {
		r.diskAt, r.diskTicks = at, 0
	}
}

// stalled reports whether the disk hangs. A leader with such a disk could go on for ever, with the
// others keeping its log, but its Machine would stand still. So it falls silent, and the others
// elect one of them.
func (r *Replica) stalled() bool {
	return r.diskTicks >= electionTicks && r.appender.disk.Load() == r.diskAt
}

// steps takes m in, and what waits behind it.
func (r *Replica) steps(m received) {
	r.step(m)
	for range stepsAtOnce {
		select {
		case m := <-r.inbox:
			r.step(m)
		default:
			return
		}
	}
}

func (r *Replica) step(m received) {
	if m.spool != nil {
		if len(r.incoming) >= incomingMax {
			m.spool.Close()
			return
		}
		r.incoming = append(r.incoming, m)
	}
	if r.lostLog(m.message) || r.outgrown(m.message) {
		return
	}
	r.noteAnswer(m.message)
	// What fails is of no consequence: a message of a member who was removed, or in vain.
	_ = r.node.Step(m.message)
}

// lostLog notices a leader that counts on entries which this replica had and has no more.
func (r *Replica) lostLog(m *raftpb.Message) bool {
	if m.GetType() != raftpb.MsgHeartbeat || m.GetTerm() < r.leadership.Term {
		return false
	}
	last := r.lastIndex()
	if m.GetCommit() <= last {
		return false
	}
	r.end(fmt.Errorf("raft: this member had the log up to entry %d, says leader %d, and now it ends with %d: %w",
		m.GetCommit(), m.GetFrom(), last, ErrReplaced))
	return true
}

// outgrown notices a member that has acknowledged more than this leader has. It was elected by a
// majority that had lost what they had acknowledged before, and raft would not survive to say so.
func (r *Replica) outgrown(m *raftpb.Message) bool {
	if m.GetType() != raftpb.MsgAppResp || m.GetReject() || !r.leadership.Leading || m.GetTerm() != r.leadership.Term || m.GetIndex() <= r.last {
		return false
	}
	r.end(fmt.Errorf("raft: member %d has entry %d of the log, and that of this leader ends with %d: "+
		"the disks of too many members were lost or set back, and what had been acknowledged with them", m.GetFrom(), m.GetIndex(), r.last))
	return true
}

// noteAnswer remembers who hears this leader.
func (r *Replica) noteAnswer(m *raftpb.Message) {
	answer := m.GetType() == raftpb.MsgAppResp || m.GetType() == raftpb.MsgHeartbeatResp
	if p, ok := r.members.peer(m.GetFrom()); ok && answer && r.leadership.Leading && m.GetTerm() == r.leadership.Term {
		p.answered.Store(int64(r.cfg.Clock.Now()))
	}
}

// conclude delivers the messages that waited for a write or for entries to be applied.
func (r *Replica) conclude(o outcome) {
	r.appending -= o.appends
	for _, m := range o.responses {
		if m.GetTo() == r.cfg.ID {
			_ = r.node.Step(m) // an error says that it is of the past
		} else {
			r.send(m)
		}
	}
}

// settle does all that can be done now.
func (r *Replica) settle() error {
	for {
		r.noticeLeadership()
		r.watchTransfers()
		if err := r.submit(); err != nil {
			return err
		}
		r.beginRead()
		if r.stalled() || !r.node.HasReady() {
			return nil
		}
		if err := r.process(r.node.Ready()); err != nil {
			return err
		}
	}
}

// noticeLeadership tells everybody when the leader or the term has changed.
func (r *Replica) noticeLeadership() {
	s := r.node.BasicStatus()
	now := Leadership{Term: s.GetTerm(), Leader: s.Lead, Leading: s.RaftState == etcdraft.StateLeader}
	if now == r.leadership {
		return
	}
	if now.Leader != r.leadership.Leader {
		news := []any{"term", now.Term}
		if leader, known := r.Member(now.Leader); known { // no name: there is none
			news = append(news, "leader", leader.Name)
		}
		r.log.Info("the leader changed", news...)
	}
	r.leadership = now
	r.held = nil
	clear(r.pins)
	clear(r.steady)
	if r.changing {
		r.changeConcluded(ErrNotLeader)
	}
	var leads uint64
	if now.Leading {
		leads = now.Term
	}
	r.proposals.lead(leads)
	r.reads.lead(now.Leading)
	answerAll(r.round.waiting, readAnswer{err: ErrNotLeader})
	r.round.waiting = nil
	r.applier.queue.put(func() error {
		r.cfg.Machine.Leadership(now)
		return nil
	})
}

// submit makes one entry of the proposals that wait, unless enough is on its way already.
func (r *Replica) submit() error {
	if !r.leadership.Leading || r.appending >= pipeline {
		return nil
	}
	if r.held == nil {
		var err error
		if r.held, err = r.proposals.take(); err != nil || r.held == nil {
			return err
		}
	}
	err := r.node.Propose(r.held)
	if errors.Is(err, etcdraft.ErrProposalDropped) {
		return nil // too much is not committed yet, or leadership is handed over: held for later
	}
	r.held = nil
	return err
}

// process hands out what raft wants done.
func (r *Replica) process(ready etcdraft.Ready) error {
	for _, m := range ready.Messages {
		switch m.GetTo() {
		case etcdraft.LocalAppendThread:
			if err := r.append(m); err != nil {
				return err
			}
		case etcdraft.LocalApplyThread:
			if err := r.apply(m); err != nil {
				return err
			}
		default:
			r.send(m)
		}
	}
	r.dropIncoming() // one that raft wanted was taken by append
	r.endRead(ready.ReadStates)
	return nil
}

func (r *Replica) append(m *raftpb.Message) error {
	if entries := m.GetEntries(); len(entries) > 0 {
		r.last = entries[len(entries)-1].GetIndex()
		r.appending++
	}
	w := write{message: m}
	if m.GetSnapshot() != nil {
		r.last = m.GetSnapshot().GetMetadata().GetIndex()
		restored := make(chan struct{})
		w.restored = restored
		if err := r.restore(m.GetSnapshot(), restored); err != nil {
			return err
		}
	}
	r.appender.queue.put(w)
	return nil
}

// restore has the snapshot restored that raft has just accepted.
func (r *Replica) restore(s *raftpb.Snapshot, done chan<- struct{}) error {
	i := slices.IndexFunc(r.incoming, func(m received) bool {
		return m.message.GetSnapshot().GetMetadata().GetIndex() == s.GetMetadata().GetIndex()
	})
	if i < 0 {
		return fmt.Errorf("raft: it accepted a snapshot at entry %d that nobody sent", s.GetMetadata().GetIndex())
	}
	from := r.incoming[i]
	r.incoming = slices.Delete(r.incoming, i, i+1)
	r.accepted = append(r.accepted, from.spool)
	at, err := parsePosition(s.GetData())
	if err != nil {
		return err
	}
	r.conf = at.configuration
	r.reached.Store(at.index)
	r.setMembers(at.configuration)
	if err := fits(r.cfg, r.conf); err != nil {
		return err
	}
	r.applier.queue.put(func() error { return r.applier.restore(from, done) })
	return nil
}

// dropIncoming gives up the snapshots that raft had no use for.
func (r *Replica) dropIncoming() {
	for _, m := range r.incoming {
		m.spool.Close()
	}
	r.incoming = nil
}

// apply hands committed entries over. A change of the configuration is in force from here on; raft
// allows no other one before all up to it is applied.
func (r *Replica) apply(m *raftpb.Message) error {
	c := committed{entries: m.GetEntries(), responses: m.GetResponses(), changes: make(map[uint64]configuration)}
	for _, entry := range c.entries {
		if entry.GetTerm() != r.committedTerm {
			r.committedTerm, r.changeAfter = entry.GetTerm(), entry.GetIndex()
		}
		r.reached.Store(entry.GetIndex())
		if entry.GetType() == raftpb.EntryNormal {
			continue
		}
		if err := r.changeConfiguration(entry); err != nil {
			return fmt.Errorf("change the configuration as entry %d says: %w", entry.GetIndex(), err)
		}
		c.changes[entry.GetIndex()] = r.conf
	}
	r.applier.queue.put(func() error { return r.applier.apply(c) })
	if _, ok := c.changes[r.removal.Load()]; ok {
		r.askCheckpoint(make(chan error, 1)) // after it the removed member is told
	}
	return nil
}

func parseChange(entry *raftpb.Entry) (*raftpb.ConfChange, error) {
	if entry.GetType() != raftpb.EntryConfChange {
		return nil, fmt.Errorf("unknown type %v", entry.GetType())
	}
	change := new(raftpb.ConfChange)
	return change, proto.Unmarshal(entry.GetData(), change)
}

// checkpointed hears that a checkpoint is durable. The log stays from where a follower needs it
// who is being sent a snapshot.
func (r *Replica) checkpointed(at *raftpb.SnapshotMetadata) {
	r.lasting.Store(at.GetIndex())
	keep := min(at.GetIndex(), r.node.BasicStatus().Applied) + 1
	r.node.WithProgress(func(id uint64, _ etcdraft.ProgressType, p progress) {
		if pin, ok := r.pins[id]; ok && p.Match >= pin {
			delete(r.pins, id) // it has it by now
		}
	})
	for _, pin := range r.pins {
		keep = min(keep, pin+1)
	}
	r.appender.queue.put(write{mark: at, keep: keep})
}
