package fuse

import (
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
	"lockfs/internal/clock"
)

// fileSystem answers the kernel's requests. Each method translates: what a request means is told
// to a cell, an open file or the table of locks, and their answer to the kernel. No mutex is held
// across a call to a cell.
type fileSystem struct {
	gofuse.RawFileSystem // answers ENOSYS to what is not here, which the kernel remembers

	cells     []*cell
	clock     clock.Clock
	log       *slog.Logger
	timeout   time.Duration // how long to wait for a cell that does not answer
	lockDelay time.Duration
	owner     gofuse.Owner // whose all nodes are
	mounted   time.Time

	nodes      *nodeTable
	open       *openFiles
	late       *lateCuts
	delays     *lockDelays
	makers     *makers
	localLocks *localLocks
	background *background
	closing    atomic.Bool // no new session
}

func newFileSystem(cells []*cell, cfg *Config) *fileSystem {
	fs := &fileSystem{
		RawFileSystem: gofuse.NewDefaultRawFileSystem(),
		cells:         cells,
		clock:         cfg.Clock,
		log:           cfg.Logger,
		timeout:       cfg.Timeout,
		lockDelay:     cfg.LockDelay,
		owner:         gofuse.Owner{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())},
		mounted:       time.Now(),
		nodes:         newNodeTable(cells),
		open:          newOpenFiles(),
		delays:        newLockDelays(),
		makers:        newMakers(),
		background:    newBackground(),
	}
	fs.late = newLateCuts(fs)
	fs.localLocks = newLocalLocks(fs)
	return fs
}

func (fs *fileSystem) String() string { return "lockfs" }

// begin is the context of a request.
func (fs *fileSystem) begin(cancel <-chan struct{}, header *gofuse.InHeader, how patience) *request {
	return begin(cancel, header.Pid, how, fs.clock)
}

// answer is what the kernel is told of err. What a program cannot learn from an errno is logged.
func (fs *fileSystem) answer(r *request, what string, path lockfs.Path, err error) gofuse.Status {
	return fs.say(r, what, path, err, errno(err))
}

// answerLock is answer for calls that ask for a lock.
func (fs *fileSystem) answerLock(r *request, what string, path lockfs.Path, err error) gofuse.Status {
	return fs.say(r, what, path, err, lockErrno(err))
}

func (fs *fileSystem) say(r *request, what string, path lockfs.Path, err error, number syscall.Errno) gofuse.Status {
	number = r.errno(err, number)
	switch {
	case errors.Is(err, lockfs.ErrUnknown):
		fs.log.Error("outcome unknown", "operation", what, "path", path, "error", err)
	case number == syscall.EIO:
		fs.log.Warn("failed", "operation", what, "path", path, "error", err)
	}
	return status(number)
}

// mayWrite reports whether a user of this host could write to nodes: what default_permissions
// makes of their mode. The kernel itself does not ask it of a lock.
func (fs *fileSystem) mayWrite(uid uint32) bool { return uid == 0 || uid == fs.owner.Uid }

// Forget takes back what LOOKUP and its like told the kernel.
func (fs *fileSystem) Forget(id, lookups uint64) { fs.nodes.forget(id, lookups) }

// StatFs answers from memory: df on every host must not wait for a cell. It shows what a cell can
// hold, or all cells together, and not what is in use.
func (fs *fileSystem) StatFs(_ <-chan struct{}, header *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	const block = 4096
	var blocks, nodes uint64
	for _, c := range fs.cells {
		if n, ok := fs.nodes.get(header.NodeId); !ok || n.cell == c {
			limits := c.client.Limits()
			blocks += uint64(limits.Bytes / block)
			nodes += uint64(limits.Nodes)
		}
	}
	*out = gofuse.StatfsOut{
		Blocks: blocks, Bfree: blocks, Bavail: blocks, Files: nodes, Ffree: nodes,
		Bsize: block, Frsize: block, NameLen: lockfs.MaxName,
	}
	return gofuse.OK
}

// Access is asked of the kernel's own check, default_permissions.
func (fs *fileSystem) Access(<-chan struct{}, *gofuse.AccessIn) gofuse.Status { return gofuse.OK }

// Ioctl knows none; Python asks of every file that it opens whether it is a terminal.
func (fs *fileSystem) Ioctl(<-chan struct{}, *gofuse.IoctlIn, []byte, *gofuse.IoctlOut, []byte) gofuse.Status {
	return status(syscall.ENOTTY)
}
