package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/clock"
)

// Everything here is careful not to wait for a mount: the one at the mount point may be stopped,
// and our own cannot answer a question that holds up its answers. What is mounted is read from
// /proc, which answers in any case.

// Bounds of what is done about an old mount.
const (
	lookTime    = 2 * time.Second // for the old mount to show that it lives
	deadMounts  = 16              // that can lie on each other
	linksMax    = 40              // as many as the kernel follows
	unmountTick = 50 * time.Millisecond
)

// clearMountPoint makes sure that the mount point is a directory on which no lockfs is mounted,
// and takes dead ones away.
func clearMountPoint(mountPoint string, clock clock.Clock) error {
	for range deadMounts {
		mounted, err := lockfsAt(mountPoint)
		if err != nil {
			return err
		}
		err = statWithin(mountPoint, lookTime, clock)
		switch {
		case err == nil && mounted:
			return fmt.Errorf("mount at %s: another lockfs is mounted there", mountPoint)
		case err == nil:
			return nil
		case !mounted || !errors.Is(err, unix.ENOTCONN):
			return fmt.Errorf("mount point: %w", err)
		}
		if err := detach(mountPoint); err != nil {
			return fmt.Errorf("take away the dead mount at %s: %w", mountPoint, err)
		}
	}
	return fmt.Errorf("mount at %s: more than %d dead mounts lie there", mountPoint, deadMounts)
}

// statWithin checks that path is a directory, and gives it a time to answer. Where it does not, a
// goroutine stays behind: nothing can end it but the mount that it asks.
func statWithin(path string, d time.Duration, clock clock.Clock) error {
	answer := make(chan error, 1)
	go func() {
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() {
			err = &os.PathError{Op: "mount at", Path: path, Err: syscall.ENOTDIR}
		}
		answer <- err
	}()
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-timer.C():
		return fmt.Errorf("%s does not answer", path)
	}
}

// lockfsAt reports whether a lockfs is mounted at the mount point, which is absolute, topmost.
func lockfsAt(mountPoint string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("mounts: %w", err)
	}
	typ, _ := topmost(string(mounts), mountPoint)
	return typ == "fuse.lockfs", nil
}

// deviceAt returns the device number, major:minor, of what is mounted at the mount point, which is
// absolute, topmost.
func deviceAt(mountPoint string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("mounts: %w", err)
	}
	_, device := topmost(string(mounts), mountPoint)
	return device, nil
}

// absolute is the path of the mount point without links, as /proc shows it. What is mounted there
// is not asked.
func absolute(mountPoint string) string {
	path, err := filepath.Abs(mountPoint)
	if err != nil {
		return mountPoint
	}
	for range linksMax {
		parent, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return path
		}
		path = filepath.Join(parent, filepath.Base(path))
		target, err := os.Readlink(path) // which the kernel answers
		if err != nil {
			return path
		}
		if path = target; !filepath.IsAbs(target) {
			path = filepath.Join(parent, target)
		}
	}
	return path
}

// topmost returns the type and the device number of what is mounted at path, by
// /proc/self/mountinfo; "" for nothing.
func topmost(mountinfo, path string) (typ, device string) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && len(fields) > 4 && unescape.Replace(fields[4]) == path {
			typ, _, _ = strings.Cut(after, " ")
			device = fields[2]
		}
	}
	return typ, device
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// unmount takes the mount away: as soon as nobody uses it, or when busy has passed although
// somebody does. Programs that use it then get errors once this process has ended.
func (s *Server) unmount(busy time.Duration) error {
	for left := busy; ; left -= unmountTick {
		err := unmountOnce(s.mountPoint, 0)
		switch {
		case err == nil || !s.mounted():
			<-s.served
			return nil
		case left <= 0:
			s.fs.log.Warn("still in use; detached", "mountpoint", s.mountPoint)
			return detach(s.mountPoint)
		}
		timer := s.fs.clock.NewTimer(unmountTick)
		select {
		case <-timer.C():
		case <-s.served:
		}
		timer.Stop()
	}
}

// mounted reports whether the kernel still shows the mount.
func (s *Server) mounted() bool {
	select {
	case <-s.served:
		return false
	default:
		return true
	}
}

// detach takes what is mounted out of the tree, used or dead.
func detach(mountPoint string) error { return unmountOnce(mountPoint, unix.MNT_DETACH) }

// unmountOnce is umount2(2) for root, fusermount3 for others.
func unmountOnce(mountPoint string, flags int) error {
	err := unix.Unmount(mountPoint, flags|unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	args := []string{"-u", mountPoint}
	if flags&unix.MNT_DETACH != 0 {
		args = []string{"-uz", mountPoint}
	}
	if out, err := exec.Command("fusermount3", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("fusermount3: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
