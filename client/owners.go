package client

import (
	"slices"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// owner is who holds locks, or wants some, within a session.
type owner struct {
	id        uint64
	session   *session
	locks     map[lockfs.Path]*heldLock
	calls     map[*call]struct{} // its calls that are open
	unsettled int                // acquires that are given up or taken back: later calls wait for them
	lost      bool               // a lock went away against its will: it gets no other
	closer    *call              // CloseOwner, once that is under way
}

// heldLock is a lock as the session knows it. It is what the master is held to when it changes.
type heldLock struct {
	instance   uint64
	mode       lockfs.Mode
	generation uint64
}

// owner returns the owner of an id, new if need be.
func (s *session) owner(id uint64) *owner {
	o, ok := s.owners[id]
	if !ok {
		o = &owner{id: id, session: s, locks: make(map[lockfs.Path]*heldLock), calls: make(map[*call]struct{})}
		s.owners[id] = o
	}
	return o
}

// tidy forgets an owner of whom there is nothing to know.
func (o *owner) tidy() {
	if o.session.owners[o.id] == o && len(o.locks) == 0 && len(o.calls) == 0 && o.unsettled == 0 && !o.lost && o.closer == nil {
		delete(o.session.owners, o.id)
	}
}

// locks counts the locks that a session holds.
func (s *session) locks() int {
	n := 0
	for _, o := range s.owners {
		n += len(o.locks)
	}
	return n
}

// settleLock takes what a master says of an Acquire, a Release or a CloseOwner.
func (m *machine) settleLock(now clock.Instant, c *call, a *lockpb.Answer) {
	o := c.owner
	defer o.tidy()
	switch {
	case c == o.closer:
		m.ownerClosed(c, a)
		return
	case c.wire.GetAcquire() != nil && a.GetKind() == 0:
		c.before = o.locks[c.path]
		g := a.GetGranted()
		o.locks[c.path] = &heldLock{instance: g.GetInstance(), mode: lockfs.Mode(g.GetMode()), generation: g.GetGeneration()}
	case c.wire.GetRelease() != nil && gone(lockfs.Kind(a.GetKind())):
		delete(o.locks, c.path)
	}
	if c.undoes {
		if a.GetKind() != 0 && c.wire.GetAcquire() != nil {
			m.log.Warn("a lock keeps the mode of an acquire that was given up", "path", c.path, "why", a.Err(c.op, ""))
		}
		m.settled(now, o)
		return
	}
	s := c.stage
	m.conclude(now, c, a)
	switch {
	case s == waiting:
	case s == abandoned && c.wire.GetAcquire() != nil && a.GetKind() == 0:
		m.undo(now, c)
	default:
		m.settled(now, o)
	}
}

// gone reports whether an answer to Release means that the lock is not held any more.
func gone(kind lockfs.Kind) bool {
	return kind == 0 || kind == lockfs.ErrNotHeld || kind == lockfs.ErrStale || kind == lockfs.ErrNotExist
}

// unpark lets the calls go that waited for an earlier acquire of their owner.
func (m *machine) unpark(now clock.Instant, o *owner) {
	for _, c := range inOrder(o.calls) {
		if c.parked {
			m.lastSeq++
			c.seq, c.parked = m.lastSeq, false // it is sent behind what went meanwhile
			m.send(now, c)
		}
	}
}

// closeOwner has everything of an owner released, and its acquires given up, before any later call
// of the session.
func (m *machine) closeOwner(now clock.Instant, s *session, id uint64) {
	m.tick(now)
	o, ok := s.owners[id]
	if !ok || s.err != nil || o.closer != nil {
		return
	}
	var sent []uint64
	for _, c := range inOrder(o.calls) {
		released := c.wire.GetAcquire() != nil && !c.undoes || c.number == 0
		if c.number == 0 {
			m.forget(c)
		} else if c.wire.GetAcquire() != nil {
			sent = append(sent, c.number)
		}
		if released {
			c.stage = abandoned
			m.tell(c, nil, c.fail(lockfs.ErrReleased, ""))
		}
	}
	m.releaseHeld(o)
	if len(sent) == 0 && len(o.locks) == 0 && len(o.calls) == 0 {
		delete(s.owners, id)
		return
	}
	slices.Sort(sent)
	o.closer = newCall(background, s, "close owner", "", &lockpb.Call{Op: &lockpb.Call_CloseOwner{
		CloseOwner: &lockpb.CloseOwner{Owner: id, Numbers: sent}}})
	o.closer.owner = o
	m.admit(now, o.closer)
}

// releaseHeld tells those who were granted a lock, and could not collect it yet, that they have
// lost it again.
func (m *machine) releaseHeld(o *owner) {
	for _, c := range inOrder(o.session.held) {
		if c.owner == o && c.wire.GetAcquire() != nil {
			c.held = false
			delete(o.session.held, c)
			c.answer, c.failure = nil, c.fail(lockfs.ErrReleased, "")
			m.out.ready = append(m.out.ready, c)
		}
	}
}

// ownerClosed takes the answer to CloseOwner: the numbers of the owner's acquires are given up.
func (m *machine) ownerClosed(c *call, a *lockpb.Answer) {
	o := c.owner
	if a.GetKind() != 0 {
		m.log.Warn("an owner could not be closed", "owner", o.id, "why", a.Err(c.op, ""))
	}
	for _, open := range inOrder(o.calls) {
		if open.wire.GetAcquire() != nil {
			m.forget(open)
			o.session.seen.add(open.number)
		}
	}
	clear(o.locks)
	o.unsettled, o.lost, o.closer = 0, false, nil
	delete(o.session.owners, o.id)
}

// reconcile compares what the master says that the session holds with what the session knows,
// wherever no call is under way that may change it. What is missing there is lost; what is too much
// is let go.
func (m *machine) reconcile(now clock.Instant, locks []*lockpb.HeldLock) {
	s := m.session
	type key struct {
		owner uint64
		path  lockfs.Path
	}
	theirs := make(map[key]heldLock)
	for _, l := range locks {
		k := key{l.GetOwner(), lockfs.Path(l.GetPath())}
		theirs[k] = heldLock{l.GetInstance(), lockfs.Mode(l.GetMode()), l.GetGeneration()}
		o := s.owner(k.owner)
		if _, known := o.locks[k.path]; !known && len(o.calls) == 0 {
			m.log.Warn("letting go of a lock that nobody here knows of", "path", k.path, "owner", k.owner)
			m.admit(now, releaseOf(o, k.path, l.GetInstance()))
		}
		o.tidy()
	}
	for id, o := range s.owners {
		busy := len(o.calls) > 0
		for path, mine := range o.locks {
			their, held := theirs[key{id, path}]
			if busy || held && their == *mine {
				continue
			}
			m.log.Error("a lock is lost", "path", path, "mode", mine.mode, "generation", mine.generation, "session", s.id)
			delete(o.locks, path)
			o.lost = true
			if held { // it was lost and taken again, and not by us
				m.admit(now, releaseOf(o, path, their.instance))
			}
		}
	}
}

func releaseOf(o *owner, path lockfs.Path, instance uint64) *call {
	c := newCall(background, o.session, "release", path, &lockpb.Call{Op: &lockpb.Call_Release{
		Release: &lockpb.Release{Path: string(path), Instance: instance, Owner: o.id}}})
	c.owner = o
	return c
}
