package store

import (
	"cmp"
	"fmt"
	"slices"

	"lockfs"
	"lockfs/store/storepb"
)

// An Outcome is what became of a proposal.
type Outcome struct {
	// Refused: the proposal is of another epoch than the cell's (or took office in none above it,
	// or came before the cell had its seed). Nothing was done and nothing else is set.
	Refused bool
	Results []*storepb.Result // one a command, in order; shared with the state, never changed
	Effects Effects
}

// Apply changes the state by one committed proposal. Index is that of its log entry, which may hold
// several proposals; it never goes back. A command that cannot be done says so in its result and
// leaves nothing behind, whatever becomes of those before and after it.
//
// An error means that this replica must stop, for it would differ from others if it went on, or does
// already: the proposal has a command that this version does not know, or raises the cell to a level
// that it does not know; a majority has other records (ErrDiffers); or the log goes backwards. The
// state is then as it was.
func (s *State) Apply(index uint64, p *storepb.Proposal) (Outcome, error) {
	if index < s.applied {
		return Outcome{}, fmt.Errorf("apply entry %d: entry %d is applied already", index, s.applied)
	}
	if err := checkKnown(p.ProtoReflect()); err != nil {
		return Outcome{}, fmt.Errorf("apply entry %d: %w", index, err)
	}
	if s.refuses(p) {
		s.applied = index
		return Outcome{Refused: true}, nil
	}
	if err := cmp.Or(s.checkRaises(p), s.checkHashes(p)); err != nil {
		return Outcome{}, fmt.Errorf("apply entry %d: %w", index, err)
	}
	s.applied = index
	s.cell.time = max(s.cell.time, p.Time)
	s.effects = Effects{}
	results := make([]*storepb.Result, len(p.Commands))
	for i, c := range p.Commands {
		results[i] = s.command(p, i, c)
		clear(s.undo) // lets go of the records that were replaced
		s.undo = s.undo[:0]
	}
	return Outcome{Results: results, Effects: s.takeEffects()}, nil
}

// refuses tells proposals of a master that is not, or no longer, the cell's.
func (s *State) refuses(p *storepb.Proposal) bool {
	if len(p.Commands) > 0 {
		if take := p.Commands[0].GetTakeOffice(); take != nil {
			return p.Epoch <= s.cell.epoch || s.cell.clusterID == 0 && !validSeed(take.Seed)
		}
	}
	return s.cell.clusterID == 0 || p.Epoch != s.cell.epoch
}

func (s *State) command(p *storepb.Proposal, place int, c *storepb.Command) *storepb.Result {
	if err := s.checkLevel(c); err != nil {
		return failure(c.GetMutation().GetNumber(), err) // which stays open: it may be tried again
	}
	if m := c.GetMutation(); m != nil {
		return s.mutate(m)
	}
	start := s.savepoint()
	result, err := s.masterCommand(p, place, c)
	if err != nil {
		s.rollback(start)
		return failure(0, err)
	}
	return result
}

// masterCommand does the commands that a master gives of itself.
func (s *State) masterCommand(p *storepb.Proposal, place int, c *storepb.Command) (*storepb.Result, error) {
	switch c := c.Command.(type) {
	case *storepb.Command_TakeOffice:
		return s.takeOffice(p.Epoch, place, c.TakeOffice.Seed)
	case *storepb.Command_CreateSession:
		return s.createSession(c.CreateSession)
	case *storepb.Command_ExpireSession:
		return s.expireSession(c.ExpireSession.Session)
	case *storepb.Command_ClearDelay:
		return s.clearDelay(c.ClearDelay)
	case *storepb.Command_DeleteOrphan:
		return s.deleteOrphan(c.DeleteOrphan)
	case *storepb.Command_RaiseLevel:
		return s.raiseLevel(c.RaiseLevel.Level)
	case *storepb.Command_CheckHash:
		return s.noteHash(), nil
	}
	panic("store: a command that checkKnown let pass")
}

// A savepoint is where rollback returns to.
type savepoint struct {
	undo    int
	cell    cell
	effects extent
}

func (s *State) savepoint() savepoint {
	return savepoint{len(s.undo), s.cell, s.effects.extent()}
}

func (s *State) rollback(to savepoint) {
	for _, undo := range slices.Backward(s.undo[to.undo:]) {
		undo()
	}
	s.undo = s.undo[:to.undo]
	s.cell = to.cell
	s.effects.cut(to.effects)
}

func (s *State) takeEffects() Effects {
	e := s.effects
	s.effects = Effects{}
	e.tidy()
	// A later command of the same proposal may have deleted one, put something into it, or made it
	// somebody's.
	e.Orphans = slices.DeleteFunc(e.Orphans, func(id NodeID) bool {
		n := s.nodes[id.Path]
		return n == nil || n.instance != id.Instance || len(s.children[id.Path]) > 0 || !s.orphaned(n)
	})
	return e
}

func validSeed(seed *storepb.Seed) bool {
	l := seed.GetLimits()
	return seed.GetClusterId() != 0 && seed.LeaseMs >= 0 && seed.GraceMs >= 0 &&
		min(l.GetFileBytes(), l.GetNodes(), l.GetBytes(), l.GetChildren()) >= 0
}

func (s *State) takeOffice(epoch uint64, place int, seed *storepb.Seed) (*storepb.Result, error) {
	if place > 0 {
		return nil, failed(lockfs.ErrInvalid, "a master takes office before it proposes anything else")
	}
	s.cell.epoch = epoch
	if s.cell.clusterID == 0 {
		s.plant(seed)
	}
	return &storepb.Result{}, nil
}

// plant gives a new cell its settings, where 0 is the default, and its root.
func (s *State) plant(seed *storepb.Seed) {
	c, l := &s.cell, seed.Limits
	c.clusterID = seed.ClusterId
	c.level = 1
	c.leaseMS = orDefault(seed.LeaseMs, lockfs.DefaultLease.Milliseconds())
	c.graceMS = orDefault(seed.GraceMs, lockfs.DefaultGrace.Milliseconds())
	c.limits = lockfs.Limits{
		FileBytes: orDefault(l.GetFileBytes(), lockfs.DefaultLimits.FileBytes),
		Nodes:     orDefault(l.GetNodes(), lockfs.DefaultLimits.Nodes),
		Bytes:     orDefault(l.GetBytes(), lockfs.DefaultLimits.Bytes),
		Children:  orDefault(l.GetChildren(), lockfs.DefaultLimits.Children),
	}
	root := s.newNode(lockfs.Path(lockfs.Root+"/"+c.name), lockfs.Dir)
	root.acl = &lockfs.ACLNames{}
	s.setNode(root.path, root)
}

func orDefault(value, otherwise int64) int64 {
	if value == 0 {
		return otherwise
	}
	return value
}

// failed makes the error of a command that cannot be done.
func failed(kind lockfs.Kind, format string, args ...any) error {
	return &lockfs.Error{Kind: kind, Detail: fmt.Sprintf(format, args...)}
}

// failure makes a result of an error. The kind says what its detail does not.
func failure(number uint64, err error) *storepb.Result {
	r := &storepb.Result{Number: number, Kind: uint32(lockfs.KindOf(err))}
	if e, ok := err.(*lockfs.Error); ok {
		r.Detail = e.Detail
	} else if _, bare := err.(lockfs.Kind); !bare {
		r.Detail = err.Error()
	}
	return r
}
