package fuse

import (
	"context"
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
)

// errnos is where the answer of a cell becomes an answer of the kernel.
//
// ErrNotExist is ENOENT: what was asked for by its name is not there. Whoever asks for a node that
// is in hand turns it into ErrStale.
var errnos = map[lockfs.Kind]syscall.Errno{
	lockfs.ErrBadName:     syscall.EINVAL,
	lockfs.ErrNameTooLong: syscall.ENAMETOOLONG,
	lockfs.ErrInvalid:     syscall.EINVAL,
	lockfs.ErrNotExist:    syscall.ENOENT,
	lockfs.ErrExist:       syscall.EEXIST,
	lockfs.ErrNotDir:      syscall.ENOTDIR,
	lockfs.ErrIsDir:       syscall.EISDIR,
	lockfs.ErrNotEmpty:    syscall.ENOTEMPTY,
	lockfs.ErrTooLarge:    syscall.EFBIG,
	lockfs.ErrNoSpace:     syscall.ENOSPC,
	lockfs.ErrPermission:  syscall.EACCES,
	lockfs.ErrStale:       syscall.ESTALE,
	lockfs.ErrChanged:     syscall.ESTALE,
	lockfs.ErrBusy:        syscall.EAGAIN,
	lockfs.ErrLockDelay:   syscall.EAGAIN,
	lockfs.ErrDeadlock:    syscall.EDEADLK,
	lockfs.ErrSequencer:   syscall.ESTALE,
	lockfs.ErrSession:     syscall.ESTALE,
	lockfs.ErrReleased:    syscall.ESTALE,
	lockfs.ErrGivenUp:     syscall.EIO,
	lockfs.ErrUnavailable: syscall.EIO,
	lockfs.ErrUnknown:     syscall.EIO,
	lockfs.ErrLimit:       syscall.EDQUOT,
}

// lockErrnos are those of errnos that are others where a lock was asked for. flock(1) takes EACCES
// for "held by another" and says nothing.
var lockErrnos = map[lockfs.Kind]syscall.Errno{
	lockfs.ErrPermission: syscall.EPERM,
	lockfs.ErrLimit:      syscall.ENOLCK,
	lockfs.ErrNotExist:   syscall.ESTALE,
}

// errno returns the number for err, from 1 to 511 (the kernel refuses others, and the caller would
// hang), or 0. What no program can act on is EIO. A wait that ended because its context did is
// EINTR, which is for the caller to prevent where the kernel did not interrupt.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if number, ok := errnos[lockfs.KindOf(err)]; ok {
		return number
	}
	if number, ok := err.(syscall.Errno); ok && number >= 1 && number <= 511 {
		return number // our own; a wrapped one is of a socket, and nothing for the caller
	}
	if errors.Is(err, context.Canceled) {
		return syscall.EINTR
	}
	return syscall.EIO
}

// lockErrno is errno for calls that ask for a lock.
func lockErrno(err error) syscall.Errno {
	if number, ok := lockErrnos[lockfs.KindOf(err)]; ok {
		return number
	}
	return errno(err)
}

// status is an errno as go-fuse wants it.
func status(number syscall.Errno) gofuse.Status { return gofuse.Status(number) }
