package store

import (
	"fmt"

	"lockfs"
	"lockfs/store/storepb"
)

// mutate does a client's numbered mutation, once: a number that is done answers what it answered
// before.
func (s *State) mutate(m *storepb.Mutation) *storepb.Result {
	if s.sessions[m.Session] == nil {
		return failure(m.Number, lockfs.ErrSession)
	}
	s.confirm(m.Session, m.Number, m.Confirmed)
	if saved, done := s.Done(m.Session, m.Number); done {
		if saved == nil {
			return failure(m.Number, failed(lockfs.ErrInvalid, "number %d is confirmed", m.Number))
		}
		return saved
	}
	if err := admit(s.sessions[m.Session], m); err != nil {
		return failure(m.Number, err) // and the number stays open: it may be tried again
	}
	start := s.savepoint()
	result, err := s.attempt(m.Session, m)
	if err != nil {
		s.rollback(start)
		result = failure(m.Number, err)
		if m.GetAcquire().GetWaits() && (result.Kind == uint32(lockfs.ErrBusy) || result.Kind == uint32(lockfs.ErrLockDelay)) {
			return result // the number stays open until the lock is granted or the wait given up
		}
	}
	result.Number = m.Number
	s.finish(m.Session, result)
	return result
}

// attempt does a mutation, or one of a batch, for a session. What it leaves behind when it fails is
// for the caller to roll back.
func (s *State) attempt(session uint64, m *storepb.Mutation) (*storepb.Result, error) {
	if err := s.checkGuard(m); err != nil {
		return nil, err
	}
	switch op := m.Op.(type) {
	case *storepb.Mutation_Create:
		return s.create(session, op.Create)
	case *storepb.Mutation_Delete:
		return s.delete(op.Delete)
	case *storepb.Mutation_Edit:
		return s.edit(op.Edit)
	case *storepb.Mutation_SetAcl:
		return s.setACL(op.SetAcl)
	case *storepb.Mutation_SetPermanence:
		return s.setPermanence(session, op.SetPermanence)
	case *storepb.Mutation_Rename:
		return s.rename(op.Rename)
	case *storepb.Mutation_Batch:
		return s.batch(session, op.Batch)
	case *storepb.Mutation_Acquire:
		return s.acquire(session, op.Acquire)
	case *storepb.Mutation_Release:
		return s.release(session, op.Release)
	case *storepb.Mutation_CloseOwner:
		return s.closeOwner(session, m.Number, op.CloseOwner)
	case *storepb.Mutation_GiveUp:
		return s.giveUp(session, m.Number, op.GiveUp.Number)
	case *storepb.Mutation_CloseSession:
		return s.closeSession(session, op.CloseSession)
	}
	panic("store: a mutation that checkKnown let pass")
}

// changesTree tells the mutations that change nodes, which alone may stand in a batch.
func changesTree(m *storepb.Mutation) bool {
	switch m.Op.(type) {
	case *storepb.Mutation_Create, *storepb.Mutation_Delete, *storepb.Mutation_Edit,
		*storepb.Mutation_SetAcl, *storepb.Mutation_SetPermanence, *storepb.Mutation_Rename:
		return true
	}
	return false
}

// checkGuard fails with ErrSequencer unless the lock that guards the mutation is held, by anyone,
// as the sequencer says. One of a shared lock permits no change of nodes: it stays valid for as
// long as any reader holds the lock.
func (s *State) checkGuard(m *storepb.Mutation) error {
	g := m.Guard
	if g == nil {
		return nil
	}
	p, err := s.parse(g.Path)
	if err != nil {
		return err
	}
	n := s.nodes[p]
	if n == nil || n.mode == lockfs.Free || uint32(n.mode) != g.Mode || n.lockGeneration != g.Generation {
		return failed(lockfs.ErrSequencer, "%s is not held %s at generation %d", p, lockfs.Mode(g.Mode), g.Generation)
	}
	if n.mode == lockfs.Shared && (changesTree(m) || m.GetBatch() != nil) {
		return failed(lockfs.ErrSequencer, "a shared lock of %s permits no write", p)
	}
	return nil
}

// batch does all of its mutations or, when it fails, has its caller undo those that were done.
func (s *State) batch(session uint64, b *storepb.Batch) (*storepb.Result, error) {
	for i, c := range b.Conditions {
		if err := s.checkCondition(c); err != nil {
			return nil, inBatch("condition", i, err)
		}
	}
	result := &storepb.Result{}
	for i, m := range b.Mutations {
		if !changesTree(m) || m.Session != 0 || m.Number != 0 || len(m.Confirmed) > 0 {
			return nil, failed(lockfs.ErrInvalid, "mutation %d cannot be part of a batch", i+1)
		}
		one, err := s.attempt(session, m)
		if err != nil {
			return nil, inBatch("mutation", i, err)
		}
		result.Batch = append(result.Batch, one)
	}
	return result, nil
}

func inBatch(part string, place int, err error) error {
	r := failure(0, err)
	detail := fmt.Sprintf("%s %d of the batch", part, place+1)
	if r.Detail != "" {
		detail += ": " + r.Detail
	}
	return failed(lockfs.Kind(r.Kind), "%s", detail)
}

func (s *State) checkCondition(c *storepb.Condition) error {
	p, err := s.parse(c.Path)
	if err != nil {
		return err
	}
	if c.Absent {
		if s.nodes[p] != nil {
			return failed(lockfs.ErrExist, "%s", p)
		}
		return nil
	}
	n, err := s.find("", p, c.Instance)
	if err != nil {
		return err
	}
	return n.checkGeneration(c.ContentGeneration)
}
