package client

import (
	"fmt"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// taken says that the master has a call, which now waits for others.
func (m *machine) taken(now clock.Instant, id uint64) {
	m.tick(now)
	if m.link == nil {
		return
	}
	m.link.quiet = now
	c, ok := m.link.calls[id]
	if !ok || c.taken {
		return
	}
	c.taken = true
	m.link.untaken--
	if c.stage == waiting && c.kind != background {
		m.disarm(c)
	}
}

// answered takes an answer, from either stream.
func (m *machine) answered(now clock.Instant, a *lockpb.Answer) {
	m.tick(now)
	l := m.link
	if l == nil {
		return
	}
	if a.GetId() == l.attach && l.attach != 0 {
		m.greeted(now, a)
		return
	}
	l.quiet = now
	c, ok := l.calls[a.GetId()]
	if !ok {
		return // nobody waits for it any more
	}
	m.unsend(c)
	switch kind := lockfs.Kind(a.GetKind()); {
	case kind == lockfs.ErrNotMaster || kind == lockfs.ErrEpoch || kind == lockfs.ErrUnavailable:
		m.drop(now, "it answered "+c.fail(kind, a.GetDetail()).Error())
	case kind == lockfs.ErrCell:
		m.fail(&lockfs.Error{Op: "client", Kind: kind, Detail: a.GetDetail()})
	case kind == lockfs.ErrSession && c.session != nil:
		m.gone("the master has ended it")
	case kind == lockfs.ErrLimit && c.kind == background:
		m.arm(c, now.Add(overloadWait)) // expire sends it again
	default:
		m.settle(now, c, a)
	}
}

// overloadWait is how soon a call without a caller is sent again to a master that had no room.
const overloadWait = 200 * time.Millisecond

// unsend takes a call off the link.
func (m *machine) unsend(c *call) {
	if c.id == 0 || m.link == nil {
		return
	}
	delete(m.link.calls, c.id)
	if !c.taken {
		m.link.untaken--
	}
	c.id, c.taken = 0, false
}

// forget says that nothing more is wanted of the cell for this call.
func (m *machine) forget(c *call) {
	delete(m.open, c)
	m.unsend(c)
	m.disarm(c)
	if c == m.creating {
		m.creating = nil
	}
	if c.owner != nil {
		delete(c.owner.calls, c)
	}
}

// abort ends a call of which no copy is under way.
func (m *machine) abort(c *call, err error) {
	m.forget(c)
	m.tell(c, nil, err)
	if c.owner != nil {
		c.owner.tidy()
	}
}

// settle takes what a master says of a call: its answer, or how its number ended.
func (m *machine) settle(now clock.Instant, c *call, a *lockpb.Answer) {
	sent := c.sent
	m.forget(c)
	if c.numbered() {
		c.session.seen.add(c.number)
		if a.GetKind() == 0 { // through the log, and what it confirmed with it
			c.session.seen.remove(c.confirms)
		}
	}
	switch {
	case c.kind == creation:
		m.created(now, sent, a)
	case c.of != nil:
		m.fateOf(now, c, a)
	case c.owner != nil:
		m.settleLock(now, c, a)
	default:
		m.conclude(now, c, a)
	}
}

// conclude gives a call its outcome by a master's answer. The caller may have it only while the
// lease is valid: until then it is held back.
func (m *machine) conclude(now clock.Instant, c *call, a *lockpb.Answer) {
	if c.told || c.kind == background {
		return
	}
	if c.stage == givingUp && lockfs.Kind(a.GetKind()) == lockfs.ErrGivenUp {
		m.tell(c, nil, c.notDone(m))
		return
	}
	if c.session == nil || c.kind == closing {
		m.tell(c, a, a.Err(c.op, c.path))
		return
	}
	c.told, c.answer, c.failure = true, a, a.Err(c.op, c.path)
	c.held = true
	c.session.held[c] = struct{}{}
	if c.session.lease.valid(now) {
		m.out.ready = append(m.out.ready, c)
	} else {
		m.armHeld(now, c)
	}
}

// armHeld bounds how long a call waits that only its session's confirmation is wanted for.
func (m *machine) armHeld(now clock.Instant, c *call) {
	if !c.waits {
		m.arm(c, now.Add(m.timeout))
	}
}

// tell gives a call its outcome, once.
func (m *machine) tell(c *call, a *lockpb.Answer, err error) {
	if c.told {
		return
	}
	c.told, c.answer, c.failure = true, a, err
	m.disarm(c)
	m.out.ready = append(m.out.ready, c)
}

// tellAll tells those who wait for a session or a master that it is there.
func (m *machine) tellAll(kind callKind) {
	for _, c := range inOrder(m.open) {
		if c.kind == kind {
			m.forget(c)
			m.tell(c, nil, nil)
		}
	}
}

// collect reports whether the call is over, and its outcome can be told at this moment. Otherwise
// there will be something to collect later.
func (m *machine) collect(now clock.Instant, c *call) bool {
	m.tick(now)
	if c.held {
		if !c.session.lease.valid(now) {
			m.armHeld(now, c)
			return false
		}
		c.held = false
		delete(c.session.held, c)
	}
	m.disarm(c)
	m.callers--
	return true
}

// created takes the answer to CreateSession, which was sent at sent.
func (m *machine) created(now, sent clock.Instant, a *lockpb.Answer) {
	if err := a.Err("session", ""); err != nil {
		for _, c := range inOrder(m.open) {
			if c.kind == wantSession {
				m.abort(c, err)
			}
		}
		return
	}
	made := a.GetSessionCreated()
	m.session = &session{
		id:     made.GetSession(),
		lease:  newLease(sent, milliseconds(made.GetLeaseMs()), m.link.grace),
		owners: make(map[uint64]*owner),
		held:   make(map[*call]struct{}),
		ended:  make(chan struct{}),
	}
	m.log.Info("session made", "session", m.session.id, "lease", m.session.lease.length)
	m.attach(now)
	m.tellAll(wantSession)
}

// ---- Calls that nobody answers, or nobody waits for --------------------------------------------

// expire is called when the deadline of a call is over.
func (m *machine) expire(now clock.Instant, c *call) {
	if c.late {
		m.vain = now
	}
	switch {
	case c.kind == background:
		m.send(now, c)
	case c.held && !c.session.lease.valid(now):
		m.unconfirmed(now, c)
	case c.stage == abandoned || c.told:
	case c.stage == givingUp:
		m.abandon(c)
	case c.kind == mutation && c.number != 0:
		m.startGiveUp(now, c, now.Add(m.timeout/10))
	default:
		m.abort(c, c.notDone(m))
	}
}

// cancel says that the context of a call's caller has ended. The call will be there to collect
// within giveUpWait.
func (m *machine) cancel(now clock.Instant, c *call, why error) {
	m.tick(now)
	switch {
	case c.held && !c.session.lease.valid(now):
		c.why = why
		m.unconfirmed(now, c)
	case c.told:
	case c.stage == givingUp:
		c.why = why
		m.arm(c, min(c.deadline, now.Add(giveUpWait)))
	case c.kind == mutation && c.number != 0:
		c.why = why
		m.startGiveUp(now, c, now.Add(giveUpWait))
	default:
		c.why = why
		m.abort(c, c.notDone(m))
	}
}

// notDone is what the caller gets of a call that is surely not done, and never will be.
func (c *call) notDone(m *machine) error {
	if c.why != nil {
		return c.interrupted(c.why)
	}
	return c.fail(lockfs.ErrUnavailable, m.silence())
}

// silence says why there was no answer.
func (m *machine) silence() string {
	switch {
	case m.link == nil && m.trouble != "":
		return m.trouble
	case m.link == nil:
		return "no master was found"
	}
	return fmt.Sprintf("the master at %s did not answer in time", m.link.address)
}

// unconfirmed ends a call that a master has answered, but whose session nobody has confirmed since.
func (m *machine) unconfirmed(now clock.Instant, c *call) {
	c.held = false
	delete(c.session.held, c)
	switch {
	case c.failure != nil && c.why == nil: // it was refused, whatever became of the session
	case c.kind == mutation && c.failure == nil && c.wire.GetAcquire() != nil:
		c.stage = abandoned
		c.owner.unsettled++
		m.undo(now, c)
		c.failure = c.notDone(m)
	case c.kind == mutation && c.failure == nil:
		c.failure = c.unknown("it was done, but the session could not be confirmed since")
	default:
		c.failure = c.notDone(m)
	}
	c.answer = nil
	m.disarm(c)
	m.out.ready = append(m.out.ready, c)
}
