package fuse

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"lockfs"
)

// kinds are all there are.
func kinds() (all []lockfs.Kind) {
	for k := lockfs.ErrInternal; k.Error() != lockfs.Kind(255).Error(); k++ {
		all = append(all, k)
	}
	return all
}

// TestErrnosAreWhatTheKernelTakes checks the bounds, and that lock calls fail with nothing that
// programs do not expect of them.
func TestErrnosAreWhatTheKernelTakes(t *testing.T) {
	locks := map[syscall.Errno]bool{
		syscall.EAGAIN: true, syscall.EDEADLK: true, syscall.ENOLCK: true, syscall.EIO: true, syscall.ESTALE: true, syscall.EPERM: true,
	}
	never := map[lockfs.Kind]bool{ // that no lock call of an open file has for an answer
		lockfs.ErrBadName: true, lockfs.ErrNameTooLong: true, lockfs.ErrInvalid: true, lockfs.ErrExist: true,
		lockfs.ErrNotDir: true, lockfs.ErrIsDir: true, lockfs.ErrNotEmpty: true, lockfs.ErrTooLarge: true, lockfs.ErrNoSpace: true,
	}
	if n := len(kinds()); n < 28 {
		t.Fatalf("only %d kinds of error", n)
	}
	for _, kind := range kinds() {
		err := fmt.Errorf("somewhere: %w", &lockfs.Error{Op: "test", Kind: kind})
		for _, number := range []syscall.Errno{errno(err), lockErrno(err)} {
			if number < 1 || number > 511 {
				t.Errorf("%v: errno %d", kind, number)
			}
		}
		if number := lockErrno(err); !never[kind] && !locks[number] {
			t.Errorf("%v: a lock call fails with %v", kind, number)
		}
	}
}

func TestErrno(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, test := range []struct {
		err          error
		number, lock syscall.Errno
	}{
		{nil, 0, 0},
		{lockfs.ErrSession, syscall.ESTALE, syscall.ESTALE},
		{lockfs.ErrStale, syscall.ESTALE, syscall.ESTALE},
		{lockfs.ErrChanged, syscall.ESTALE, syscall.ESTALE},
		{lockfs.ErrSequencer, syscall.ESTALE, syscall.ESTALE},
		{lockfs.ErrPermission, syscall.EACCES, syscall.EPERM},
		{lockfs.ErrBusy, syscall.EAGAIN, syscall.EAGAIN},
		{lockfs.ErrLockDelay, syscall.EAGAIN, syscall.EAGAIN},
		{lockfs.ErrTooLarge, syscall.EFBIG, syscall.EFBIG},
		{lockfs.ErrLimit, syscall.EDQUOT, syscall.ENOLCK},
		{lockfs.ErrUnavailable, syscall.EIO, syscall.EIO},
		{lockfs.ErrUnknown, syscall.EIO, syscall.EIO},
		{lockfs.ErrNameTooLong, syscall.ENAMETOOLONG, syscall.ENAMETOOLONG},
		{syscall.EXDEV, syscall.EXDEV, syscall.EXDEV},
		{syscall.Errno(512), syscall.EIO, syscall.EIO},
		{refused, syscall.EIO, syscall.EIO},
		{fmt.Errorf("dial: %w: %w", lockfs.ErrUnavailable, refused), syscall.EIO, syscall.EIO},
		{fmt.Errorf("read: %w", context.Canceled), syscall.EINTR, syscall.EINTR},
	} {
		if number := errno(test.err); number != test.number {
			t.Errorf("%v: %v, want %v", test.err, number, test.number)
		}
		if number := lockErrno(test.err); number != test.lock {
			t.Errorf("%v of a lock: %v, want %v", test.err, number, test.lock)
		}
	}
}
