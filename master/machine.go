package master

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/store"
	"lockfs/store/storepb"
)

// moment is the time, as it is told to the machine: on the replica's clock, which decides, and on
// the wall, which is only written down.
type moment struct {
	now  clock.Instant
	wall time.Time
}

// call is a mutation that a client has asked for and has no answer to yet.
type call struct {
	stream   *stream // where the answer goes; a repeated call moves it to its newest
	id       uint64  // of the call on that stream
	mutation *storepb.Mutation
	waiter   *waiter // of an Acquire that is in a queue
	ended    bool    // answered; a grant that is still under way is not told
}

// reply is what the machine says to a call.
type reply struct {
	call   *call
	result *storepb.Result // nil: the call is taken, and waits
}

// machine is what only the master keeps. See the package comment. It reads state, which changes
// under it only between an Apply and the call of applied that follows at once.
type machine struct {
	state *store.State
	seed  *storepb.Seed
	log   *slog.Logger

	epoch    uint64 // proposed under, 0 while this replica does not lead
	inOffice bool   // the epoch is in the log and applied
	sequence uint64 // of the last proposal in this epoch

	leases  timetable[uint64] // by session
	ending  map[uint64]bool   // sessions whose expiry is proposed: they get no answer any more
	asking  map[uint64]int    // renewals that have arrived and are not confirmed, by session
	hellos  map[uint64]hello  // by session: the stream that its keep-alives come on
	streams map[uint64]uint64 // by session: the serial of the newest stream that brought a call
	delays  timetable[delayKey]
	queues  map[lockfs.Path]*queue
	waiting map[uint64]map[*waiter]bool // by session
	calls   map[callKey]*call           // under way, by session and number
	pending map[uint64]*pending         // proposals under way, by sequence

	// What the last input gave, for the driver to take.
	proposals []*storepb.Proposal
	replies   []reply
	unsure    []*waiter // to be handed to confirmed, once it is certain that this replica leads
}

type callKey struct{ session, number uint64 }

type hello struct {
	number uint64
	stream *stream
}

// pending is a proposal under way: who asked for each of its commands, and the queues of the locks
// that it may change.
type pending struct {
	calls  []*call // nil where nobody did
	queues []*queue
}

func newMachine(state *store.State, seed *storepb.Seed, log *slog.Logger) *machine {
	m := &machine{state: state, seed: seed, log: log}
	m.leave()
	return m
}

// lead begins a mastership in the epoch; it is in office once the first proposal is applied.
func (m *machine) lead(at moment, epoch uint64) {
	m.leave()
	m.epoch = epoch
	m.propose(at, &pending{calls: []*call{nil}}, &storepb.Command{
		Command: &storepb.Command_TakeOffice{TakeOffice: &storepb.TakeOffice{Seed: m.seed}}})
}

// leave forgets everything: the clients' calls have no answer and are repeated to the next master.
func (m *machine) leave() {
	m.epoch, m.inOffice, m.sequence = 0, false, 0
	m.leases, m.delays = newTimetable[uint64](), newTimetable[delayKey]()
	m.ending = make(map[uint64]bool)
	m.asking = make(map[uint64]int)
	m.hellos = make(map[uint64]hello)
	m.streams = make(map[uint64]uint64)
	m.queues = make(map[lockfs.Path]*queue)
	m.waiting = make(map[uint64]map[*waiter]bool)
	m.calls = make(map[callKey]*call)
	m.pending = make(map[uint64]*pending)
	m.proposals, m.replies, m.unsure = nil, nil, nil
}

// takeOffice gives everybody all the time that the last master may have promised, and takes up
// what it may have left undone.
func (m *machine) takeOffice(at moment) {
	m.inOffice = true
	for _, s := range m.state.Sessions() {
		m.leases.set(s.ID, at.now.Add(m.state.Lease()))
	}
	m.startDelays(at, m.state.Delays())
	m.deleteOrphans(at, m.state.Orphans())
	m.log.Info("in office", "epoch", m.epoch, "sessions", len(m.state.Sessions()), "nodes", m.state.Nodes())
}

// propose hands a proposal of these commands to the driver. who is to be told of each one's result.
func (m *machine) propose(at moment, who *pending, commands ...*storepb.Command) {
	m.sequence++
	m.pending[m.sequence] = who
	for _, q := range who.queues {
		q.changing++
	}
	m.proposals = append(m.proposals, &storepb.Proposal{
		Epoch: m.epoch, Sequence: m.sequence, Time: at.wall.UnixNano(), Commands: commands})
}

// applied tells the machine that the state has applied a proposal, whoever's it was.
func (m *machine) applied(at moment, p *storepb.Proposal, outcome store.Outcome) {
	if m.epoch == 0 || p.GetEpoch() != m.epoch {
		return // of a master before; what it did is in the state already
	}
	if outcome.Refused {
		m.log.Warn("own proposal refused", "epoch", p.GetEpoch(), "cell's epoch", m.state.Epoch())
		return // a newer master is about to be heard of
	}
	if !m.inOffice {
		m.takeOffice(at)
	}
	if who, ok := m.pending[p.GetSequence()]; ok {
		delete(m.pending, p.GetSequence())
		for _, q := range who.queues {
			q.changing--
		}
		for i, c := range who.calls {
			if c != nil {
				m.settle(at, c, outcome.Results[i])
			}
		}
		// An unlock that changed nothing has no effect to say so, and somebody may have come
		// meanwhile who was put off because of it.
		for _, q := range who.queues {
			m.grant(at, q)
		}
	}
	m.effects(at, outcome.Effects)
	for _, c := range p.GetCommands() {
		if clear := c.GetClearDelay(); clear != nil { // also of a name that has no node
			m.dropClearedDelays(lockfs.Path(clear.GetPath()))
		}
	}
}

// rejected takes a proposal back that the log will not have, whoever asked for it.
func (m *machine) rejected(p *storepb.Proposal, why error) {
	who := m.pending[p.GetSequence()]
	delete(m.pending, p.GetSequence())
	for _, q := range who.queues {
		q.changing--
	}
	for _, c := range who.calls {
		if c != nil && !c.ended {
			m.end(c, refusal(c.mutation.GetNumber(), why))
		}
	}
}

// effects takes up what a proposal did to sessions, locks and names.
func (m *machine) effects(at moment, e store.Effects) {
	for _, session := range e.Ended {
		m.forget(session)
	}
	for _, node := range e.Deleted {
		m.dismissQueue(node)
	}
	m.startDelays(at, e.Delays)
	for _, path := range e.Locks {
		m.dropClearedDelays(path)
		if q, ok := m.queues[path]; ok {
			m.grant(at, q)
		}
	}
	m.deleteOrphans(at, e.Orphans)
}

// commandsMax bounds the commands of one proposal, none of which has more than some kilobytes: raft
// takes proposals up to a size.
const commandsMax = 256

func (m *machine) deleteOrphans(at moment, orphans []store.NodeID) {
	for some := range slices.Chunk(orphans, commandsMax) {
		commands := make([]*storepb.Command, len(some))
		for i, o := range some {
			commands[i] = &storepb.Command{Command: &storepb.Command_DeleteOrphan{
				DeleteOrphan: &storepb.DeleteOrphan{Path: string(o.Path), Instance: o.Instance}}}
		}
		m.propose(at, &pending{calls: make([]*call, len(some))}, commands...)
	}
}

// mutate takes a numbered change from a client. One that is under way already is not done twice:
// its answer goes to where it was asked for last.
func (m *machine) mutate(at moment, c *call) {
	key := callKey{c.mutation.GetSession(), c.mutation.GetNumber()}
	if open, ok := m.calls[key]; ok {
		open.stream, open.id = c.stream, c.id
		if open.waiter != nil {
			m.reply(open, nil)
		}
		return
	}
	if result, done := m.state.Done(key.session, key.number); done {
		m.reply(c, finished(key.number, result))
		return
	}
	m.calls[key] = c
	switch op := c.mutation.GetOp().(type) {
	case *storepb.Mutation_Acquire:
		m.acquire(at, c, op.Acquire)
	case *storepb.Mutation_Release:
		m.release(at, c, op.Release)
	case *storepb.Mutation_CloseOwner:
		m.closeOwner(at, c, op.CloseOwner)
	case *storepb.Mutation_GiveUp:
		m.giveUp(at, c, op.GiveUp)
	default:
		m.propose(at, &pending{calls: []*call{c}}, mutation(c))
	}
}

// finished is the answer to a number that is done: its result, or that it is done and nobody
// should ask any more.
func finished(number uint64, result *storepb.Result) *storepb.Result {
	if result != nil {
		return result
	}
	return refusal(number, &lockfs.Error{Kind: lockfs.ErrInvalid, Detail: "the answer to this request was confirmed before"})
}

func mutation(c *call) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_Mutation{Mutation: c.mutation}}
}

// refusal is a result that is decided without the log.
func refusal(number uint64, err error) *storepb.Result {
	detail := ""
	if e, ok := err.(*lockfs.Error); ok {
		detail = e.Detail
	}
	return &storepb.Result{Number: number, Kind: uint32(lockfs.KindOf(err)), Detail: detail}
}

// createSession makes a session; the call carries no mutation.
func (m *machine) createSession(at moment, c *call, create *storepb.CreateSession) {
	m.propose(at, &pending{calls: []*call{c}},
		&storepb.Command{Command: &storepb.Command_CreateSession{CreateSession: create}})
}

// settle ends a call with the result of its command, or leaves it in its queue.
func (m *machine) settle(at moment, c *call, result *storepb.Result) {
	if c.ended || c.waiter != nil && !m.settleWaiter(c.waiter, result) {
		return
	}
	switch {
	case c.mutation == nil:
		if result.GetKind() == 0 {
			m.leases.set(result.GetSession(), at.now.Add(m.state.Lease()))
		}
	case c.mutation.GetGiveUp() != nil && result.GetKind() == 0 && result.GetGivenUp() == nil:
		m.abandon(callKey{c.mutation.GetSession(), c.mutation.GetGiveUp().GetNumber()}, lockfs.ErrGivenUp)
	case c.mutation.GetCloseOwner() != nil && result.GetKind() == 0:
		for _, number := range c.mutation.GetCloseOwner().GetNumbers() {
			m.abandon(callKey{c.mutation.GetSession(), number}, lockfs.ErrReleased)
		}
	}
	m.end(c, result)
}

// abandon ends a call, if it is still under way, whose number the log has given up.
func (m *machine) abandon(key callKey, kind lockfs.Kind) {
	if c, ok := m.calls[key]; ok {
		m.end(c, refusal(key.number, kind))
	}
}

// end answers a call and forgets it.
func (m *machine) end(c *call, result *storepb.Result) {
	c.ended = true
	if c.waiter != nil {
		m.dequeue(c.waiter)
	}
	if c.mutation != nil {
		delete(m.calls, callKey{c.mutation.GetSession(), c.mutation.GetNumber()})
	}
	m.reply(c, result)
}

func (m *machine) reply(c *call, result *storepb.Result) {
	m.replies = append(m.replies, reply{c, result})
}

// ---- Sessions --------------------------------------------------------------------------------

// session returns ErrSession unless the session lives and is this identity's.
func (m *machine) session(id uint64, identity string) error {
	s, ok := m.state.Session(id)
	if !ok || s.Identity != identity {
		return &lockfs.Error{Op: "session", Kind: lockfs.ErrSession, Detail: "the master knows no such session"}
	}
	return nil
}

// attach makes stream the one that the session's keep-alives come on, unless a newer one has been.
func (m *machine) attach(session, number uint64, s *stream) error {
	if newest, ok := m.hellos[session]; ok && newest.number >= number && newest.stream != s {
		return &lockfs.Error{Op: "attach", Kind: lockfs.ErrInvalid, Detail: "a newer stream of the session is attached"}
	}
	m.hellos[session] = hello{number, s}
	return nil
}

// ask says that a renewal has arrived that is to be confirmed, and asked that it was.
func (m *machine) ask(session uint64) {
	if _, ok := m.leases.at(session); ok {
		m.asking[session]++
	}
}

func (m *machine) asked(session uint64) {
	if m.asking[session]--; m.asking[session] <= 0 {
		delete(m.asking, session)
	}
}

// renew gives the session a new lease from now, and returns its length. That and expiring are
// decided here alone: a session whose expiry is proposed gets no answer, which ok says.
func (m *machine) renew(at moment, session uint64, s *stream) (lease time.Duration, ok bool) {
	if m.ending[session] || m.hellos[session].stream != s {
		return 0, false
	}
	m.leases.set(session, at.now.Add(m.state.Lease()))
	return m.state.Lease(), true
}

// newest reports whether a stream is the newest that brought a call of the session. What comes late
// on an older one is a copy: the client has sent it again, and may have had the answer.
func (m *machine) newest(session, serial uint64) bool {
	if session == 0 {
		return true
	}
	if serial < m.streams[session] {
		return false
	}
	m.streams[session] = serial
	return true
}

// forget drops all that hangs on a session that has ended, and answers its calls.
func (m *machine) forget(session uint64) {
	m.leases.remove(session)
	delete(m.ending, session)
	delete(m.hellos, session)
	delete(m.streams, session)
	for _, w := range m.waitersOf(session) {
		m.end(w.call, refusal(w.call.mutation.GetNumber(), lockfs.ErrSession))
	}
}

// waitersOf returns a session's waiters by number, so that answers leave in one order.
func (m *machine) waitersOf(session uint64) []*waiter {
	var ws []*waiter
	for w := range m.waiting[session] {
		ws = append(ws, w)
	}
	slices.SortFunc(ws, func(a, b *waiter) int {
		return cmp.Compare(a.call.mutation.GetNumber(), b.call.mutation.GetNumber())
	})
	return ws
}

// ---- Time ------------------------------------------------------------------------------------

// renewalWait is how long a session whose lease has run out is kept while its renewal is being
// confirmed. Where that fails this master is none any more, and can end no session either.
const renewalWait = 100 * time.Millisecond

// respite is for how much longer a session is kept whose lease has run out, where this master is
// late and not the client: a renewal of it is here, or the master itself did not run for a while,
// and its renewals may lie unread. A master may always keep a session longer than it promised.
func (m *machine) respite(at moment, session uint64) time.Duration {
	if m.asking[session] > 0 {
		return renewalWait
	}
	end, _ := m.leases.at(session)
	if late := at.now.Sub(end); late > m.state.Lease()/8 {
		return min(late, m.state.Lease())
	}
	return 0
}

// tick does what is due: it ends sessions whose lease ran out and lock-delays that have passed.
func (m *machine) tick(at moment) {
	if !m.inOffice {
		return
	}
	for _, session := range m.leases.expired(at.now) {
		if wait := m.respite(at, session); wait > 0 {
			m.leases.set(session, at.now.Add(wait))
			continue
		}
		m.ending[session] = true
		m.propose(at, &pending{calls: []*call{nil}}, &storepb.Command{
			Command: &storepb.Command_ExpireSession{ExpireSession: &storepb.ExpireSession{Session: session}}})
		m.log.Info("session expired", "session", session)
	}
	m.endDelays(at)
}

// deadline returns when tick should be called next.
func (m *machine) deadline() (clock.Instant, bool) {
	lease, ok1 := m.leases.next()
	delay, ok2 := m.delays.next()
	if ok1 && ok2 {
		return min(lease, delay), true
	}
	return lease + delay, ok1 || ok2 // the one that is not there is 0
}
