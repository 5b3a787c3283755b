package e2e

import (
	"fmt"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/proccell"
)

// keeper holds a lock from the beginning of a siege to its end, while others try to get it.
type keeper struct {
	chapter *chapter
	end     func() // sees that it still holds it, and lets it go
}

// keptPlace makes the file whose lock is kept.
func (s *siege) keptPlace() *chapter {
	p := &place{kind: locks, name: fmt.Sprint("kept-", len(s.keepers))}
	s.ok(p.open(within(s.T, callLimit), s.cell.Name(), s.callers[0].session))
	return p.chapters[0]
}

func (s *siege) keepByLibrary(mode lockfs.Mode) keeper {
	c, ch := newCaller(s), s.keptPlace()
	a := c.attempt(ch, asked{verb: acquires, owner: c.owner(), mode: mode}, callLimit, false)
	seq, err := c.session.Acquire(a.ctx, client.Acquire{Path: c.path(ch), Owner: c.number, Mode: mode, LockDelay: lockDelay})
	s.ok(err)
	a.ended(answered{generation: seq.Generation}, nil)
	c.doing.Store(nil)
	return keeper{ch, func() {
		state, err := c.session.LockState(within(s.T, callLimit), c.path(ch), ch.made.Instance)
		if err != nil || state.Mode != mode || state.Generation != seq.Generation || len(state.Holders) != 1 {
			s.Errorf("the lock kept as %v is %+v, %v", seq, state, err)
		}
		if of := c.release(ch); of != done {
			s.Errorf("the release of %v was %s", seq, of)
		}
	}}
}

func (s *siege) keepByFlock(on *proccell.Mount) keeper {
	w, ch := newShell(s, on), s.keptPlace()
	in := asked{verb: acquires, owner: w.owner(), mode: lockfs.Exclusive}
	var kept uint64
	held := w.do(in, ch, `exec 9<>$f && flock -x 9`, callLimit, func() answered {
		kept = w.holding(ch, lockfs.Exclusive)
		return answered{generation: kept}
	})
	if held != done {
		s.Fatalf("flock of %s: %s", ch.name, held)
	}
	w.doing.Store(nil)
	return keeper{ch, func() {
		if now, want := s.sequencerOf(on, ch.name), fmt.Sprintf("%s:EXCLUSIVE:%d", pathOf(s.cell.Name(), ch.name), kept); now != want {
			s.Errorf("the lock kept as %s is %s", want, now)
		}
		w.letGo(ch, in.owner, "-x")
	}}
}
