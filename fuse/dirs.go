package fuse

import (
	"context"
	"sync"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
)

// flockCommand is the program that is kept from directories by its name: the kernel never tells of
// a flock on one, so it would be granted on each host alone. Others open directories in the same
// way, to list them; see localLocks.
const flockCommand = "flock"

// dir is an open directory. A pass over it sees one listing; rewinding takes a new one.
type dir struct {
	mu      sync.Mutex
	entries []gofuse.DirEntry
}

// OpenDir opens a directory.
func (fs *fileSystem) OpenDir(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	if commandOf(in.Pid) == flockCommand {
		fs.log.Warn("flock(1) on a directory refused: it would lock on this host alone", "pid", in.Pid)
		return gofuse.EISDIR
	}
	*out = gofuse.OpenOut{Fh: fs.open.addDir(&dir{})}
	fs.localLocks.watch()
	return gofuse.OK
}

// ReadDir lists, from a place in the listing on.
func (fs *fileSystem) ReadDir(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	d := fs.open.dir(in.Fh)
	if d == nil {
		return gofuse.EBADF
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	if in.Offset == 0 {
		entries, path, err := fs.list(r, in.NodeId)
		if err != nil {
			return fs.answer(r, "list", path, err)
		}
		d.mu.Lock()
		d.entries = entries
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := in.Offset; i < uint64(len(d.entries)); i++ {
		entry := d.entries[i]
		entry.Off = i + 1
		if !out.AddDirEntry(entry) {
			break
		}
	}
	return gofuse.OK
}

// list returns all names of a directory.
func (fs *fileSystem) list(ctx context.Context, id uint64) ([]gofuse.DirEntry, lockfs.Path, error) {
	if id == mountRoot {
		return fs.listCells(), "", nil
	}
	n, ok := fs.nodes.get(id)
	if !ok {
		return nil, "", lockfs.ErrStale
	}
	names, err := named(ctx, fs, n.cell, func(t *tenancy) ([]lockfs.Entry, error) {
		names, _, err := t.List(ctx, n.path, n.instance)
		return names, err
	})
	if err != nil {
		return nil, n.path, gone(err)
	}
	entries := dots(fs.inodeOf(n))
	for _, name := range names {
		entries = append(entries, gofuse.DirEntry{
			Name: name.Name, Ino: inode(n.cell, name.Instance), Mode: typeBits(name.Type),
		})
	}
	return entries, n.path, nil
}

func (fs *fileSystem) inodeOf(n node) uint64 {
	if n.isRoot() {
		return fs.cellAttr(n.cell).Ino
	}
	return inode(n.cell, n.instance)
}

func (fs *fileSystem) listCells() []gofuse.DirEntry {
	entries := dots(fs.rootAttr().Ino)
	for _, c := range fs.cells {
		entries = append(entries, gofuse.DirEntry{Name: c.name, Ino: fs.cellAttr(c).Ino, Mode: syscall.S_IFDIR})
	}
	return append(entries, gofuse.DirEntry{Name: linkName, Ino: fs.linkAttr().Ino, Mode: syscall.S_IFLNK})
}

// dots are the two names that every listing starts with. Nobody reads the parent's number.
func dots(self uint64) []gofuse.DirEntry {
	return []gofuse.DirEntry{
		{Name: ".", Ino: self, Mode: syscall.S_IFDIR},
		{Name: "..", Ino: self, Mode: syscall.S_IFDIR},
	}
}

// ReleaseDir is the end of an open directory.
func (fs *fileSystem) ReleaseDir(in *gofuse.ReleaseIn) {
	fs.open.removeDir(in.Fh)
}

// FsyncDir has nothing to do: names are committed at once.
func (fs *fileSystem) FsyncDir(<-chan struct{}, *gofuse.FsyncIn) gofuse.Status { return gofuse.OK }
