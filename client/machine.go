package client

import (
	"fmt"
	"log/slog"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// maxOpen bounds the calls of one client whose callers wait. It is what a master takes on one
// stream.
const maxOpen = 16384

// machine is all that a client decides: what is sent when, how a call ends, and how long a session
// lives. It is plain: calls, messages and the time go in, messages and outcomes come out, and
// nothing in it blocks, so a test can drive it by hand. Every input first looks at the time, so
// that a host that was frozen learns that its lease is over before anything else.
type machine struct {
	log     *slog.Logger
	timeout time.Duration
	host    string // told to the cell

	link    *link         // nil while no master is connected
	session *session      // nil while there is none that lives
	fatal   error         // why this client can do nothing any more
	trouble string        // why there is no master,
	away    clock.Instant // and since when somebody wants one; 0 while there is a link
	looked  bool          // all replicas were asked in vain since, and since this host was frozen last
	rounds  int           // how often that was begun
	vain    clock.Instant // when a call last waited for that in vain
	limits  lockfs.Limits // of the cell, as a master has last said

	ticked   clock.Instant      // when it last looked at the time
	open     map[*call]struct{} // not yet answered by a master, or not needing to be
	callers  int                // calls started and not collected
	creating *call
	due      dueHeap
	lastSeq  uint64

	out output
}

// output is what an input gave, for the driver to take.
type output struct {
	calls []*lockpb.ClientFrame // for the stream of calls,
	keeps []*lockpb.ClientFrame // and for the one of keep-alives
	ready []*call
	lost  []*session
	drop  string // why the link is given up; "" is not
	look  bool   // somebody waits to hear whether a master is there
}

// link is a connection to a master, both streams of it.
type link struct {
	address string
	cluster uint64
	epoch   uint64
	lease   time.Duration
	grace   time.Duration

	lastID   uint64
	calls    map[uint64]*call // sent and not answered
	attach   uint64           // id of the greeting under way
	attached bool             // the master has answered it: calls of the session may go
	untaken  int              // of calls, those that the master has said nothing of
	quiet    clock.Instant    // since when it says nothing although it should
}

// session is one session of the cell.
type session struct {
	id     uint64
	lease  *lease
	hello  uint64 // of the last greeting
	next   uint64 // the next number
	seen   numbers
	owners map[uint64]*owner
	held   map[*call]struct{} // answered by a master, and not collected

	jeopardy bool  // has been told of
	closing  bool  // takes no more calls
	err      error // why it has ended

	// The driver's.
	ended     chan struct{} // closed when err is set
	handle    *Session      // nil until somebody has asked for it
	lastOwner uint64
}

func newMachine(log *slog.Logger, timeout time.Duration, host string) *machine {
	return &machine{log: log, timeout: timeout, host: host, limits: lockfs.DefaultLimits, open: make(map[*call]struct{})}
}

// ---- Calls come in ---------------------------------------------------------------------------

// start takes a call, whose caller will collect it.
func (m *machine) start(now clock.Instant, c *call) {
	m.tick(now)
	if m.link == nil && m.away == 0 {
		m.away = now
	}
	m.callers++
	if id := c.ownerID(); id != 0 {
		c.owner = c.session.owner(id)
	}
	if err := m.refusal(c); err != nil {
		m.abort(c, err)
		return
	}
	if c.kind == wantSession && m.session != nil && !m.session.closing || c.kind == wantMaster && m.link != nil {
		m.tell(c, nil, nil)
		return
	}
	c.parked = c.owner != nil && c.owner.unsettled > 0
	m.admit(now, c)
	if c.kind == wantSession {
		m.create(now)
	}
}

// refusal says why a call is not even taken.
func (m *machine) refusal(c *call) error {
	switch {
	case m.fatal != nil:
		return c.fail(lockfs.KindOf(m.fatal), detailOf(m.fatal))
	case c.session != nil && c.session.err != nil:
		return c.fail(lockfs.ErrSession, detailOf(c.session.err))
	case c.session != nil && c.session.closing && c.kind != closing:
		return c.fail(lockfs.ErrSession, "it is being closed")
	case m.callers > maxOpen:
		return c.fail(lockfs.ErrLimit, fmt.Sprintf("%d calls are open", maxOpen))
	case c.owner != nil && c.owner.lost:
		return c.fail(lockfs.ErrStale, "the lock was lost")
	case c.owner != nil && c.owner.closer != nil:
		return c.fail(lockfs.ErrReleased, "")
	}
	return nil
}

// admit puts a call into the order of sending, and sends it if that can be.
func (m *machine) admit(now clock.Instant, c *call) {
	m.lastSeq++
	c.seq = m.lastSeq
	m.open[c] = struct{}{}
	if c.owner != nil {
		c.owner.calls[c] = struct{}{}
	}
	if d := m.patience(now, c); d > 0 {
		m.arm(c, now.Add(d))
	}
	m.send(now, c)
}

const (
	// lateTimeout is enough to ask a replica in vain and to find the master at the next.
	lateTimeout = dialTimeout + lastPause
	// lateWait is enough to ask all replicas if they answer. For lateRest after one call has waited so
	// in vain the others do not.
	lateWait = time.Second / 2
	lateRest = time.Second
)

// patience is how long a call goes without a master that answers; 0 is for ever. Of an outage that
// has lasted the whole timeout a later call waits only until all replicas were asked once more, which
// it asks for, and not for those that do not answer: who waits for each other, as for a name in the
// kernel, would add up the waits. Where this host was frozen meanwhile it waits for those too. A
// mutation keeps a tenth of its time for learning its fate.
func (m *machine) patience(now clock.Instant, c *call) time.Duration {
	if c.waits || c.kind == background || c.kind == creation {
		return 0
	}
	patience := m.timeout
	if m.link == nil {
		patience = m.away.Add(m.timeout).Sub(now)
		least := min(m.timeout, lateTimeout)
		switch {
		case m.looked && m.vain != 0 && now.Sub(m.vain) < lateRest:
			least = time.Nanosecond
		case m.looked:
			least = min(m.timeout, lateWait)
		}
		if patience < least {
			patience = least
			c.late, c.round, m.out.look = m.looked, m.rounds, true
		}
	}
	if c.kind == mutation {
		patience -= patience / 10
	}
	return patience
}

// create asks for a session where one is wanted and there is none. One that is being closed is
// waited for.
func (m *machine) create(now clock.Instant) {
	wanted := false
	for c := range m.open {
		wanted = wanted || c.kind == wantSession
	}
	if !wanted || m.session != nil || m.creating != nil || m.fatal != nil {
		return
	}
	m.creating = newCall(creation, nil, "session", "", &lockpb.Call{Op: &lockpb.Call_CreateSession{
		CreateSession: &lockpb.CreateSession{Host: m.host}}})
	m.admit(now, m.creating)
}

// send sends a call if it can be sent now and was not.
func (m *machine) send(now clock.Instant, c *call) {
	l := m.link
	if l == nil || c.id != 0 || c.parked || !c.sends() || c.session != nil && !l.attached {
		return
	}
	if c.numbered() && c.number == 0 {
		c.session.next++
		c.number = c.session.next
		c.confirms = c.session.seen.some()
	}
	l.lastID++
	c.id, c.sent = l.lastID, now
	if l.untaken == 0 {
		l.quiet = now
	}
	l.untaken++
	l.calls[c.id] = c
	m.out.calls = append(m.out.calls, &lockpb.ClientFrame{Frame: &lockpb.ClientFrame_Call{Call: c.frame(l)}})
}

// sendAll sends what waits to be sent, in order.
func (m *machine) sendAll(now clock.Instant) {
	for _, c := range inOrder(m.open) {
		if !c.superseded() {
			m.send(now, c)
		}
	}
}

// ---- The link --------------------------------------------------------------------------------

// linked says that both streams to a master are there.
func (m *machine) linked(now clock.Instant, address string, w *lockpb.Welcome) {
	m.tick(now)
	m.trouble, m.away, m.looked = "", 0, false
	m.link = &link{
		address: address, cluster: w.GetClusterId(), epoch: w.GetEpoch(),
		lease: milliseconds(w.GetLeaseMs()), grace: milliseconds(w.GetGraceMs()),
		calls: make(map[uint64]*call), quiet: now,
	}
	if w.GetLimits() != nil {
		m.limits = lockpb.LimitsFromWire(w.GetLimits())
	}
	m.log.Info("connected to the master", "master", w.GetMasterName(), "address", address, "epoch", w.GetEpoch())
	m.tellAll(wantMaster)
	m.attach(now)
	m.sendAll(now)
}

// looking says that all replicas are being asked who is the master.
func (m *machine) looking(now clock.Instant) {
	m.tick(now)
	m.rounds++
}

// foundNobody ends the calls that waited for a round.
func (m *machine) foundNobody(now clock.Instant) {
	m.looked = true
	for _, c := range inOrder(m.open) {
		if c.late && c.round < m.rounds && c.deadline != 0 {
			m.disarm(c)
			c.late = false // it has an answer
			m.expire(now, c)
		}
	}
}

// unlinked says that the link is broken. What was sent and not answered is sent again to the next.
func (m *machine) unlinked(now clock.Instant, trouble string) {
	m.trouble = trouble
	if m.link == nil {
		m.foundNobody(now)
		return
	}
	m.link, m.away = nil, now
	for c := range m.open {
		c.id = 0
		if c.taken {
			c.taken = false
			if d := m.patience(now, c); d > 0 && c.stage == waiting {
				m.arm(c, now.Add(d))
			}
		}
	}
	if m.session != nil {
		m.session.lease.cut()
	}
}

// drop gives the link up.
func (m *machine) drop(now clock.Instant, why string) {
	if m.link == nil {
		return
	}
	m.log.Info("looking for the master again", "left", m.link.address, "why", why)
	m.out.drop = why
	m.unlinked(now, why)
}

// attach greets the master on behalf of the session.
func (m *machine) attach(now clock.Instant) {
	s, l := m.session, m.link
	if s == nil || l == nil {
		return
	}
	s.hello++
	l.lastID++
	l.attach = l.lastID
	s.lease.greet(now)
	m.out.keeps = append(m.out.keeps, &lockpb.ClientFrame{Frame: &lockpb.ClientFrame_Call{Call: &lockpb.Call{
		Id: l.attach, ClusterId: l.cluster, Epoch: l.epoch, Session: s.id,
		Op: &lockpb.Call_Attach{Attach: &lockpb.Attach{Hello: s.hello}},
	}}})
}

// greeted takes the answer to a greeting. Only then may calls go: the master compares nothing.
func (m *machine) greeted(now clock.Instant, a *lockpb.Answer) {
	m.link.attach = 0
	switch kind := lockfs.Kind(a.GetKind()); kind {
	case 0:
		m.session.lease.greeted(now)
		m.reconcile(now, a.GetAttached().GetLocks())
		m.link.attached = true
		m.renew(now)
		m.sendAll(now)
	case lockfs.ErrSession:
		m.gone("the master does not know it")
	default:
		m.drop(now, "the master refused the session's greeting: "+kind.Error())
	}
}

// keepAlive takes the answer to a renewal.
func (m *machine) keepAlive(now clock.Instant, a *lockpb.KeepAliveAnswer) {
	m.tick(now)
	for _, r := range a.GetRenewed() {
		s := m.session
		if s == nil || m.link == nil || r.GetSession() != s.id {
			continue
		}
		switch kind := lockfs.Kind(r.GetKind()); kind {
		case 0:
			s.lease.renewed(r.GetNumber(), milliseconds(r.GetLeaseMs()))
			m.confirm(now)
		case lockfs.ErrSession:
			m.gone("the master has ended it")
		default:
			m.drop(now, "the master refused a renewal: "+kind.Error())
		}
	}
}

// confirm ends a jeopardy that is over: what was held back may be collected.
func (m *machine) confirm(now clock.Instant) {
	s := m.session
	if !s.lease.valid(now) {
		return
	}
	if s.jeopardy {
		s.jeopardy = false
		m.log.Info("the session is safe", "session", s.id)
	}
	m.out.ready = append(m.out.ready, inOrder(s.held)...)
}

// ---- Time ------------------------------------------------------------------------------------

// longestNap bounds how long the machine goes without a look at the time while anything is to
// come: the timers of a suspended host do not run, and the end of a session must be told soon after
// it wakes.
const longestNap = time.Second

// tick does what is due.
func (m *machine) tick(now clock.Instant) {
	m.noticeFreeze(now)
	if s := m.session; s != nil {
		switch {
		case now >= s.lease.lost():
			m.lose(lost("no master confirmed it within the grace period"))
		case !s.lease.valid(now) && !s.jeopardy:
			s.jeopardy = true
			m.log.Warn("the session is in jeopardy: its lease is over and no master has renewed it", "session", s.id)
		}
	}
	m.watch(now)
	m.renew(now)
	for len(m.due) > 0 && m.due[0].deadline <= now {
		c := m.due[0]
		m.disarm(c)
		m.expire(now, c)
	}
}

// noticeFreeze gives calls the time back in which this host was frozen: nobody could have answered
// them. The lease is not asked, since that runs wherever the host is.
func (m *machine) noticeFreeze(now clock.Instant) {
	gap := now.Sub(m.ticked)
	m.ticked = now
	if gap <= 2*longestNap {
		return
	}
	if m.away != 0 {
		m.away, m.looked = m.away.Add(gap), false
	}
	for _, c := range m.due { // all alike, so the heap stays one
		c.deadline = c.deadline.Add(gap)
	}
}

// watch gives up a link that says nothing although it should.
func (m *machine) watch(now clock.Instant) {
	l := m.link
	switch {
	case l == nil:
	case m.session != nil && m.session.lease.silent(now):
		m.drop(now, fmt.Sprintf("no answer to a keep-alive for %v", m.session.lease.third()))
	case l.untaken > 0 && now >= l.quiet.Add(l.lease/3):
		m.drop(now, fmt.Sprintf("no answer to any call for %v", l.lease/3))
	}
}

// renew sends a renewal if one is due.
func (m *machine) renew(now clock.Instant) {
	s, l := m.session, m.link
	if s == nil || l == nil || !l.attached || now < s.lease.next {
		return
	}
	m.out.keeps = append(m.out.keeps, &lockpb.ClientFrame{Frame: &lockpb.ClientFrame_KeepAlive{KeepAlive: &lockpb.KeepAlive{
		ClusterId: l.cluster, Epoch: l.epoch,
		Renewals: []*lockpb.Renewal{{Session: s.id, Number: s.lease.renew(now)}},
	}}})
}

// deadline returns when tick should be called next.
func (m *machine) deadline() (next clock.Instant, ok bool) {
	earlier := func(at clock.Instant) {
		if !ok || at < next {
			next, ok = at, true
		}
	}
	if len(m.due) > 0 {
		earlier(m.due[0].deadline)
	}
	if l := m.link; l != nil && l.untaken > 0 {
		earlier(l.quiet.Add(l.lease / 3))
	}
	if s := m.session; s != nil {
		earlier(s.lease.lost())
		if !s.jeopardy {
			earlier(s.lease.end)
		}
		if s.lease.asked != 0 {
			earlier(s.lease.asked.Add(s.lease.third()))
		}
		if m.link != nil && m.link.attached {
			earlier(s.lease.next)
		}
	}
	if ok {
		next = min(next, m.ticked.Add(longestNap))
	}
	return next, ok
}

// ---- Ends ------------------------------------------------------------------------------------

// lost is the error of a session that has ended.
func lost(reason string) error {
	return &lockfs.Error{Op: "session", Kind: lockfs.ErrSession, Detail: reason}
}

// gone says that a master does not know the session any more. Where it is being closed that is how
// its closing may be heard of first: answers come on another stream than renewals.
func (m *machine) gone(reason string) {
	for _, c := range inOrder(m.open) {
		if c.kind == closing && c.number != 0 {
			m.forget(c)
			m.tell(c, nil, nil)
		}
	}
	m.lose(lost(reason))
}

// lose ends the live session, and every call of it.
func (m *machine) lose(why error) {
	s := m.session
	m.session = nil
	s.err = why
	if m.link != nil {
		m.link.attach, m.link.attached = 0, false
	}
	if s.closing { // whether the cell knows it is for why to say
		m.log.Info("the session has ended", "session", s.id, "why", detailOf(why))
	} else {
		m.log.Error("the session is lost", "session", s.id, "why", detailOf(why), "locks", s.locks())
	}
	for _, c := range inOrder(s.held) {
		c.held = false
		c.answer, c.failure = nil, c.fail(lockfs.ErrSession, detailOf(why))
		m.out.ready = append(m.out.ready, c)
	}
	for _, c := range inOrder(m.open) {
		if c.session == s {
			m.forget(c)
			m.tell(c, nil, c.fail(lockfs.ErrSession, detailOf(why)))
		}
	}
	m.out.lost = append(m.out.lost, s)
	m.create(m.ticked)
}

// end ends the live session because its owner closes it. With err no master has confirmed that.
func (m *machine) end(now clock.Instant, s *session, err error) {
	m.tick(now)
	switch {
	case m.session != s:
	case err != nil:
		m.lose(lost("it was closed, which no master has confirmed: in the cell it ends with its lease"))
	default:
		m.lose(lost("it was closed"))
	}
}

// fail ends all that there is, for good.
func (m *machine) fail(err error) {
	if m.fatal != nil {
		return
	}
	m.fatal = err
	if m.session != nil {
		m.lose(lost(detailOf(err)))
	}
	for _, c := range inOrder(m.open) {
		m.forget(c)
		m.tell(c, nil, c.fail(lockfs.KindOf(err), detailOf(err)))
	}
	if m.link != nil {
		m.link, m.out.drop = nil, err.Error()
	}
}

func detailOf(err error) string {
	if e, ok := err.(*lockfs.Error); ok {
		return e.Detail
	}
	return err.Error()
}
