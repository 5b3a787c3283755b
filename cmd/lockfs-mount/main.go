// Lockfs-mount shows cells of lockfs on one host, as a folder that every program can use.
//
//	lockfs-mount --cell ny1=10.0.0.1:7420,10.0.0.2:7420,10.0.0.3:7420 \
//	             --cert host.pem --key host.key --ca ca.pem /ls
//
// The cell ny1 is then /ls/ny1, and the first --cell is /ls/local as well. It runs in the
// foreground, logs to standard error, and says "ready" once the kernel answers from the mount and
// it has a session with each cell; a cell that cannot be reached is waited for after that. It ends
// within ten seconds of SIGTERM: locks that no program holds any more are free, those that programs
// still hold end as they do when a host is lost, after their lock-delay, and the mount is taken
// away though programs may still be in it. A dead mount at the mount point, left by a kill -9, is
// replaced.
//
// # Locks
//
// A lock on a file of the mount excludes programs on all hosts. These are locks:
//
//   - flock(2), and so flock(1). It belongs to the open file: to every process that inherited the
//     descriptor or a copy of it, until the last of them is closed.
//   - fcntl(2) with F_SETLK and F_SETLKW, as lockf(3), Python's lockf and Java's FileChannel.lock
//     use it. It belongs to the process, and goes when that closes any descriptor of the file.
//   - fcntl(2) with F_OFD_SETLK and F_OFD_SETLKW. It belongs to the open file.
//
// Locks are advisory: they exclude those who lock. A wait lasts as long as it takes, keeps its turn
// in the queue, over a new master of the cell too, and ends with any signal. Deleting a locked file
// ends its lock, so there is no need to delete lock files, and none should be.
//
// What is different from a local file system:
//
//   - A directory cannot be locked: the kernel grants it on each host alone, and does not even say
//     so. flock(1) is refused; other programs cannot be told from those that list it. Their locks
//     are logged and counted while they show in /proc/locks, see the attribute
//     user.lockfs.local_locks of the mount. Lock a file.
//   - flock and fcntl exclude each other. One process may have both on one file.
//   - A range of a file counts as the whole file. It is locked until the last range of its owner is
//     unlocked.
//   - F_GETLK tells the pid of a holder on this host, and 0 for one on another.
//   - A host that cannot reach its cell for longer than the lease loses its locks, and others get
//     them after the lock-delay. Every use of the files that it had open fails with ESTALE from then
//     on; files that are opened anew are fine. So a program that holds a lock must take an error for
//     what it is. The attribute user.lockfs.sequencer of a locked file is what a server can check.
//   - Lock calls fail with EAGAIN (held by another), EINTR (a signal), EDEADLK (two holders of a
//     shared lock want it for themselves), ENOLCK, EIO (no master answers), ESTALE (the lock, the
//     file or the session is gone) and EPERM (a user who could not write).
//   - A waiting program that closes nothing is not told that another wants the lock.
//
// # Files
//
// A file is read and written as a whole: a reader sees one version of it, and what was written
// appears when the file is closed, at fsync, before the unlock, and a second after the last write
// where the file stays locked. What is opened with O_TRUNC is set whole, appends are added to
// whatever is there; who has read a version and writes into it gets ESTALE if others have written
// since. A file holds at most 256 KiB, unless the cell has another limit. It has no holes, and no
// room is set aside by fallocate(2), which makes it longer.
//
// A program that reads exactly st_size bytes may get the first part of a longer, newer version;
// read until the end is told.
//
// Chmod +t, or that bit in the mode of open(2) or mkdir(2), makes a file or a directory ephemeral:
// it is deleted when this mount ends or its session is lost, and ls -l shows the t. Chmod -t makes
// it permanent again. Whatever is made in an ephemeral directory is ephemeral.
//
// Owner and the other bits of the mode are shown, but only the cell's administrators decide who may
// do what. Chmod and chown accept what is so already and fail with EPERM else. What the process that
// made a file, or cut it to nothing, says of its mode and owner is accepted and not kept, as the
// mode of open(2) is: cp -a, install, tar and rsync end well. (rsync -a to directories that are
// there with other modes or owners does not; use --no-p --no-o --no-g.) Times are the cell's: touch
// writes the same contents again, explicit times are accepted and not kept.
//
// There are no links, fifos, sockets or devices (EPERM), and no writable shared mappings. A directory
// cannot be renamed; mv copies it. inotify tells of changes by this host alone.
//
// # Users
//
// The mount of root is for all users, of whom others than root read only. Another user mounts
// through fusermount3, which must be installed, for himself alone.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(command.Report("lockfs-mount", err, os.Stderr))
}

// run is the program: it serves until ctx ends, or until the mount is taken away from outside.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	var o options
	cmd := &cobra.Command{
		Use:   "lockfs-mount --cell NAME=HOST:PORT,… [flags] MOUNTPOINT",
		Short: "Lockfs-mount shows cells of lockfs as a folder.",
		Args:  oneMountPoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.mountPoint = args[0]
			return serve(cmd.Context(), &o, slog.New(slog.NewTextHandler(stderr, nil)))
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.cells, "cell", nil, "a cell to show, as `NAME=HOST:PORT,…`; can be given again (required)")
	flags.DurationVar(&o.lockDelay, "lock-delay", lockfs.DefaultLockDelay, "how long a lock stays closed after this host was lost, 0s to 60s")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long a request waits while no master answers")
	flags.BoolVar(&o.allowOther, "allow-other", os.Geteuid() == 0, "other users may read; default for root")
	o.security.AddFlags(flags)
	return command.Run(ctx, cmd, args)
}

// oneMountPoint says in words what is wrong with the arguments.
func oneMountPoint(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return command.Usage("the folder to mount at is missing; see %s --help", cmd.Name())
	case 1:
		return nil
	}
	return command.Usage("it mounts at one folder, and there are %d arguments; see %s --help", len(args), cmd.Name())
}
