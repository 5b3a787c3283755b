package fuse

import (
	"context"
	"slices"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
	"lockfs/client"
)

// Permission bits. Who may do what is the cell's to decide, from the mount's certificate; on the
// host nodes are their mounting user's, and others read.
const (
	filePerm  = 0o644
	dirPerm   = 0o755
	stickyBit = 0o1000 // an ephemeral node
)

// perm is what stat shows of a node's mode beside its type.
func perm(st lockfs.Stat) uint32 {
	perm := uint32(filePerm)
	if st.Type == lockfs.Dir {
		perm = dirPerm
	}
	if st.Ephemeral {
		perm |= stickyBit
	}
	return perm
}

// typeBits is the type part of a mode.
func typeBits(t lockfs.Type) uint32 {
	if t == lockfs.Dir {
		return syscall.S_IFDIR
	}
	return syscall.S_IFREG
}

// attr is a node's Stat as the kernel wants it.
func (fs *fileSystem) attr(c *cell, st lockfs.Stat) gofuse.Attr {
	a := gofuse.Attr{
		Ino:    inode(c, st.Instance),
		Size:   uint64(st.Size),
		Blocks: uint64(st.Size+511) / 512,
		Mode:   typeBits(st.Type) | perm(st),
		Nlink:  1, // 0 would make link(2) say ENOENT
		Owner:  fs.owner,
	}
	a.SetTimes(&st.Mtime, &st.Mtime, &st.Mtime)
	return a
}

// ownAttr is that of what is the mount's own: its root, the link, and the roots of cells. They are
// answered from memory, so that looking at the mount never waits for a cell.
func (fs *fileSystem) ownAttr(mode uint32, number uint64) gofuse.Attr {
	a := gofuse.Attr{Ino: ownInodes | number, Mode: mode, Nlink: 1, Owner: fs.owner}
	a.SetTimes(&fs.mounted, &fs.mounted, &fs.mounted)
	return a
}

func (fs *fileSystem) rootAttr() gofuse.Attr {
	return fs.ownAttr(syscall.S_IFDIR|dirPerm, mountRoot)
}

func (fs *fileSystem) linkAttr() gofuse.Attr {
	a := fs.ownAttr(syscall.S_IFLNK|0o777, localLink)
	a.Size = uint64(len(fs.cells[0].name))
	return a
}

func (fs *fileSystem) cellAttr(c *cell) gofuse.Attr {
	return fs.ownAttr(syscall.S_IFDIR|dirPerm, firstOfOwn+c.number)
}

// ownedAttr returns the attributes of what is the mount's own, and false for a node of a cell.
func (fs *fileSystem) ownedAttr(id uint64) (gofuse.Attr, bool) {
	switch id {
	case mountRoot:
		return fs.rootAttr(), true
	case localLink:
		return fs.linkAttr(), true
	}
	if n, ok := fs.nodes.get(id); ok && n.isRoot() {
		return fs.cellAttr(n.cell), true
	}
	return gofuse.Attr{}, false
}

// GetAttr tells what stat shows. The kernel keeps it for no time, so it asks before each step of a
// path whether the directory may be searched; by that, a path that starts in a directory that is
// gone ends with ESTALE.
func (fs *fileSystem) GetAttr(cancel <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if attr, ok := fs.ownedAttr(in.NodeId); ok {
		out.Attr = attr
		return gofuse.OK
	}
	n, ok := fs.nodes.get(in.NodeId)
	if !ok {
		return status(syscall.ESTALE)
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	if f := fs.fileOf(in); f != nil {
		return fs.answer(r, "stat", n.path, fs.statFile(r, f, out))
	}
	st, err := fs.stat(r, n)
	if err == nil {
		out.Attr = fs.attr(n.cell, st)
	}
	return fs.answer(r, "stat", n.path, err)
}

// stat asks the cell for a node in hand.
func (fs *fileSystem) stat(ctx context.Context, n node) (lockfs.Stat, error) {
	fs.late.await(ctx, n.id())
	st, err := named(ctx, fs, n.cell, func(t *tenancy) (lockfs.Stat, error) { return t.Stat(ctx, n.path, n.instance) })
	return st, gone(err)
}

// fileOf returns the open file that a GETATTR is for, if any. The kernel names it where it looks
// for the end itself; in an fstat(2) it does not, so there it is one that the calling process has
// written to and not committed.
func (fs *fileSystem) fileOf(in *gofuse.GetAttrIn) *file {
	if in.Flags()&gofuse.FUSE_GETATTR_FH != 0 {
		return fs.open.get(in.Fh())
	}
	for _, f := range fs.open.of(in.NodeId) {
		f.mu.Lock()
		thread, written := f.mu.thread, f.mu.written()
		f.mu.Unlock()
		if written && sameProcess(thread, in.Pid) {
			return f
		}
	}
	return nil
}

// statFile answers for an open file, whose own edits count.
func (fs *fileSystem) statFile(ctx context.Context, f *file, out *gofuse.AttrOut) error {
	if err := f.usable(ctx); err != nil {
		return err
	}
	st, err := f.Stat(ctx, f.path, f.instance)
	if err != nil {
		return gone(err)
	}
	f.mu.Lock()
	st.Size = f.mu.length(st.Size)
	f.mu.Unlock()
	out.Attr = fs.attr(f.cell, st)
	return nil
}

// SetAttr truncates and touches. Mode and owner only mirror what the cell decides, so values are
// accepted that are so already, which lets cp -a and install go through; times are the master's.
func (fs *fileSystem) SetAttr(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if attr, ok := fs.ownedAttr(in.NodeId); ok {
		out.Attr = attr
		return status(fs.unchanged(in, attr))
	}
	n, ok := fs.nodes.get(in.NodeId)
	if !ok {
		return status(syscall.ESTALE)
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	st, err := fs.stat(r, n)
	if err != nil {
		return fs.answer(r, "set attributes", n.path, err)
	}
	if number := fs.unchanged(in, fs.attr(n.cell, st)); number != 0 && !fs.asCreated(in, n) {
		return status(number)
	}
	switch size, cut := in.GetSize(); {
	case cut:
		st, err = fs.truncate(r, n, st, in, int64(size))
	case in.Valid&gofuse.FATTR_MTIME_NOW != 0 && st.Type == lockfs.File:
		// The same contents again: the generation moves, and who watches wakes.
		st, err = fs.edit(r, n)
	}
	if err == nil {
		out.Attr = fs.attr(n.cell, st)
	}
	return fs.answer(r, "set attributes", n.path, err)
}

// unchanged returns EPERM if the request would change a mode or an owner.
func (fs *fileSystem) unchanged(in *gofuse.SetAttrIn, attr gofuse.Attr) syscall.Errno {
	if mode, ok := in.GetMode(); ok && mode != attr.Mode&0o7777 {
		return syscall.EPERM
	}
	if uid, ok := in.GetUID(); ok && uid != attr.Uid {
		return syscall.EPERM
	}
	if gid, ok := in.GetGID(); ok && gid != attr.Gid {
		return syscall.EPERM
	}
	return 0
}

// asCreated reports whether the request asks for the mode that a file was created with, by an open
// that goes on. That mode was not kept either; install, which says it twice, is not to fail here.
func (fs *fileSystem) asCreated(in *gofuse.SetAttrIn, n node) bool {
	mode, ok := in.GetMode()
	if !ok || in.Valid&(gofuse.FATTR_UID|gofuse.FATTR_GID) != 0 {
		return false
	}
	return slices.ContainsFunc(fs.open.of(n.id()), func(f *file) bool { return f.created && f.perm == mode })
}

// truncate is ftruncate(2), an edit of its open file, or truncate(2), which is committed at once.
func (fs *fileSystem) truncate(ctx context.Context, n node, st lockfs.Stat, in *gofuse.SetAttrIn, size int64) (lockfs.Stat, error) {
	if size < 0 || size > fileBytesMax {
		return st, lockfs.ErrTooLarge
	}
	handle, ok := in.GetFh()
	if !ok {
		return fs.edit(ctx, n, client.Change{Kind: client.Truncate, Offset: size})
	}
	f := fs.open.get(handle)
	if f == nil {
		return st, syscall.EBADF
	}
	if err := f.usable(ctx); err != nil {
		return st, err
	}
	err := f.truncate(size, writer{owner: in.LockOwner, known: in.Valid&gofuse.FATTR_LOCKOWNER != 0, thread: in.Pid})
	st.Size = size
	return st, err
}

func (fs *fileSystem) edit(ctx context.Context, n node, changes ...client.Change) (lockfs.Stat, error) {
	t, err := fs.tenancy(ctx, n.cell)
	if err != nil {
		return lockfs.Stat{}, err
	}
	st, err := t.Edit(ctx, client.Edit{Path: n.path, Instance: n.instance, Changes: changes})
	return st, gone(err)
}

// entry fills in what LOOKUP and its like answer, for the kernel to keep for no time.
func (fs *fileSystem) entry(c *cell, st lockfs.Stat, out *gofuse.EntryOut) {
	n := node{cell: c, path: st.Path, instance: st.Instance}
	fs.nodes.remember(n)
	*out = gofuse.EntryOut{NodeId: n.id(), Generation: 1, Attr: fs.attr(c, st)}
}

// ownEntry is entry for what is the mount's own.
func ownEntry(id uint64, attr gofuse.Attr, out *gofuse.EntryOut) gofuse.Status {
	*out = gofuse.EntryOut{NodeId: id, Generation: 1, Attr: attr}
	return gofuse.OK
}
