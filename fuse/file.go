package fuse

import (
	"context"
	"errors"
	"sync"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/clock"
)

// A program that locks a file, writes to it and keeps it open, as a daemon does with its pid file,
// sends nothing after its write. So what it wrote is committed when it has been quiet for
// quietTime, and after waitingMax at the latest.
const (
	quietTime  = time.Second
	waitingMax = 5 * time.Second
)

// file is an open file of the kernel. It belongs for good to the session under which it was
// opened, and to one node.
type file struct {
	fs *fileSystem
	*tenancy
	path     lockfs.Path
	instance uint64
	flags    uint32 // of its open

	turn chan struct{} // held by who commits

	mu struct {
		sync.Mutex
		contents
		failed      error         // why a commit failed; the open file is dead since
		first, last clock.Instant // uncommitted writes
		seenAt      clock.Instant // when the cell last said that the node is there
		watched     bool          // commitWhenQuiet is under way
		thread      uint32        // that opened it or wrote last
	}
}

// usable returns nil if something can be done with the open file now: it is not broken, and its
// session is surely alive. Where the lease is over, perhaps since this host was frozen, it waits
// until a master has confirmed the session, or the session is lost: what is told a program before
// that could be old, and what is taken from it would fail when it does not look any more. And a cut of
// this host's, whose close has returned, is done before.
func (f *file) usable(ctx context.Context) error {
	if err := f.broken(); err != nil {
		return err
	}
	f.fs.late.await(ctx, f.nodeID(), f)
	return f.Confirm(ctx)
}

// seenTime is for how long a program that writes under a lock believes in the node unasked.
const seenTime = 100 * time.Millisecond

// writable returns nil if f is usable and nothing is known that would keep what is to be written, or
// added at the end, from being committed. A write is only taken in, and a shell does not look at what
// becomes of it at the close, so it is the write that must fail: where a lock is held and the node is
// not the one that was locked, for whoever deletes it ends the lock; and where others have written
// since this open file read.
func (f *file) writable(ctx context.Context, adds bool) error {
	err := f.usable(ctx)
	switch {
	case err != nil:
		return err
	case f.locks.locked(f):
		if f.seenLately() {
			return nil
		}
	case adds || !f.when((*contents).standing):
		return nil
	}
	return f.look(ctx, adds)
}

func (f *file) seenLately() bool {
	now := f.fs.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.seenAt != 0 && now.Sub(f.mu.seenAt) < seenTime
}

// look asks the cell whether the node is still there, and, unless the next write only adds, still in
// the version that it would stand on.
func (f *file) look(ctx context.Context, adds bool) error {
	now := f.fs.clock.Now()
	st, err := f.Stat(ctx, f.path, f.instance)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch err = gone(err); {
	case errors.Is(err, lockfs.ErrStale):
		f.mu.failed = err
	case err != nil:
	case !adds && f.mu.standing() && f.mu.seen < st.ContentGeneration:
		return lockfs.ErrChanged // to be read again; nothing is lost
	default:
		f.mu.seenAt = now
	}
	return err
}

// sync is fsync(2). It tells who has written nothing whether what he locked is still there.
func (f *file) sync(ctx context.Context) error {
	if f.when((*contents).owed) {
		return f.commit(ctx)
	}
	if err := f.broken(); err != nil || !f.locks.locked(f) {
		return err
	}
	return f.look(ctx, true)
}

// broken returns why nothing can be done with the open file any more, or nil.
func (f *file) broken() error {
	if f.dead() {
		return lockfs.ErrSession
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.failed
}

// read fills dest from offset on, as far as the file goes.
func (f *file) read(ctx context.Context, dest []byte, offset int64) (n int, err error) {
	err = f.see(ctx, func(c *contents) bool { return c.needsFetch(offset) }, func(c *contents) error {
		n = c.read(dest, offset)
		return nil
	})
	return n, err
}

// seek answers for lseek(2) with SEEK_DATA and SEEK_HOLE, in the version that is being read.
func (f *file) seek(ctx context.Context, offset int64, hole bool) (to int64, err error) {
	err = f.see(ctx, (*contents).needsVersion, func(c *contents) error {
		to, err = c.seek(offset, hole)
		return err
	})
	return to, err
}

// clear zeroes what there is of the file between two offsets.
func (f *file) clear(ctx context.Context, from, to int64, by writer) error {
	if err := f.makeRoom(ctx, int(min(to-from, f.cell.client.Limits().FileBytes))); err != nil {
		return err
	}
	err := f.see(ctx, (*contents).needsVersion, func(c *contents) error {
		return f.editLocked(by, func(c *contents) error { return c.clear(from, to, by) })
	})
	return f.written(ctx, err, f.flags&syncFlags != 0)
}

// see calls use with a version to look at: the one that is pinned, or the current one where that is
// outdated.
func (f *file) see(ctx context.Context, outdated func(*contents) bool, use func(*contents) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pinned := !outdated(&f.mu.contents); !pinned; {
		f.mu.Unlock()
		content, st, err := f.Read(ctx, f.path, f.instance)
		f.mu.Lock()
		if err != nil {
			return gone(err)
		}
		pinned = f.mu.pin(content, st.ContentGeneration)
	}
	return use(&f.mu.contents)
}

// gone is the error of a call on a node in hand: where its name leads nowhere, the node is gone.
func gone(err error) error {
	if errors.Is(err, lockfs.ErrNotExist) || errors.Is(err, lockfs.ErrNotDir) {
		return lockfs.ErrStale
	}
	return err
}

// write adds to the edits, and commits them where the caller wants that.
func (f *file) write(ctx context.Context, offset int64, data []byte, atEnd bool, by writer, now bool) error {
	if err := f.makeRoom(ctx, len(data)); err != nil {
		return err
	}
	err := f.add(by, func(c *contents) error { return c.write(offset, data, atEnd, by) })
	if atEnd && errors.Is(err, lockfs.ErrTooLarge) {
		// By the size last heard of; others may have made room.
		if err = f.hearSize(ctx); err == nil {
			err = f.add(by, func(c *contents) error { return c.write(offset, data, atEnd, by) })
		}
	}
	return f.written(ctx, err, now)
}

// extend makes the file at least size bytes long.
func (f *file) extend(ctx context.Context, size int64, by writer) error {
	if err := f.makeRoom(ctx, 0); err != nil {
		return err
	}
	err := f.add(by, func(c *contents) error { return c.extend(size, by) })
	return f.written(ctx, err, f.flags&syncFlags != 0)
}

// makeRoom commits if there are so many edits that no more should be added.
func (f *file) makeRoom(ctx context.Context, bytes int) error {
	if f.when(func(c *contents) bool { return c.edits.full(bytes) }) {
		return f.commit(ctx)
	}
	return nil
}

// written ends what added an edit, or failed to.
func (f *file) written(ctx context.Context, err error, now bool) error {
	if err != nil {
		return f.refuse(err)
	}
	if now {
		return f.commit(ctx)
	}
	f.commitLater()
	return nil
}

// refuse is why a write failed. What would be too large is refused whole: nobody shall see the part
// that was written before, or the file cut for it.
func (f *file) refuse(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, lockfs.ErrTooLarge) && f.mu.failed == nil && f.mu.discard() {
		f.mu.failed = err
	}
	return err
}

// truncate is ftruncate(2).
func (f *file) truncate(size int64, by writer) error {
	err := f.add(by, func(c *contents) error { return c.truncate(size, by) })
	if err == nil {
		f.commitLater()
	}
	return err
}

// add makes an edit.
func (f *file) add(by writer, edit func(*contents) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.editLocked(by, edit)
}

func (f *file) editLocked(by writer, edit func(*contents) error) error {
	if f.mu.failed != nil {
		return f.mu.failed
	}
	if err := edit(&f.mu.contents); err != nil {
		return err
	}
	f.mu.thread = by.thread
	f.mu.last = f.fs.clock.Now()
	if f.mu.first == 0 {
		f.mu.first = f.mu.last
	}
	return nil
}

func (f *file) hearSize(ctx context.Context) error {
	st, err := f.Stat(ctx, f.path, f.instance)
	if err != nil {
		return gone(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.size = st.Size
	return nil
}

// when reports what ask says of the contents.
func (f *file) when(ask func(*contents) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return ask(&f.mu.contents)
}

// commitIf commits if ask says so.
func (f *file) commitIf(ctx context.Context, ask func(*contents) bool) error {
	if !f.when(ask) {
		return f.broken()
	}
	return f.commit(ctx)
}

// flush is a close by a thread of a process. A write that was refused for its size has said so.
func (f *file) flush(ctx context.Context, owner uint64, thread uint32) error {
	if f.when(func(c *contents) bool { return c.flush(owner) }) || f.when((*contents).cut) && f.closedBy(thread) {
		return f.commit(ctx)
	}
	if err := f.broken(); !errors.Is(err, lockfs.ErrTooLarge) {
		return err
	}
	return nil
}

// closedBy reports whether the process of the thread, which has just closed the file, is who opened
// it, and has it open no more. A shell that has moved a descriptor to its place still has.
func (f *file) closedBy(thread uint32) bool {
	return f.openedBy(thread) && !hasOpen(thread, inode(f.cell, f.instance), f.flags)
}

// openedBy reports whether the process of the thread opened the file, or wrote to it last.
func (f *file) openedBy(thread uint32) bool {
	f.mu.Lock()
	opener := f.mu.thread
	f.mu.Unlock()
	return sameProcess(opener, thread)
}

// commit sends all edits and waits until they are the cell's. If ctx ended, and the cell has not
// taken them, they stay; if they fail for another reason the open file is dead: what was written
// since cannot be told from what was lost.
func (f *file) commit(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-f.turn }()
	edit, err := f.take()
	if edit == nil || err != nil {
		return err
	}
	st, err := f.Edit(ctx, *edit)
	return f.settle(ctx, st, err)
}

// take returns the Edit to send, nil where there is nothing to commit.
func (f *file) take() (*client.Edit, error) {
	guard := f.locks.guard(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.failed != nil {
		return nil, f.mu.failed
	}
	if f.dead() {
		return nil, lockfs.ErrSession
	}
	if !f.mu.edits.dirty {
		return nil, nil
	}
	f.mu.first = 0
	b := f.mu.take()
	return &client.Edit{Path: f.path, Instance: f.instance, IfGeneration: b.ifGeneration, Changes: b.changes, Guard: guard}, nil
}

func (f *file) settle(ctx context.Context, st lockfs.Stat, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.mu.committed(st.ContentGeneration, st.Size)
		return nil
	case ctx.Err() != nil && !errors.Is(err, lockfs.ErrUnknown):
		f.mu.returned()
		return err
	}
	f.mu.lost()
	f.mu.failed = gone(err)
	f.fs.log.Warn("what was written is not committed", "path", f.path, "error", err)
	return f.mu.failed
}

// commitLater sees to it that what was written under a lock does not wait for the close.
func (f *file) commitLater() {
	if !f.locks.locked(f) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.watched && f.mu.written() {
		f.mu.watched = f.fs.background.start(f.commitWhenQuiet)
	}
}

func (f *file) commitWhenQuiet() {
	for {
		wait, more := f.quietIn()
		if !more {
			return
		}
		if wait > 0 {
			if sleep(f.fs.background.ctx, f.fs.clock, wait) != nil {
				return
			}
			continue
		}
		if f.commit(f.fs.background.ctx); f.fs.background.ctx.Err() != nil {
			return
		}
	}
}

// quietIn returns how long to wait before the commit, and false where there is nothing to commit.
func (f *file) quietIn() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.written() || f.mu.failed != nil {
		f.mu.watched = false
		return 0, false
	}
	now := f.fs.clock.Now()
	return min(f.mu.last.Add(quietTime).Sub(now), f.mu.first.Add(waitingMax).Sub(now)), true
}

// release is the last close. It waits for nothing: what it leaves to be done is done in the
// background.
func (f *file) release() {
	f.locks.release(f)
	f.mu.Lock()
	f.mu.closed = true
	owed, written := f.mu.owed(), f.mu.written()
	if written {
		f.mu.discard() // its close was interrupted, or the session is dead; the program was told
	}
	f.mu.Unlock()
	switch {
	case written:
		f.fs.log.Warn("closed without a commit of what was written", "path", f.path)
	case owed:
		f.fs.late.start(f)
		return
	}
	f.fs.late.remove(f)
}
