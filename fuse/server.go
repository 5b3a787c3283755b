// Package fuse shows cells to the programs of a host, as a folder: /ls/<cell>/…, with the link
// /ls/local to the first cell. It turns what the kernel asks into calls of package client, and
// errors of a cell into errnos.
//
// # What the kernel knows
//
// The kernel resolves paths name by name (LOOKUP), each to an inode, which it calls by the nodeid
// that it was told. It would keep names, attributes and contents for as long as it is told to, and
// go on answering from them while this process is stopped or dead. A lease would not outlive that,
// so the kernel keeps nothing here: all timeouts are 0, files are read and written past its page
// cache (direct I/O), and it asks again each time. No notification is ever sent to it, and so none
// can deadlock.
//
// # Open files
//
// An open file of the kernel is shared by all who inherited or copied its descriptor. Each close
// of a copy sends FLUSH, which close(2) waits for; the last one sends RELEASE too, for which nobody
// waits and which has no answer. What is read and written through an open file stands in contents:
// a version that it reads from, and a list of edits that one FLUSH or fsync commits.
//
// flock, fcntl and OFD locks all arrive as SETLK (try) or SETLKW (wait), with an owner that tells
// one open file, or one process, from another only as long as it lives. lockTable has them by open
// file.
//
// # Interrupts
//
// A signal to a process that waits for an answer sends INTERRUPT, and the process cannot even be
// killed before the answer. So every handler that calls a cell does so with a context that ends
// then, see request. The answer is EINTR only if there was an INTERRUPT.
//
// # Sessions
//
// An open file belongs to the session under which it was opened. When that is lost the open file
// answers ESTALE to everything until it is closed; what is opened later is of the next session.
//
// The package knows nothing of gRPC and of Raft. It takes the name of the library that it wraps,
// which the files here call gofuse.
package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/clock"
)

// Config says what to mount where. Cells and MountPoint are required.
type Config struct {
	Cells      []Cell
	MountPoint string        // a directory
	AllowOther bool          // other users may use the mount; they read, and change nothing
	LockDelay  time.Duration // of locks that programs take, from 0 to 60 s
	Timeout    time.Duration // how long a request waits while no master answers; default 10 s

	Clock  clock.Clock  // default CLOCK_BOOTTIME
	Logger *slog.Logger // default discards
}

// Cell is a cell to show, by its client. Closing the client stays the caller's.
type Cell struct {
	Name   string
	Client *client.Client
}

const defaultTimeout = 10 * time.Second

// Server is a mount.
type Server struct {
	fs         *fileSystem
	kernel     *gofuse.Server
	mountPoint string
	served     chan struct{} // closed when the kernel has ended the mount
	closing    sync.Once
	closed     error
}

// Mount mounts and serves. It returns when the kernel answers from the mount, whether or not the
// cells do. A dead mount at the mount point, left by a process that was killed, is replaced.
//
// Its process must not open files of the mount: a thread of Go's runtime would wait for an answer
// that it is itself needed for, and not even kill -9 would end it.
func Mount(cfg Config) (*Server, error) {
	cells, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	cfg.MountPoint = absolute(cfg.MountPoint)
	if err := clearMountPoint(cfg.MountPoint, cfg.Clock); err != nil {
		return nil, err
	}
	s := &Server{fs: newFileSystem(cells, &cfg), mountPoint: cfg.MountPoint, served: make(chan struct{})}
	kernel, err := gofuse.NewServer(s.fs, cfg.MountPoint, options(&cfg))
	if _, noFUSE := os.Stat("/dev/fuse"); err != nil && noFUSE != nil {
		err = fmt.Errorf("the kernel offers no FUSE: %w", noFUSE)
	}
	if err != nil {
		return nil, fmt.Errorf("mount at %s: %w", cfg.MountPoint, err)
	}
	s.kernel = kernel
	if s.fs.localLocks.device, err = deviceAt(cfg.MountPoint); err != nil {
		return nil, errors.Join(fmt.Errorf("mount at %s: %w", cfg.MountPoint, err), s.unmount(0))
	}
	go func() {
		defer close(s.served)
		kernel.Serve()
	}()
	// go-fuse's WaitMount would ask the mount itself, and a process that is killed while it waits for
	// its own mount can never end. There is no need: INIT is answered, and Serve answers the rest.
	if err := checkCapabilities(kernel.KernelSettings().Flags64()); err != nil {
		return nil, errors.Join(fmt.Errorf("mount at %s: %w", cfg.MountPoint, err), s.unmount(0))
	}
	return s, nil
}

// complete checks the configuration, fills in defaults, and returns the cells.
func (cfg *Config) complete() ([]*cell, error) {
	if len(cfg.Cells) == 0 || len(cfg.Cells) > maxCells {
		return nil, fmt.Errorf("mount: %d cells, not from 1 to %d", len(cfg.Cells), maxCells)
	}
	var cells []*cell
	for i, c := range cfg.Cells {
		root, err := lockfs.CellRoot(c.Name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(cells, func(other *cell) bool { return other.name == c.Name }) {
			return nil, fmt.Errorf("mount: cell %s is named twice", c.Name)
		}
		cells = append(cells, newCell(c, root, uint64(i)))
	}
	if cfg.LockDelay < 0 || cfg.LockDelay > lockfs.MaxLockDelay {
		return nil, fmt.Errorf("mount: lock-delay %v is not from 0 to %v", cfg.LockDelay, lockfs.MaxLockDelay)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Boottime()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cells, nil
}

// options are those of the mount, each with its reason.
func options(cfg *Config) *gofuse.MountOptions {
	return &gofuse.MountOptions{
		Name:       "lockfs", // fuse.lockfs in /proc/mounts
		FsName:     "lockfs",
		AllowOther: cfg.AllowOther,
		Options:    []string{"default_permissions"}, // the kernel checks users by mode and owner

		EnableLocks:       true,                      // else locks never leave the kernel
		ExtraCapabilities: gofuse.CAP_ATOMIC_O_TRUNC, // open says that it cuts, so that it is known whose cut it is
		MaxWrite:          1 << 20,                   // a whole file is one request
		MaxBackground:     512,                       // so many RELEASEs may be under way

		DisableReadDirPlus: true,              // it would ask for the attributes of every name
		DirectMountStrict:  os.Geteuid() == 0, // mount(2) itself; others need fusermount3
		Logger:             slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
}

// checkCapabilities refuses a kernel that keeps lock calls to itself: they would succeed on each
// host alone.
func checkCapabilities(flags uint64) error {
	if flags&gofuse.CAP_POSIX_LOCKS == 0 {
		return errors.New("the kernel does not hand over fcntl locks")
	}
	if flags&gofuse.CAP_FLOCK_LOCKS == 0 {
		return errors.New("the kernel does not hand over flock locks")
	}
	return nil
}

// Wait waits until the mount has ended, by Close or by umount.
func (s *Server) Wait() { <-s.served }

// Close ends the mount: what no open file holds is freed, the sessions are ended, so that others
// get the locks that are still held as soon as their lock-delay has passed, and the mount is taken
// away, though programs may still use it. It gives the cells and the programs until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.closing.Do(func() { s.closed = s.close(ctx) })
	return s.closed
}

// Close spends its time so: what is written is committed, sessions are ended, and the mount is
// given busyTime to become unused.
const (
	commitTime  = 2 * time.Second
	sessionTime = 2 * time.Second
	busyTime    = 3 * time.Second
)

func (s *Server) close(ctx context.Context) error {
	s.commitAll(ctx)
	s.fs.closing.Store(true)
	s.endSessions(ctx)
	s.fs.background.end()
	return s.unmount(busyTime)
}

// commitAll commits what open files have written and not closed: after the session that is an
// error, before it is only early.
func (s *Server) commitAll(ctx context.Context) {
	ctx, cancel := within(ctx, commitTime, s.fs.clock)
	defer cancel()
	var commits sync.WaitGroup
	for _, f := range s.fs.open.all() {
		commits.Go(func() {
			if err := f.commitIf(ctx, (*contents).written); err != nil {
				s.fs.log.Warn("not committed at the end", "path", f.path, "error", err)
			}
		})
	}
	commits.Wait()
}

// endSessions ends all sessions, with those locks as expired that programs still hold. A session
// that a cell cannot be told of ends there with its lease.
func (s *Server) endSessions(ctx context.Context) {
	ctx, cancel := within(ctx, sessionTime, s.fs.clock)
	defer cancel()
	var ends sync.WaitGroup
	for _, t := range s.fs.allTenancies() {
		ends.Go(func() {
			var expired []uint64
			for _, held := range t.locks.held() {
				s.fs.log.Warn("lock still held at the end", "sequencer", held.sequencer, "pid", held.pid, "command", held.command)
				expired = append(expired, held.owner)
			}
			if err := t.Close(ctx, expired); err != nil && !errors.Is(err, lockfs.ErrSession) {
				s.fs.log.Warn("session not closed; it ends with its lease", "cell", t.cell.name, "error", err)
			}
		})
	}
	ends.Wait()
}
