package fuse

import (
	"context"
	"errors"
	"slices"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/client"
)

// linkName is the symbolic link in the mount's root that leads to the first cell.
const linkName = "local"

// place is a name in a directory of a cell.
type place struct {
	cell *cell
	path lockfs.Path
}

// place returns where a name in a directory is. In the mount's root there are the cells and the
// link and nothing can be made: EPERM.
func (fs *fileSystem) place(dir uint64, name string) (place, error) {
	if dir == mountRoot {
		return place{}, syscall.EPERM
	}
	n, ok := fs.nodes.get(dir)
	if !ok {
		return place{}, lockfs.ErrStale
	}
	path, err := n.path.Child(name)
	return place{n.cell, path}, err
}

// Lookup finds a name.
func (fs *fileSystem) Lookup(cancel <-chan struct{}, header *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	if header.NodeId == mountRoot {
		return fs.lookupCell(name, out)
	}
	at, err := fs.place(header.NodeId, name)
	if errors.Is(err, lockfs.ErrBadName) {
		return gofuse.ENOENT // no node has such a name; who tries to make one is told
	}
	r := fs.begin(cancel, header, briefly)
	defer r.end()
	if err == nil {
		err = fs.lookup(r, at, out)
	}
	return fs.answer(r, "look up", at.path, err)
}

func (fs *fileSystem) lookup(ctx context.Context, at place, out *gofuse.EntryOut) error {
	find := func() (lockfs.Stat, error) {
		return named(ctx, fs, at.cell, func(t *tenancy) (lockfs.Stat, error) { return t.Stat(ctx, at.path, 0) })
	}
	st, err := find()
	if err == nil && fs.late.await(ctx, nodeID(at.cell, st.Instance), nil) {
		st, err = find()
	}
	if err == nil {
		fs.entry(at.cell, st, out)
	}
	return err
}

func (fs *fileSystem) lookupCell(name string, out *gofuse.EntryOut) gofuse.Status {
	if name == linkName {
		return ownEntry(localLink, fs.linkAttr(), out)
	}
	for _, c := range fs.cells {
		if c.name == name {
			return ownEntry(nodeID(c, 0), fs.cellAttr(c), out)
		}
	}
	return gofuse.ENOENT
}

// Readlink tells where "local" leads.
func (fs *fileSystem) Readlink(_ <-chan struct{}, header *gofuse.InHeader) ([]byte, gofuse.Status) {
	if header.NodeId != localLink {
		return nil, gofuse.EINVAL
	}
	return []byte(fs.cells[0].name), gofuse.OK
}

// Mkdir makes a directory.
func (fs *fileSystem) Mkdir(cancel <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return fs.make(cancel, &in.InHeader, name, lockfs.Dir, in.Mode, out)
}

// Mknod makes a file. There is nothing else to be made: no fifo, socket or device.
func (fs *fileSystem) Mknod(cancel <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if in.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return gofuse.EPERM
	}
	return fs.make(cancel, &in.InHeader, name, lockfs.File, in.Mode, out)
}

func (fs *fileSystem) make(cancel <-chan struct{}, header *gofuse.InHeader, name string, typ lockfs.Type, mode uint32, out *gofuse.EntryOut) gofuse.Status {
	r := fs.begin(cancel, header, whileAlive)
	defer r.end()
	at, err := fs.place(header.NodeId, name)
	if err != nil {
		return fs.answer(r, "create", at.path, err)
	}
	st, _, _, err := fs.create(r, at, header.Pid, client.Create{
		Path: at.path, Type: typ, Exclusive: true, Ephemeral: mode&stickyBit != 0,
	})
	if err == nil {
		fs.entry(at.cell, st, out)
	}
	return fs.answer(r, "create", at.path, err)
}

// create makes a node under the live session, which it returns too. What is made in an ephemeral
// directory is ephemeral: no program can say so of itself.
func (fs *fileSystem) create(ctx context.Context, at place, thread uint32, create client.Create) (lockfs.Stat, bool, *tenancy, error) {
	t, err := fs.tenancy(ctx, at.cell)
	if err != nil {
		return lockfs.Stat{}, false, nil, err
	}
	st, created, err := t.Create(ctx, create)
	if errors.Is(err, lockfs.ErrInvalid) && !create.Ephemeral {
		if dir, statErr := t.Stat(ctx, create.Path.Parent(), 0); statErr == nil && dir.Ephemeral {
			create.Ephemeral = true
			st, created, err = t.Create(ctx, create)
		}
	}
	if err == nil && created {
		fs.makers.add(nodeID(at.cell, st.Instance), thread)
	}
	return st, created, t, mutation(err)
}

// mutation keeps the end of a session from being told as ESTALE, upon which the kernel would do
// the same again: the names may have changed although the session has ended.
func mutation(err error) error {
	if errors.Is(err, lockfs.ErrSession) {
		return lockfs.ErrUnavailable
	}
	return err
}

// Unlink deletes a file.
func (fs *fileSystem) Unlink(cancel <-chan struct{}, header *gofuse.InHeader, name string) gofuse.Status {
	return fs.delete(cancel, header, name, lockfs.File)
}

// Rmdir deletes a directory; the cell knows whether it is empty.
func (fs *fileSystem) Rmdir(cancel <-chan struct{}, header *gofuse.InHeader, name string) gofuse.Status {
	return fs.delete(cancel, header, name, lockfs.Dir)
}

func (fs *fileSystem) delete(cancel <-chan struct{}, header *gofuse.InHeader, name string, typ lockfs.Type) gofuse.Status {
	r := fs.begin(cancel, header, whileAlive)
	defer r.end()
	at, err := fs.place(header.NodeId, name)
	if err != nil {
		return fs.answer(r, "delete", at.path, err)
	}
	t, err := fs.tenancy(r, at.cell)
	if err == nil {
		err = mutation(t.Delete(r, at.path, 0, typ))
	}
	return fs.answer(r, "delete", at.path, err)
}

// Rename moves a file within its cell. What open files of this mount have written to it goes first.
func (fs *fileSystem) Rename(cancel <-chan struct{}, in *gofuse.RenameIn, oldName, newName string) gofuse.Status {
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	from, err := fs.place(in.NodeId, oldName)
	if err != nil {
		return fs.answer(r, "rename", from.path, err)
	}
	to, err := fs.place(in.Newdir, newName)
	switch {
	case err != nil:
	case from.cell != to.cell:
		err = syscall.EXDEV
	case in.Flags&^unix.RENAME_NOREPLACE != 0:
		err = syscall.EINVAL
	default:
		err = fs.rename(r, from, to, in.Pid, in.Flags&unix.RENAME_NOREPLACE != 0)
	}
	return fs.answer(r, "rename", from.path, err)
}

func (fs *fileSystem) rename(ctx context.Context, from, to place, thread uint32, noReplace bool) error {
	t, err := fs.tenancy(ctx, from.cell)
	if err != nil {
		return err
	}
	st, err := t.Stat(ctx, from.path, 0)
	if err != nil {
		return err
	}
	if st.Type == lockfs.Dir {
		return syscall.EXDEV // mv copies instead
	}
	id := nodeID(from.cell, st.Instance)
	if err := commitEach(ctx, slices.Concat(fs.open.of(id), fs.open.named(to)), thread); err != nil {
		return err
	}
	st, err = t.Rename(ctx, client.Rename{From: from.path, FromInstance: st.Instance, To: to.path, NoReplace: noReplace})
	if err == nil && fs.makers.made(id, thread) {
		fs.makers.add(nodeID(to.cell, st.Instance), thread)
	}
	return mutation(err)
}

// Link, Symlink and Tmpfile make what does not exist here.
func (fs *fileSystem) Link(<-chan struct{}, *gofuse.LinkIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EPERM
}

func (fs *fileSystem) Symlink(<-chan struct{}, *gofuse.InHeader, string, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EPERM
}

func (fs *fileSystem) Tmpfile(<-chan struct{}, *gofuse.CreateIn, *gofuse.CreateOut) gofuse.Status {
	return gofuse.EPERM
}
