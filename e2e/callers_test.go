package e2e

import (
	"context"
	"errors"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/sequencer"
)

// caller is a worker who uses the library. Its session must live as long as it does.
type caller struct {
	*worker
	session *client.Session
	number  uint64 // the owner's, whenever it takes a lock
}

func newCaller(s *siege) *caller {
	c := &caller{worker: s.newWorker("library")}
	cell, err := client.Open(client.Config{Cell: s.cell.Name(), Addresses: s.addresses()})
	s.ok(err)
	s.Cleanup(func() { cell.Close(s.Context()) }) // which has ended then, and so nothing is waited for
	c.session, err = cell.Session(within(s.T, callLimit))
	s.ok(err)
	c.number = c.session.NewOwner()
	return c
}

func (c *caller) run() {
	c.work(100*time.Millisecond, c.read, c.read, c.read, c.write, c.write, c.compare, c.compare, c.append, c.append, c.readJournal,
		c.lock, c.lock, c.tryLock, c.tryKept)
	if err := c.session.Err(); err != nil {
		c.Errorf("worker %d: %v", c.id, err)
	}
}

// attempt is one call by the library, on the way into a chapter.
type attempt struct {
	*caller
	chapter *chapter
	in      asked
	ctx     context.Context
	cancel  context.CancelFunc
	hasty   bool // it may end in the middle
	began   int64
}

// attempt begins a call, which has time enough, or is given up in the middle.
func (c *caller) attempt(ch *chapter, in asked, limit time.Duration, hasty bool) *attempt {
	if hasty {
		limit = time.Duration(c.random.Int64N(int64(300 * time.Millisecond)))
	}
	c.begins(in, ch)
	a := &attempt{caller: c, chapter: ch, in: in, hasty: hasty, began: c.moments.now()}
	a.ctx, a.cancel = context.WithTimeout(c.Context(), limit)
	return a
}

// seldom is true once in twenty times.
func (c *caller) seldom() bool { return c.random.IntN(20) == 0 }

// path is the chapter's.
func (c *caller) path(ch *chapter) lockfs.Path { return pathOf(c.cell.Name(), ch.name) }

// ended records how the call ended, and returns that. What was surely not done is not recorded: then
// nobody may see anything of it.
func (a *attempt) ended(out answered, err error) fate {
	a.cancel()
	out.fate = a.fateOf(err)
	if out.fate != failed {
		a.chapter.record(a.id, a.began, a.in, out, a.moments.now())
	}
	return out.fate
}

// fateOf sorts errors. One that kills and haste do not explain is the test's.
func (a *attempt) fateOf(err error) fate {
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil:
		return done
	case late && !a.hasty:
	case errors.Is(err, lockfs.ErrUnknown):
		return unknown
	case errors.Is(err, lockfs.ErrUnavailable) || late:
		return failed
	case errors.Is(err, lockfs.ErrChanged), errors.Is(err, lockfs.ErrBusy), errors.Is(err, lockfs.ErrNotHeld):
		return denied
	case a.Context().Err() != nil: // the test is over
		return unknown
	}
	a.Errorf("worker %d: %v of %s: %v", a.id, a.in, a.chapter.name, err)
	return unknown
}

// here is the chapter at a place, which a caller makes where the last one is full.
func (c *caller) here(k kind) *chapter {
	p := c.anywhere(k)
	now := p.current.Load()
	if now.length() < chapterLength || !p.turning.TryLock() {
		return now
	}
	defer p.turning.Unlock()
	if p.current.Load() == now {
		a := c.attempt(now, asked{verb: "make the successor"}, callLimit, false)
		a.fateOf(p.open(a.ctx, c.cell.Name(), c.session))
		a.cancel()
	}
	return p.current.Load()
}

func (c *caller) read()        { c.readIn(c.here(registers)) }
func (c *caller) readJournal() { c.readIn(c.here(journals)) }

// readIn reads, and returns the generation that it read, or 0.
func (c *caller) readIn(ch *chapter) uint64 {
	a := c.attempt(ch, asked{verb: reads}, callLimit, c.seldom())
	content, st, err := c.session.Read(a.ctx, c.path(ch), ch.made.Instance)
	if a.cancel(); err != nil {
		a.fateOf(err)
		return 0
	}
	a.ended(answered{value: ch.shown(content), generation: st.ContentGeneration}, nil)
	return st.ContentGeneration
}

func (c *caller) write() {
	c.edit(c.here(registers), asked{verb: writes, value: c.unique()}, sequencer.Sequencer{})
}

// compare replaces what it has read, unless somebody else was faster.
func (c *caller) compare() {
	ch := c.here(registers)
	if generation := c.readIn(ch); generation != 0 {
		c.edit(ch, asked{verb: writes, value: c.unique(), ifGeneration: generation}, sequencer.Sequencer{})
	}
}

func (c *caller) append() {
	c.edit(c.here(journals), asked{verb: appends, value: c.unique()}, sequencer.Sequencer{})
}

func (c *caller) edit(ch *chapter, in asked, guard sequencer.Sequencer) {
	change := client.Change{Kind: client.Append, Data: []byte(in.value)}
	edit := client.Edit{Path: c.path(ch), Instance: ch.made.Instance, IfGeneration: in.ifGeneration, Guard: guard,
		Changes: []client.Change{change}}
	if in.verb == writes {
		edit.Changes = []client.Change{{Kind: client.Truncate}, change}
	}
	a := c.attempt(ch, in, callLimit, c.seldom())
	st, err := c.session.Edit(a.ctx, edit)
	out := answered{generation: st.ContentGeneration}
	if err != nil {
		out.generation = 0
	}
	if a.ended(out, err) == done {
		c.count(c.host, ch.kind)
	}
}

func (c *caller) lock() {
	ch := c.here(locks)
	c.hold(ch, c.mode(), true)
}

func (c *caller) tryLock() {
	ch := c.here(locks)
	c.hold(ch, c.mode(), false)
}

// tryKept asks for a lock that is held from the beginning to the end.
func (c *caller) tryKept() {
	k := c.keepers[c.random.IntN(len(c.keepers))]
	if k.chapter.length() < chapterLength {
		c.hold(k.chapter, lockfs.Exclusive, false)
	}
}

// hold takes the lock, as an owner of its own in the history, does something on the strength of it,
// and lets it go.
func (c *caller) hold(ch *chapter, mode lockfs.Mode, wait bool) {
	c.holds++
	a := c.attempt(ch, asked{verb: acquires, owner: c.owner(), mode: mode}, waitLimit, wait && c.seldom())
	seq, err := c.session.Acquire(a.ctx, client.Acquire{Path: c.path(ch), Instance: ch.made.Instance, Owner: c.number,
		Mode: mode, Wait: wait, LockDelay: lockDelay, Note: c.name()})
	switch a.fateOf(err) {
	case done:
		a.ended(answered{generation: seq.Generation}, nil)
		c.holding(ch, seq)
		c.release(ch)
		c.count(c.host, locks)
	case denied:
		a.ended(answered{}, err)
	default:
		a.givenUp(c.release(ch))
	}
}

// givenUp records an acquire that ended without a grant, by the fate of the release after it, which
// waits for what becomes of it. The session itself gives back what is granted too late.
func (a *attempt) givenUp(released fate) {
	a.cancel()
	now := a.moments.now()
	switch released {
	case denied:
		back := asked{verb: releases, owner: a.in.owner}
		a.chapter.record(a.id, a.began, a.in, answered{fate: undone}, now)
		a.chapter.record(a.id, a.began, back, answered{fate: undone}, now)
	default:
		a.chapter.record(a.id, a.began, a.in, answered{fate: released}, now)
	}
}

// holding is what a holder does. It must be the only one, and the cell must take its word.
func (c *caller) holding(ch *chapter, seq sequencer.Sequencer) {
	local, err := c.referee.lockLocal(ch.name, seq.Mode)
	if err != nil {
		c.Errorf("worker %d with %v: %v", c.id, seq, err)
		return
	}
	defer c.referee.unlockLocal(local)
	if err := c.referee.enter(ch.name, grant{seq.Mode, seq.Generation}); err != nil {
		c.Errorf("worker %d with %v: %v", c.id, seq, err)
	}
	if seq.Mode == lockfs.Exclusive {
		c.edit(c.here(registers), asked{verb: writes, value: c.unique()}, seq)
	} else {
		c.read()
	}
}

// release lets go of a lock, again until it is told that it was held or was not. It returns unknown
// where it was not held at last, but may have been before.
func (c *caller) release(ch *chapter) fate {
	dark := false
	for ended := time.Now().Add(waitLimit); time.Now().Before(ended) && c.session.Err() == nil && c.Context().Err() == nil; {
		a := c.attempt(ch, asked{verb: releases, owner: c.owner()}, callLimit, false)
		switch of := a.ended(answered{}, c.session.Release(a.ctx, c.path(ch), ch.made.Instance, c.number)); of {
		case done:
			return done
		case denied:
			if dark {
				return unknown
			}
			return denied
		case unknown:
			dark = true
		}
	}
	if c.Context().Err() == nil { // the test is not over
		c.Errorf("worker %d: %s was not released within %v; its session: %v", c.id, ch.name, waitLimit, c.session.Err())
	}
	return unknown
}
