package store

import (
	"maps"
	"slices"
	"time"

	"lockfs"
	"lockfs/store/storepb"
)

// Blocked returns nil if an acquire like this would be granted now, and otherwise what it would
// fail with: ErrBusy while others hold a conflicting lock, ErrLockDelay while only a mark of
// conflicting mode is in the way. Whoever waits in a queue before it is the master's business.
func (s *State) Blocked(p lockfs.Path, instance, session, owner uint64, mode lockfs.Mode) error {
	if s.sessions[session] == nil {
		return &lockfs.Error{Op: "lock", Path: p, Kind: lockfs.ErrSession}
	}
	n, err := s.find("lock", p, instance)
	if err != nil {
		return err
	}
	return s.blocked(n, session, owner, mode)
}

func (s *State) blocked(n *node, session, owner uint64, mode lockfs.Mode) error {
	if mode != lockfs.Shared && mode != lockfs.Exclusive {
		return &lockfs.Error{Op: "lock", Path: n.path, Kind: lockfs.ErrInvalid, Detail: "a lock is shared or exclusive"}
	}
	others := len(n.holders)
	if n.heldBy(session, owner) {
		if n.mode == mode {
			return nil
		}
		others--
	}
	if others > 0 && mode.Conflicts(n.mode) {
		return &lockfs.Error{Op: "lock", Path: n.path, Kind: lockfs.ErrBusy}
	}
	for _, m := range s.marks(n.path) {
		if mode.Conflicts(m.mode) {
			return &lockfs.Error{Op: "lock", Path: n.path, Kind: lockfs.ErrLockDelay}
		}
	}
	return nil
}

func (n *node) heldBy(session, owner uint64) bool {
	return slices.ContainsFunc(n.holders, holder{session: session, owner: owner}.same)
}

func (s *State) acquire(session uint64, a *storepb.Acquire) (*storepb.Result, error) {
	if a.LockDelayMs < 0 || a.LockDelayMs > lockfs.MaxLockDelay.Milliseconds() {
		return nil, failed(lockfs.ErrInvalid, "a lock-delay is between 0 and %v, not %v",
			lockfs.MaxLockDelay, time.Duration(a.LockDelayMs)*time.Millisecond)
	}
	if err := checkNotes(a.Note); err != nil {
		return nil, err
	}
	n, err := s.locate(a.Path, a.Instance)
	if err != nil {
		return nil, err
	}
	mode := lockfs.Mode(a.Mode)
	if uint32(mode) != a.Mode {
		mode = lockfs.Free // a number that no Mode has is as bad
	}
	if err := s.blocked(n, session, a.Owner, mode); err != nil {
		return nil, err
	}
	n = s.grant(n, mode, holder{session, a.Owner, s.cell.time, a.LockDelayMs, a.Note})
	return s.lockResult(n, mode), nil
}

// grant gives the lock to a holder whom nothing blocks, or another mode to one who has it.
func (s *State) grant(n *node, mode lockfs.Mode, h holder) *node {
	if n.mode == mode && n.heldBy(h.session, h.owner) {
		return n
	}
	next := *n
	next.holders = append(withoutHolder(n.holders, h), h)
	if n.mode != mode {
		next.mode = mode
		next.lockGeneration++
	}
	s.setNode(n.path, &next)
	return &next
}

func (s *State) release(session uint64, r *storepb.Release) (*storepb.Result, error) {
	n, err := s.locate(r.Path, r.Instance)
	if err != nil {
		return nil, err
	}
	if !n.heldBy(session, r.Owner) {
		return nil, failed(lockfs.ErrNotHeld, "by this owner")
	}
	return s.lockResult(s.freeLock(n, session, r.Owner), lockfs.Free), nil
}

func (s *State) lockResult(n *node, holds lockfs.Mode) *storepb.Result {
	return &storepb.Result{Stat: s.statMessage(n), LockMode: uint32(holds), LockGeneration: n.lockGeneration}
}

// closeOwner releases what an owner holds and gives up what it still waits for; not itself, which is
// under number.
func (s *State) closeOwner(session, number uint64, c *storepb.CloseOwner) (*storepb.Result, error) {
	for _, open := range c.Numbers {
		if _, done := s.Done(session, open); !done && open != 0 && open != number {
			s.abandon(session, open)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(s.held[session][c.Owner])) {
		s.freeLock(s.nodes[p], session, c.Owner)
	}
	return &storepb.Result{}, nil
}

// freeLock takes the lock from a holder who wants it no more.
func (s *State) freeLock(n *node, session, owner uint64) *node {
	next := *n
	next.holders = withoutHolder(n.holders, holder{session: session, owner: owner})
	if len(next.holders) == 0 {
		next.mode = lockfs.Free
	}
	s.setNode(n.path, &next)
	return &next
}

// expireLock takes the lock from a holder who may still believe in it, and marks the name with his
// lock-delay.
func (s *State) expireLock(n *node, session, owner uint64) {
	i := slices.IndexFunc(n.holders, holder{session: session, owner: owner}.same)
	delayMS := n.holders[i].delayMS
	s.freeLock(n, session, owner)
	s.effects.Lost = append(s.effects.Lost, Loss{n.id(), session, owner})
	if delayMS > 0 {
		s.addMark(n.path, mark{n.mode, delayMS, s.applied})
	}
}

func withoutHolder(holders []holder, h holder) []holder {
	return slices.DeleteFunc(slices.Clone(holders), h.same)
}

func (s *State) marks(p lockfs.Path) []mark {
	if d := s.delays[p]; d != nil {
		return d.marks
	}
	return nil
}

// addMark sets a mark. There is one a mode; of two, the longer delay counts from the later entry.
func (s *State) addMark(p lockfs.Path, m mark) {
	marks := slices.Clone(s.marks(p))
	i := slices.IndexFunc(marks, func(other mark) bool { return other.mode >= m.mode })
	switch {
	case i < 0:
		marks = append(marks, m)
	case marks[i].mode == m.mode:
		m.delayMS = max(m.delayMS, marks[i].delayMS)
		marks[i] = m
	default:
		marks = slices.Insert(marks, i, m)
	}
	s.setDelay(p, marks)
	s.effects.Delays = append(s.effects.Delays, delayOf(p, m))
}

// keepMarks clears the marks of a name that keep does not want.
func (s *State) keepMarks(p lockfs.Path, keep func(mark) bool) {
	marks := s.marks(p)
	kept := slices.DeleteFunc(slices.Clone(marks), func(m mark) bool { return !keep(m) })
	if len(kept) == len(marks) {
		return
	}
	s.setDelay(p, kept)
	if s.nodes[p] != nil {
		s.effects.Locks = append(s.effects.Locks, p)
	}
}

func (s *State) clearDelay(c *storepb.ClearDelay) (*storepb.Result, error) {
	p, err := s.parse(c.Path)
	if err != nil {
		return nil, err
	}
	s.keepMarks(p, func(m mark) bool { return m.index > c.Index })
	return &storepb.Result{}, nil
}
