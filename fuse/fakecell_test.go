package fuse

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"lockfs"
	"lockfs/client"
	"lockfs/sequencer"
)

// fakeCell is a cell in memory: a tree with locks and waiters in order of arrival, and sessions
// that end when a test says so. It has no lock-delay and no ACLs.
type fakeCell struct {
	mu       sync.Mutex
	nodes    map[lockfs.Path]*fakeNode
	counter  uint64 // of instances and sessions
	sessions map[uint64]*fakeSession
	away     chan struct{} // closed when the cell answers again; nil while it does
	calls    map[string]int
}

type fakeNode struct {
	lockfs.Stat
	content []byte
	mode    lockfs.Mode
	holders []fakeHolder
	waiters []*fakeWaiter
}

type fakeHolder struct {
	session *fakeSession
	owner   uint64
	note    string
}

type fakeWaiter struct {
	fakeHolder
	mode    lockfs.Mode
	granted chan error // of capacity 1
}

func newFakeCell() *fakeCell {
	c := &fakeCell{nodes: make(map[lockfs.Path]*fakeNode), sessions: make(map[uint64]*fakeSession), calls: make(map[string]int)}
	c.add("/ls/ny1", lockfs.Dir)
	return c
}

func (c *fakeCell) add(path lockfs.Path, typ lockfs.Type) *fakeNode {
	c.counter++
	n := &fakeNode{Stat: lockfs.Stat{
		Path: path, Type: typ, Instance: c.counter, ContentGeneration: 1, ACLGeneration: 1,
		Checksum: xxhash.Sum64(nil), Mtime: time.Unix(1_700_000_000, 0),
	}}
	c.nodes[path] = n
	return n
}

// leave makes the cell silent until the returned function is called.
func (c *fakeCell) leave() (back func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	away := make(chan struct{})
	c.away = away
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.away = nil
		close(away)
	}
}

// content is what is in a file.
func (c *fakeCell) content(path lockfs.Path) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[path]; n != nil {
		return string(n.content)
	}
	return "(no such file)"
}

// held is how many hold the lock of a node, waiting how many want it.
func (c *fakeCell) held(path lockfs.Path) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes[path].holders)
}

func (c *fakeCell) waiting(path lockfs.Path) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes[path].waiters)
}

// expire ends all sessions.
func (c *fakeCell) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sessions {
		s.endLocked()
	}
}

// host is what one mount is to the cell: it makes a session where there is none.
type fakeHost struct {
	cell    *fakeCell
	mu      sync.Mutex
	current *fakeSession
}

func (h *fakeHost) session(ctx context.Context) (session, error) {
	if err := h.cell.reach(ctx, "Session"); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cell.mu.Lock()
	defer h.cell.mu.Unlock()
	if h.current == nil || h.current.ended {
		h.cell.counter++
		h.current = &fakeSession{cell: h.cell, id: h.cell.counter, lost: make(chan struct{})}
		h.cell.sessions[h.current.id] = h.current
	}
	return h.current, nil
}

// reach waits until the cell answers.
func (c *fakeCell) reach(ctx context.Context, call string) error {
	c.mu.Lock()
	away := c.away
	c.calls[call]++
	c.mu.Unlock()
	if away == nil {
		return nil
	}
	select {
	case <-away:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type fakeSession struct {
	cell   *fakeCell
	id     uint64
	lost   chan struct{}
	ended  bool   // guarded by cell.mu
	owners uint64 // likewise
	closed []uint64
}

func (s *fakeSession) ID() uint64            { return s.id }
func (s *fakeSession) Lost() <-chan struct{} { return s.lost }

func (s *fakeSession) NewOwner() uint64 {
	s.cell.mu.Lock()
	defer s.cell.mu.Unlock()
	s.owners++
	return s.owners
}

func (s *fakeSession) endLocked() {
	if s.ended {
		return
	}
	s.ended = true
	close(s.lost)
	for _, n := range s.cell.nodes {
		n.dismiss(func(w *fakeWaiter) bool { return w.session == s }, lockfs.ErrSession)
		for _, h := range slices.Clone(n.holders) {
			if h.session == s {
				n.release(h.session, h.owner)
			}
		}
	}
	delete(s.cell.sessions, s.id)
}

// do is one call: it reaches the cell, and runs with the cell's mutex held.
func (s *fakeSession) do(ctx context.Context, call string, f func(c *fakeCell) error) error {
	if err := s.cell.reach(ctx, call); err != nil {
		return err
	}
	s.cell.mu.Lock()
	defer s.cell.mu.Unlock()
	if s.ended {
		return lockfs.ErrSession
	}
	return f(s.cell)
}

// on is do with a node.
func (s *fakeSession) on(ctx context.Context, call string, path lockfs.Path, instance uint64, f func(n *fakeNode) error) error {
	return s.do(ctx, call, func(c *fakeCell) error {
		n, err := c.find(path, instance)
		if err != nil {
			return err
		}
		return f(n)
	})
}

func (c *fakeCell) find(path lockfs.Path, instance uint64) (*fakeNode, error) {
	n := c.nodes[path]
	switch {
	case n == nil && instance != 0, n != nil && instance != 0 && n.Instance != instance:
		return nil, &lockfs.Error{Op: "find", Path: path, Kind: lockfs.ErrStale}
	case n == nil:
		return nil, &lockfs.Error{Op: "find", Path: path, Kind: lockfs.ErrNotExist}
	}
	n.Size = int64(len(n.content))
	return n, nil
}

func (s *fakeSession) Stat(ctx context.Context, path lockfs.Path, instance uint64) (st lockfs.Stat, err error) {
	err = s.on(ctx, "Stat", path, instance, func(n *fakeNode) error { st = n.Stat; return nil })
	return st, err
}

func (s *fakeSession) Read(ctx context.Context, path lockfs.Path, instance uint64) (content []byte, st lockfs.Stat, err error) {
	err = s.on(ctx, "Read", path, instance, func(n *fakeNode) error { content, st = n.content, n.Stat; return nil })
	return content, st, err
}

func (s *fakeSession) List(ctx context.Context, path lockfs.Path, instance uint64) (list []lockfs.Entry, st lockfs.Stat, err error) {
	err = s.on(ctx, "List", path, instance, func(n *fakeNode) error {
		st = n.Stat
		for _, child := range s.cell.children(path) {
			list = append(list, lockfs.Entry{Name: child.Path.Base(), Type: child.Type, Instance: child.Instance})
		}
		return nil
	})
	return list, st, err
}

func (c *fakeCell) children(path lockfs.Path) []*fakeNode {
	var children []*fakeNode
	for _, n := range c.nodes {
		if !n.Path.IsCellRoot() && n.Path.Parent() == path {
			children = append(children, n)
		}
	}
	slices.SortFunc(children, func(a, b *fakeNode) int { return cmp.Compare(a.Path, b.Path) })
	return children
}

func (s *fakeSession) LockState(ctx context.Context, path lockfs.Path, instance uint64) (state client.LockState, err error) {
	err = s.on(ctx, "LockState", path, instance, func(n *fakeNode) error {
		state = client.LockState{Path: path, Instance: n.Instance, Mode: n.mode, Generation: n.LockGeneration}
		for _, h := range n.holders {
			state.Holders = append(state.Holders, client.Holder{Session: h.session.id, Owner: h.owner, Host: "host", Note: h.note})
		}
		for _, w := range n.waiters {
			state.Waiters = append(state.Waiters, client.Waiter{Session: w.session.id, Owner: w.owner, Host: "host", Note: w.note, Mode: w.mode})
		}
		return nil
	})
	return state, err
}

func (s *fakeSession) Create(ctx context.Context, create client.Create) (st lockfs.Stat, created bool, err error) {
	err = s.do(ctx, "Create", func(c *fakeCell) error {
		if n := c.nodes[create.Path]; n != nil {
			if st = n.Stat; create.Exclusive {
				return lockfs.ErrExist
			}
			return nil
		}
		parent := c.nodes[create.Path.Parent()]
		switch {
		case parent == nil:
			return lockfs.ErrNotExist
		case parent.Type != lockfs.Dir:
			return lockfs.ErrNotDir
		}
		st, created = c.add(create.Path, create.Type).Stat, true
		return nil
	})
	return st, created, err
}

func (s *fakeSession) Delete(ctx context.Context, path lockfs.Path, instance uint64, typ lockfs.Type) error {
	return s.on(ctx, "Delete", path, instance, func(n *fakeNode) error {
		switch {
		case typ == lockfs.Dir && n.Type != typ:
			return lockfs.ErrNotDir
		case typ == lockfs.File && n.Type != typ:
			return lockfs.ErrIsDir
		case len(s.cell.children(path)) > 0:
			return lockfs.ErrNotEmpty
		}
		s.cell.delete(n)
		return nil
	})
}

func (c *fakeCell) delete(n *fakeNode) {
	delete(c.nodes, n.Path)
	n.dismiss(func(*fakeWaiter) bool { return true }, lockfs.ErrStale)
}

func (s *fakeSession) Edit(ctx context.Context, edit client.Edit) (st lockfs.Stat, err error) {
	err = s.on(ctx, "Edit", edit.Path, edit.Instance, func(n *fakeNode) error {
		content := apply(n.content, edit.Changes)
		switch {
		case n.Type == lockfs.Dir:
			return lockfs.ErrIsDir
		case edit.Guard.Generation != 0 && edit.Guard.Generation != n.LockGeneration:
			return lockfs.ErrSequencer
		case edit.IfGeneration != 0 && edit.IfGeneration != n.ContentGeneration:
			return lockfs.ErrChanged
		case int64(len(content)) > fileBytesMax:
			return lockfs.ErrTooLarge
		}
		n.set(content)
		st = n.Stat
		return nil
	})
	return st, err
}

func (n *fakeNode) set(content []byte) {
	n.content = content
	n.ContentGeneration++
	n.Size = int64(len(content))
	n.Checksum = xxhash.Sum64(content)
	n.Mtime = n.Mtime.Add(time.Second)
}

func (s *fakeSession) SetACL(ctx context.Context, path lockfs.Path, instance uint64, names lockfs.ACLNames) (st lockfs.Stat, err error) {
	err = s.on(ctx, "SetACL", path, instance, func(n *fakeNode) error {
		n.ACL.Read = cmp.Or(names.Read, n.ACL.Read)
		n.ACL.Write = cmp.Or(names.Write, n.ACL.Write)
		n.ACL.ChangeACL = cmp.Or(names.ChangeACL, n.ACL.ChangeACL)
		n.ACLGeneration++
		st = n.Stat
		return nil
	})
	return st, err
}

func (s *fakeSession) Rename(ctx context.Context, rename client.Rename) (st lockfs.Stat, err error) {
	err = s.on(ctx, "Rename", rename.From, rename.FromInstance, func(from *fakeNode) error {
		to := s.cell.nodes[rename.To]
		switch {
		case to != nil && rename.NoReplace:
			return lockfs.ErrExist
		case to != nil && to.Type == lockfs.Dir:
			return lockfs.ErrIsDir
		case to == nil && s.cell.nodes[rename.To.Parent()] == nil:
			return lockfs.ErrNotExist
		case to == nil:
			to = s.cell.add(rename.To, lockfs.File)
		}
		to.set(from.content)
		s.cell.delete(from)
		st = to.Stat
		return nil
	})
	return st, err
}

func (s *fakeSession) Acquire(ctx context.Context, acquire client.Acquire) (sequencer.Sequencer, error) {
	var wait *fakeWaiter
	var granted sequencer.Sequencer
	err := s.on(ctx, "Acquire", acquire.Path, acquire.Instance, func(n *fakeNode) (err error) {
		wait, granted, err = n.acquire(s, acquire)
		return err
	})
	if err != nil || wait == nil {
		return granted, err
	}
	select {
	case err = <-wait.granted:
	case <-ctx.Done():
		err = s.giveUp(acquire, wait, ctx.Err())
	}
	if err == nil {
		s.cell.mu.Lock()
		defer s.cell.mu.Unlock()
		granted = s.cell.nodes[acquire.Path].sequencer()
	}
	return granted, err
}

// giveUp takes a waiter away, unless its grant was quicker.
func (s *fakeSession) giveUp(acquire client.Acquire, wait *fakeWaiter, err error) error {
	s.cell.mu.Lock()
	defer s.cell.mu.Unlock()
	select {
	case err := <-wait.granted:
		return err
	default:
	}
	n := s.cell.nodes[acquire.Path]
	n.waiters = slices.DeleteFunc(n.waiters, func(w *fakeWaiter) bool { return w == wait })
	n.grant()
	return err
}

func (n *fakeNode) acquire(s *fakeSession, a client.Acquire) (*fakeWaiter, sequencer.Sequencer, error) {
	own := slices.IndexFunc(n.holders, func(h fakeHolder) bool { return h.session == s && h.owner == a.Owner })
	w := &fakeWaiter{fakeHolder{s, a.Owner, a.Note}, a.Mode, make(chan error, 1)}
	converts := own >= 0
	if n.free(w) && (converts || len(n.waiters) == 0) {
		n.take(w)
		return nil, n.sequencer(), nil
	}
	if !a.Wait {
		return nil, sequencer.Sequencer{}, &lockfs.Error{Op: "acquire", Path: a.Path, Kind: lockfs.ErrBusy}
	}
	if converts && len(n.waiters) > 0 && n.isHolder(n.waiters[0]) {
		return nil, sequencer.Sequencer{}, lockfs.ErrDeadlock
	}
	if converts {
		n.waiters = slices.Insert(n.waiters, 0, w)
	} else {
		n.waiters = append(n.waiters, w)
	}
	return w, sequencer.Sequencer{}, nil
}

func (n *fakeNode) isHolder(w *fakeWaiter) bool {
	return slices.ContainsFunc(n.holders, func(h fakeHolder) bool { return h.session == w.session && h.owner == w.owner })
}

// free reports whether nobody else holds what conflicts.
func (n *fakeNode) free(w *fakeWaiter) bool {
	for _, h := range n.holders {
		if (h.session != w.session || h.owner != w.owner) && n.mode.Conflicts(w.mode) {
			return false
		}
	}
	return true
}

func (n *fakeNode) take(w *fakeWaiter) {
	if !n.isHolder(w) {
		n.holders = append(n.holders, w.fakeHolder)
	}
	if n.mode != w.mode {
		n.LockGeneration++
		n.mode = w.mode
	}
}

func (n *fakeNode) sequencer() sequencer.Sequencer {
	return sequencer.Sequencer{Path: n.Path, Mode: n.mode, Generation: n.LockGeneration}
}

func (n *fakeNode) release(s *fakeSession, owner uint64) bool {
	before := len(n.holders)
	n.holders = slices.DeleteFunc(n.holders, func(h fakeHolder) bool { return h.session == s && h.owner == owner })
	released := len(n.holders) < before
	if len(n.holders) == 0 {
		n.mode = lockfs.Free
	}
	n.grant()
	return released
}

// grant lets in whoever is next.
func (n *fakeNode) grant() {
	for len(n.waiters) > 0 && n.free(n.waiters[0]) {
		w := n.waiters[0]
		n.waiters = n.waiters[1:]
		n.take(w)
		w.granted <- nil
	}
}

func (n *fakeNode) dismiss(who func(*fakeWaiter) bool, err error) {
	n.waiters = slices.DeleteFunc(n.waiters, func(w *fakeWaiter) bool {
		if who(w) {
			w.granted <- err
			return true
		}
		return false
	})
	n.grant()
}

func (s *fakeSession) Release(ctx context.Context, path lockfs.Path, instance, owner uint64) error {
	return s.on(ctx, "Release", path, instance, func(n *fakeNode) error {
		if !n.release(s, owner) {
			return lockfs.ErrNotHeld
		}
		return nil
	})
}

func (s *fakeSession) CloseOwner(owner uint64) {
	s.cell.mu.Lock()
	defer s.cell.mu.Unlock()
	s.cell.calls["CloseOwner"]++
	for _, n := range slices.Collect(maps.Values(s.cell.nodes)) {
		n.dismiss(func(w *fakeWaiter) bool { return w.session == s && w.owner == owner }, lockfs.ErrReleased)
		n.release(s, owner)
	}
}

func (s *fakeSession) Close(ctx context.Context, expired []uint64) error {
	if err := s.cell.reach(ctx, "Close"); err != nil {
		return err
	}
	s.cell.mu.Lock()
	defer s.cell.mu.Unlock()
	s.closed = expired
	s.endLocked()
	return nil
}
