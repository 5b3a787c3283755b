package client

import (
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// giveUpWait is how long a caller whose context has ended waits to learn the fate of its mutation.
const giveUpWait = 100 * time.Millisecond

// startGiveUp asks for the fate of a mutation that was sent, for a caller who waits until then and no
// longer. A copy of it may be anywhere: only the log can say that it will not be done.
func (m *machine) startGiveUp(now clock.Instant, c *call, until clock.Instant) {
	c.stage = givingUp
	m.arm(c, until)
	if c.owner != nil {
		c.owner.unsettled++
	}
	c.giveUp = newCall(background, c.session, "give up", c.path, &lockpb.Call{Op: &lockpb.Call_GiveUp{
		GiveUp: &lockpb.GiveUp{Number: c.number}}})
	c.giveUp.of = c
	m.admit(now, c.giveUp)
}

// fateOf takes the answer to a give-up.
func (m *machine) fateOf(now clock.Instant, g *call, a *lockpb.Answer) {
	c := g.of
	if _, open := m.open[c]; !open {
		return // its own answer came first
	}
	switch {
	case a.GetKind() != 0:
		m.log.Warn("a request could not be given up", "request", c.op, "path", c.path, "why", a.Err(g.op, g.path))
		m.abandon(c)
		m.settle(now, c, &lockpb.Answer{Kind: uint32(lockfs.ErrUnknown)})
	case a.GetGaveUp().GetGivenUp():
		m.settle(now, c, &lockpb.Answer{Kind: uint32(lockfs.ErrGivenUp)})
	default:
		m.settle(now, c, a.GetGaveUp().GetAnswer())
	}
}

// abandon lets the caller of a call go whose fate could not be learnt in time. Its give-up goes on;
// a lock that it turns out to have been granted is given back.
func (m *machine) abandon(c *call) {
	c.stage = abandoned
	switch {
	case c.wire.GetAcquire() != nil:
		m.tell(c, nil, c.notDone(m))
	case c.why != nil:
		m.tell(c, nil, c.unknown("interrupted"))
	default:
		m.tell(c, nil, c.unknown(m.silence()))
	}
}

// undo takes back a grant that came after its caller had left: the owner holds what it held before.
func (m *machine) undo(now clock.Instant, c *call) {
	o, asked := c.owner, c.wire.GetAcquire()
	held := o.locks[c.path]
	if o.closer != nil || held == nil || c.before != nil && c.before.mode == held.mode {
		m.settled(now, o)
		return
	}
	var wire *lockpb.Call
	if c.before == nil {
		wire = &lockpb.Call{Op: &lockpb.Call_Release{Release: &lockpb.Release{
			Path: string(c.path), Instance: held.instance, Owner: o.id}}}
	} else {
		wire = &lockpb.Call{Op: &lockpb.Call_Acquire{Acquire: &lockpb.Acquire{
			Path: string(c.path), Instance: held.instance, Owner: o.id, Mode: uint32(c.before.mode),
			LockDelayMs: asked.GetLockDelayMs(), Note: asked.GetNote()}}}
	}
	u := newCall(background, c.session, "take back", c.path, wire)
	u.owner, u.undoes = o, true
	m.admit(now, u)
}

// settled says that one acquire of the owner that was given up is settled. Behind the last of them
// go the calls that came meanwhile.
func (m *machine) settled(now clock.Instant, o *owner) {
	o.unsettled--
	if o.unsettled > 0 {
		return
	}
	m.unpark(now, o)
}
