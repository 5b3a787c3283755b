package fuse

import (
	"context"
	"math"
	"slices"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
)

// SetLk locks or unlocks without waiting for others.
func (fs *fileSystem) SetLk(cancel <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	return fs.setLock(cancel, in, false)
}

// SetLkw locks and waits. It unlocks too, without waiting.
func (fs *fileSystem) SetLkw(cancel <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	return fs.setLock(cancel, in, true)
}

func (fs *fileSystem) setLock(cancel <-chan struct{}, in *gofuse.LkIn, wait bool) gofuse.Status {
	f := fs.open.get(in.Fh)
	if f == nil {
		return gofuse.EBADF
	}
	key, b, ok := claimed(f, in)
	switch {
	case !ok:
		return gofuse.EINVAL
	case b.mode == lockfs.Free:
		r := fs.begin(cancel, &in.InHeader, whileAlive)
		defer r.end()
		err := fs.finish(r, func(ctx context.Context) error { return fs.unlock(ctx, key, b) })
		return fs.answerLock(r, "unlock", f.path, err)
	case !fs.mayWrite(in.Uid):
		return gofuse.EPERM // who may not write may not hold up writers
	}
	r := fs.begin(cancel, &in.InHeader, atOnce)
	defer r.end()
	request := &lockRequest{
		claimKey: key, byteRange: b, wait: wait, lockDelay: fs.delays.of(f.nodeID(), fs.lockDelay),
		process: processNow(in.Lk.Pid), command: commandOf(in.Lk.Pid),
	}
	lives := func() bool { return !dying(in.Pid) }
	return fs.answerLock(r, "lock", f.path, fs.lock(r, request, lives))
}

// claimed reads who wants to lock what, and in which mode.
func claimed(f *file, in *gofuse.LkIn) (claimKey, byteRange, bool) {
	b := byteRange{start: in.Lk.Start, end: in.Lk.End}
	switch in.Lk.Typ {
	case syscall.F_RDLCK:
		b.mode = lockfs.Shared
	case syscall.F_WRLCK:
		b.mode = lockfs.Exclusive
	case syscall.F_UNLCK:
	default:
		return claimKey{}, b, false
	}
	if in.LkFlags&gofuse.LK_FLOCK != 0 {
		b.start, b.end = wholeFile.start, wholeFile.end
		return claimKey{file: f, kind: flockLock}, b, true
	}
	return claimKey{file: f, kind: fcntlLock, owner: in.Owner}, b, b.start <= b.end
}

// lock gets a lock. What was written under a stronger one goes first, and what is read next is the
// current version.
func (fs *fileSystem) lock(ctx context.Context, r *lockRequest, lives func() bool) error {
	f := r.file
	if err := f.broken(); err != nil { // the cell confirms the session with the grant
		return err
	}
	f.mu.Lock()
	f.mu.asked = true
	f.mu.Unlock()
	if f.locks.locked(f) {
		if err := f.commitIf(ctx, (*contents).written); err != nil {
			return err
		}
	}
	if err := f.locks.lock(ctx, r, lives); err != nil {
		return err
	}
	f.mu.Lock()
	f.mu.unpin()
	f.mu.Unlock()
	f.commitLater()
	return nil
}

// unlock gives up a lock, after what was written under it is committed, and although that may have
// failed. Its own wait for the cell is bounded.
func (fs *fileSystem) unlock(ctx context.Context, key claimKey, b byteRange) error {
	f := key.file
	files := []*file{f}
	if key.kind == fcntlLock {
		if files = f.locks.through(key); len(files) == 0 {
			return nil
		}
		if !slices.Contains(files, f) {
			files = append(files, f) // it did not lock, but may have written under the lock
		}
	}
	var failed error
	for _, f := range files {
		if err := f.commitIf(ctx, (*contents).written); failed == nil {
			failed = err
		}
	}
	ctx, cancel := within(ctx, fs.timeout, fs.clock)
	defer cancel()
	if err := f.locks.unlock(ctx, key, b); failed == nil {
		failed = err
	}
	return failed
}

// GetLk tells who is in the way of a lock.
func (fs *fileSystem) GetLk(cancel <-chan struct{}, in *gofuse.LkIn, out *gofuse.LkOut) gofuse.Status {
	f := fs.open.get(in.Fh)
	if f == nil {
		return gofuse.EBADF
	}
	key, b, ok := claimed(f, in)
	if !ok || b.mode == lockfs.Free {
		return gofuse.EINVAL
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	if err := f.usable(r); err != nil {
		return fs.answerLock(r, "test lock", f.path, err)
	}
	lock, err := f.LockState(r, f.path, f.instance)
	if err != nil {
		return fs.answerLock(r, "test lock", f.path, gone(err))
	}
	out.Lk = gofuse.FileLock{Typ: syscall.F_UNLCK, Start: in.Lk.Start, End: in.Lk.End}
	own := f.locks.ownerOf(key)
	for _, holder := range lock.Holders {
		if (holder.Session != f.ID() || holder.Owner != own) && lock.Mode.Conflicts(b.mode) {
			out.Lk = gofuse.FileLock{Typ: lockType(lock.Mode), Start: 0, End: math.MaxInt64}
			if holder.Session == f.ID() { // else it would be a pid of another host; 0 says that it is not known
				out.Lk.Pid = f.locks.pidOf(f.instance, holder.Owner)
			}
			break
		}
	}
	return gofuse.OK
}

func lockType(mode lockfs.Mode) uint32 {
	if mode == lockfs.Exclusive {
		return syscall.F_WRLCK
	}
	return syscall.F_RDLCK
}
