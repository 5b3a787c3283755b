package fuse

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"lockfs"
	"lockfs/client"
)

// cell is one of the cells that a mount shows.
type cell struct {
	name   string
	root   lockfs.Path
	number uint64 // its place in the mount, from 0
	client *client.Client

	mu struct {
		sync.Mutex
		tenancies map[uint64]*tenancy // by session, while it lives
	}
}

func newCell(c Cell, root lockfs.Path, number uint64) *cell {
	cell := &cell{name: c.Name, root: root, number: number, client: c.Client}
	cell.mu.tenancies = make(map[uint64]*tenancy)
	return cell
}

// tenancy is one session of a cell with all that hangs on it here: open files and their locks. It
// dies with the session, and what is opened later belongs to another.
type tenancy struct {
	*client.Session
	cell  *cell
	locks *lockTable
}

// dead reports whether the session is lost: everything of it answers ESTALE for good.
func (t *tenancy) dead() bool {
	select {
	case <-t.Lost():
		return true
	default:
		return false
	}
}

// tenancy returns the one of the live session, which it waits for.
func (fs *fileSystem) tenancy(ctx context.Context, c *cell) (*tenancy, error) {
	if fs.closing.Load() {
		return nil, errClosing
	}
	ctx, cancel := within(ctx, fs.timeout, fs.clock)
	defer cancel()
	session, err := c.client.Session(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			return nil, cause
		}
		return nil, err
	}
	return fs.tenancyOf(c, session)
}

func (fs *fileSystem) tenancyOf(c *cell, s *client.Session) (*tenancy, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fs.closing.Load() {
		return nil, errClosing
	}
	t, ok := c.mu.tenancies[s.ID()]
	if !ok {
		t = &tenancy{Session: s, cell: c, locks: newLockTable(s, fs.clock, fs.background)}
		c.mu.tenancies[s.ID()] = t
		fs.background.start(func() { fs.outlive(t) })
	}
	return t, nil
}

// errClosing is what is asked while the mount ends: there will be no other session.
var errClosing = &lockfs.Error{Op: "mount", Kind: lockfs.ErrUnavailable, Detail: "the mount is being ended"}

// outlive waits for the end of a session and says what was lost with it.
func (fs *fileSystem) outlive(t *tenancy) {
	select {
	case <-t.Lost():
	case <-fs.background.ctx.Done():
		return
	}
	if fs.closing.Load() {
		return
	}
	t.cell.mu.Lock()
	delete(t.cell.mu.tenancies, t.ID())
	t.cell.mu.Unlock()
	fs.log.Warn("session lost; files opened under it answer ESTALE until they are closed", "cell", t.cell.name, "session", t.ID())
	for _, lock := range t.locks.held() {
		fs.log.Warn("lock lost", "sequencer", lock.sequencer, "pid", lock.pid, "command", lock.command)
	}
}

// named calls do with the live session of a cell. A read that meets the end of its session is
// asked again under the next: names belong to no session.
func named[T any](ctx context.Context, fs *fileSystem, c *cell, do func(*tenancy) (T, error)) (T, error) {
	for again := true; ; again = false {
		t, err := fs.tenancy(ctx, c)
		if err != nil {
			var none T
			return none, err
		}
		answer, err := do(t)
		if !again || !errors.Is(err, lockfs.ErrSession) {
			return answer, err
		}
	}
}

func (fs *fileSystem) allTenancies() []*tenancy {
	var all []*tenancy
	for _, c := range fs.cells {
		c.mu.Lock()
		all = slices.AppendSeq(all, maps.Values(c.mu.tenancies))
		c.mu.Unlock()
	}
	return all
}
