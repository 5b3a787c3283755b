package fuse

import (
	"context"
	"errors"
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
	fs.late.await(ctx, n.id(), nil)
	st, err := named(ctx, fs, n.cell, func(t *tenancy) (lockfs.Stat, error) { return t.Stat(ctx, n.path, n.instance) })
	return st, gone(err)
}

// fileOf returns the open file that a GETATTR is for, if any. The kernel names it where it looks
// for the end itself; in an fstat(2) it does not, so there it is one that the calling process has
// changed and not committed.
func (fs *fileSystem) fileOf(in *gofuse.GetAttrIn) *file {
	if in.Flags()&gofuse.FUSE_GETATTR_FH != 0 {
		return fs.open.get(in.Fh())
	}
	return fs.changedBy(in.NodeId, in.Pid)
}

// changedBy returns an open file of a node that the process of a thread has cut or written to and
// not committed, nil where there is none.
func (fs *fileSystem) changedBy(id uint64, thread uint32) *file {
	for _, f := range fs.open.of(id) {
		f.mu.Lock()
		writer, changed := f.mu.thread, f.mu.owed()
		f.mu.Unlock()
		if changed && sameProcess(writer, thread) {
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

// SetAttr truncates, touches, and makes nodes ephemeral. Mode and owner only mirror what the cell
// decides, so values are accepted that are so already; times are the master's.
func (fs *fileSystem) SetAttr(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if attr, ok := fs.ownedAttr(in.NodeId); ok {
		out.Attr = attr
		if changes(in, attr, 0o7777) {
			return gofuse.EPERM
		}
		return gofuse.OK
	}
	n, ok := fs.nodes.get(in.NodeId)
	if !ok {
		return status(syscall.ESTALE)
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	st, err := fs.setAttr(r, n, in)
	if err == nil {
		out.Attr = fs.attr(n.cell, st)
	}
	return fs.answer(r, "set attributes", n.path, err)
}

func (fs *fileSystem) setAttr(ctx context.Context, n node, in *gofuse.SetAttrIn) (lockfs.Stat, error) {
	st, err := fs.stat(ctx, n)
	if err != nil {
		return st, err
	}
	if changes(in, fs.attr(n.cell, st), 0o7777&^stickyBit) && !fs.makers.made(n.id(), in.Pid) {
		return st, syscall.EPERM
	}
	if mode, ok := in.GetMode(); ok && (mode&stickyBit != 0) != st.Ephemeral {
		if st, err = fs.setEphemeral(ctx, n, st, mode&stickyBit != 0, in.Pid); err != nil {
			return st, err
		}
	}
	switch size, cut := in.GetSize(); {
	case cut:
		return fs.truncate(ctx, n, st, in, int64(size))
	case in.Valid&gofuse.FATTR_MTIME_NOW != 0 && st.Type == lockfs.File:
		return fs.touch(ctx, n, st, in.Pid)
	}
	return st, nil
}

// changes reports whether the request would change the owner, or those bits of the mode.
func changes(in *gofuse.SetAttrIn, attr gofuse.Attr, bits uint32) bool {
	mode, modeGiven := in.GetMode()
	uid, uidGiven := in.GetUID()
	gid, gidGiven := in.GetGID()
	return modeGiven && (mode^attr.Mode)&bits != 0 || uidGiven && uid != attr.Uid || gidGiven && gid != attr.Gid
}

// setEphemeral is chmod +t, by which a node ends with this mount's session, and chmod -t. The
// program that copies a file into an ephemeral directory gives it the mode of the original, and
// that cannot be had there.
func (fs *fileSystem) setEphemeral(ctx context.Context, n node, st lockfs.Stat, ephemeral bool, thread uint32) (lockfs.Stat, error) {
	t, err := fs.tenancy(ctx, n.cell)
	if err != nil {
		return st, err
	}
	changed, err := t.SetPermanence(ctx, n.path, n.instance, ephemeral)
	if errors.Is(err, lockfs.ErrInvalid) && !ephemeral && fs.makers.made(n.id(), thread) {
		return st, nil
	}
	return changed, mutation(gone(err))
}

// touch writes the same contents again: the generation moves, and who watches wakes. Open files of
// this mount that have read the contents have not read older ones by that; and what a program is
// still to commit moves the generation of itself.
func (fs *fileSystem) touch(ctx context.Context, n node, st lockfs.Stat, thread uint32) (lockfs.Stat, error) {
	if fs.changedBy(n.id(), thread) != nil {
		return st, nil
	}
	st, err := fs.edit(ctx, n)
	if err == nil {
		for _, f := range fs.open.of(n.id()) {
			f.mu.Lock()
			f.mu.touched(st.ContentGeneration)
			f.mu.Unlock()
		}
	}
	return st, err
}

// truncate is ftruncate(2), an edit of its open file, or truncate(2), which is committed at once.
func (fs *fileSystem) truncate(ctx context.Context, n node, st lockfs.Stat, in *gofuse.SetAttrIn, size int64) (lockfs.Stat, error) {
	if size < 0 || size > n.cell.client.Limits().FileBytes {
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
