package fuse

import (
	"context"
	"slices"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
	"lockfs/client"
)

// opened makes an open file. Its contents pass the kernel's cache by: the kernel would keep them
// longer than a lease.
func (fs *fileSystem) opened(t *tenancy, st lockfs.Stat, cut bool, flags, thread uint32, out *gofuse.OpenOut) {
	f := &file{
		fs: fs, tenancy: t, path: st.Path, instance: st.Instance,
		flags: flags, turn: make(chan struct{}, 1),
	}
	f.mu.contents.opened(st.Size, t.cell.client.Limits().FileBytes, st.ContentGeneration, cut)
	f.mu.thread = thread
	*out = gofuse.OpenOut{Fh: fs.open.add(f), OpenFlags: gofuse.FOPEN_DIRECT_IO}
}

// syncFlags are those of open(2) that make each write commit.
const syncFlags = syscall.O_SYNC | syscall.O_DSYNC

// Open opens a file under the live session. It asks the cell, so that whoever cannot read or write
// learns it here and not from close.
func (fs *fileSystem) Open(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	n, ok := fs.nodes.get(in.NodeId)
	if !ok {
		return status(syscall.ESTALE)
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	fs.late.await(r, n.id(), nil)
	type opened struct {
		*tenancy
		lockfs.Stat
	}
	o, err := named(r, fs, n.cell, func(t *tenancy) (opened, error) {
		st, err := t.Stat(r, n.path, n.instance)
		return opened{t, st}, err
	})
	if err == nil {
		cut := in.Flags&syscall.O_TRUNC != 0
		fs.opened(o.tenancy, o.Stat, cut, in.Flags, in.Pid, out)
		if cut {
			fs.makers.add(n.id(), in.Pid)
		}
	}
	return fs.answer(r, "open", n.path, gone(err))
}

// Create makes a file, or finds one that another was quicker to make, and opens it.
func (fs *fileSystem) Create(cancel <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	at, err := fs.place(in.NodeId, name)
	if err != nil {
		return fs.answer(r, "create", at.path, err)
	}
	st, created, t, err := fs.create(r, at, in.Pid, client.Create{
		Path: at.path, Type: lockfs.File, Exclusive: in.Flags&syscall.O_EXCL != 0, Ephemeral: in.Mode&stickyBit != 0,
	})
	switch {
	case err != nil:
	case st.Type == lockfs.Dir:
		err = syscall.EISDIR
	default:
		fs.entry(at.cell, st, &out.EntryOut)
		fs.opened(t, st, !created && in.Flags&syscall.O_TRUNC != 0, in.Flags, in.Pid, &out.OpenOut)
	}
	return fs.answer(r, "create", at.path, err)
}

// Read answers from the version that the open file has pinned, or fetches the current one.
func (fs *fileSystem) Read(cancel <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	f := fs.open.get(in.Fh)
	if f == nil {
		return nil, gofuse.EBADF
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	err := f.usable(r)
	n := 0
	if err == nil {
		n, err = f.read(r, buf[:min(len(buf), int(in.Size))], int64(in.Offset))
	}
	return gofuse.ReadResultData(buf[:n]), fs.answer(r, "read", f.path, err)
}

// Writev adds to the edits of the open file. (go-fuse calls Write only where this answers ENOSYS.)
func (fs *fileSystem) Writev(cancel <-chan struct{}, in *gofuse.WriteIn, data [][]byte) (uint32, gofuse.Status) {
	f := fs.open.get(in.Fh)
	if f == nil {
		return 0, gofuse.EBADF
	}
	if in.WriteFlags&gofuse.WRITE_CACHE != 0 {
		// From a shared mapping, which direct I/O does not allow.
		return 0, gofuse.EIO
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	content := slices.Concat(data...)
	adds := in.Flags&syscall.O_APPEND != 0 // the kernel's offset then comes from a size that may be old
	err := f.writable(r, adds)
	if err == nil {
		by := writer{owner: in.LockOwner, known: in.WriteFlags&gofuse.WRITE_LOCKOWNER != 0, thread: in.Pid}
		synced := in.Flags&syncFlags != 0 // also if it was set after the open
		err = f.write(r, int64(in.Offset), content, adds, by, synced)
	}
	if err != nil {
		return 0, fs.answer(r, "write", f.path, err)
	}
	return uint32(len(content)), gofuse.OK
}

// Flush is a close of the file, or of a copy of its descriptor, by a process. It commits what that
// process wrote and drops its fcntl locks.
func (fs *fileSystem) Flush(cancel <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	f := fs.open.get(in.Fh)
	if f == nil {
		return gofuse.EBADF
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	owner, thread := in.LockOwner, in.Pid // in is the next request's as soon as this is answered
	err := fs.finish(r, func(ctx context.Context) error { return fs.flush(ctx, f, owner, thread) })
	return fs.answer(r, "close", f.path, err)
}

func (fs *fileSystem) flush(ctx context.Context, f *file, owner uint64, thread uint32) error {
	err := f.flush(ctx, owner, thread)
	if f.when((*contents).cut) {
		fs.late.expect(f)
	}
	unlockErr := fs.unlock(ctx, claimKey{file: f, kind: fcntlLock, owner: owner}, wholeFile)
	if err == nil {
		err = unlockErr
	}
	return err
}

// Fsync commits.
func (fs *fileSystem) Fsync(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	f := fs.open.get(in.Fh)
	if f == nil {
		return gofuse.EBADF
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	return fs.answer(r, "fsync", f.path, f.sync(r))
}

// Release is the end of an open file.
func (fs *fileSystem) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) {
	if f := fs.open.remove(in.Fh); f != nil {
		f.release()
	}
}

// commitEach commits what was written to open files, and the cut of one by the process of the thread
// itself: another that has cut the file may be about to write. It leaves those alone that are broken:
// that is their programs' trouble.
func commitEach(ctx context.Context, files []*file, thread uint32) error {
	for _, f := range files {
		if f.broken() != nil || !f.when((*contents).written) && !(f.when((*contents).cut) && f.openedBy(thread)) {
			continue
		}
		if err := f.commit(ctx); err != nil {
			return err
		}
	}
	return nil
}
