package fuse

import (
	"context"
	"math"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lockfs"
)

// What programs ask of a file's room: that there be some, which of it is used, and that a part of
// one file be copied to another without passing through the program. A file here has no holes, and
// room is not set aside for one: where a cell is full the commit says so.

// Fallocate makes a file longer, or zeroes a part of it.
func (fs *fileSystem) Fallocate(cancel <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	f := fs.open.get(in.Fh)
	if f == nil {
		return gofuse.EBADF
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	err := f.usable(r)
	if err == nil {
		err = f.allocate(r, in.Mode, in.Offset, in.Length, writer{thread: in.Pid})
	}
	return fs.answer(r, "allocate", f.path, err)
}

func (f *file) allocate(ctx context.Context, mode uint32, offset, length uint64, by writer) error {
	if offset > math.MaxInt64 || length > math.MaxInt64-offset {
		return lockfs.ErrTooLarge
	}
	from, to := int64(offset), int64(offset+length)
	const zeroes, keep = unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_KEEP_SIZE
	switch mode {
	case 0:
		return f.extend(ctx, to, by)
	case keep: // room behind the end
		if to > f.cell.client.Limits().FileBytes {
			return lockfs.ErrTooLarge
		}
		return nil
	case zeroes:
		if err := f.extend(ctx, to, by); err != nil {
			return err
		}
		return f.clear(ctx, from, to, by)
	case zeroes | keep, unix.FALLOC_FL_PUNCH_HOLE | keep:
		return f.clear(ctx, from, to, by)
	}
	return syscall.EOPNOTSUPP
}

// Lseek finds data and holes. (The kernel itself looks for the end.)
func (fs *fileSystem) Lseek(cancel <-chan struct{}, in *gofuse.LseekIn, out *gofuse.LseekOut) gofuse.Status {
	f := fs.open.get(in.Fh)
	switch {
	case f == nil:
		return gofuse.EBADF
	case in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE:
		return gofuse.EINVAL
	}
	r := fs.begin(cancel, &in.InHeader, briefly)
	defer r.end()
	err := f.usable(r)
	if err == nil {
		var to int64
		to, err = f.seek(r, int64(in.Offset), in.Whence == unix.SEEK_HOLE)
		out.Offset = uint64(to)
	}
	return fs.answer(r, "seek", f.path, err)
}

// CopyFileRange copies from one open file to another, of whichever cells.
func (fs *fileSystem) CopyFileRange(cancel <-chan struct{}, in *gofuse.CopyFileRangeIn) (uint32, gofuse.Status) {
	from, to := fs.open.get(in.FhIn), fs.open.get(in.FhOut)
	if from == nil || to == nil {
		return 0, gofuse.EBADF
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	n, err := from.copyTo(r, to, int64(in.OffIn), int64(in.OffOut), in.Len, writer{thread: in.Pid})
	return uint32(n), fs.answer(r, "copy", to.path, err)
}

// copyTo copies at most length bytes, as they stand in one version of the file.
func (f *file) copyTo(ctx context.Context, to *file, offset, toOffset int64, length uint64, by writer) (int, error) {
	for _, one := range []*file{f, to} {
		if err := one.usable(ctx); err != nil {
			return 0, err
		}
	}
	data := make([]byte, min(length, uint64(f.cell.client.Limits().FileBytes)))
	n, err := f.read(ctx, data, offset)
	if n == 0 || err != nil {
		return 0, err
	}
	return n, to.write(ctx, toOffset, data[:n], false, by, to.flags&syncFlags != 0)
}
