package proccell

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fuseDevice returns the number by which the kernel knows the mount at mountPoint, which must be
// an absolute path without links. It asks /proc, which answers whatever state the mount is in.
func fuseDevice(mountPoint string) (minor int, mounted bool) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, false
	}
	defer file.Close()
	spaces := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// id parent major:minor root mountpoint …
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || spaces.Replace(fields[4]) != mountPoint {
			continue
		}
		_, number, _ := strings.Cut(fields[2], ":")
		if minor, err = strconv.Atoi(number); err == nil {
			mounted = true // and go on: the last one is on top
		}
	}
	return minor, mounted
}

// Detach takes whatever is mounted at mountPoint away from the tree, though it may be busy or dead.
func Detach(mountPoint string) error {
	for range 8 { // more than one can lie on another
		if _, mounted := fuseDevice(mountPoint); !mounted {
			return nil
		}
		if err := unix.Unmount(mountPoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", mountPoint, err)
		}
	}
	return fmt.Errorf("%s is mounted again and again", mountPoint)
}

// abort makes the kernel answer every open request of a FUSE connection with an error. It frees
// processes, the file system's own among them, that not even kill -9 ends.
func abort(minor int) error {
	control, err := os.MkdirTemp("", "fusectl")
	if err != nil {
		return err
	}
	defer os.Remove(control)
	if err := unix.Mount("fusectl", control, "fusectl", 0, ""); err != nil {
		return fmt.Errorf("mount fusectl: %w", err)
	}
	defer unix.Unmount(control, unix.MNT_DETACH)
	err = os.WriteFile(filepath.Join(control, strconv.Itoa(minor), "abort"), []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // gone already
	}
	return err
}
