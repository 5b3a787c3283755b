package fuse

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// localLocks looks for programs that lock directories of the mount. The kernel grants such a lock
// of itself, on each host, and never tells of it; but it lists it in /proc/locks. So while any
// directory is open somebody looks there, and says what is found.
type localLocks struct {
	fs     *fileSystem
	device string // the mount's, as major:minor

	mu struct {
		sync.Mutex
		looking bool
		held    map[localLock]bool // when last looked at
		count   uint64             // so far
	}
}

// localLock is a lock of a directory as /proc/locks tells of it.
type localLock struct {
	kind  string // FLOCK, POSIX or OFDLCK
	pid   uint32
	inode uint64
}

// When to look, after a directory was opened and then again and again while any is open. Who lists
// one has closed it by then.
const (
	firstLook = 100 * time.Millisecond
	nextLook  = time.Second
)

// localLocksAttribute of the mount's root tells how many locks of directories were seen.
const localLocksAttribute = attributePrefix + "local_locks"

func newLocalLocks(fs *fileSystem) *localLocks { return &localLocks{fs: fs} }

func (l *localLocks) count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.count
}

// watch says that a directory has been opened.
func (l *localLocks) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.looking {
		l.mu.looking = l.fs.background.start(l.look)
	}
}

func (l *localLocks) look() {
	for wait := firstLook; sleep(l.fs.background.ctx, l.fs.clock, wait) == nil; wait = nextLook {
		if l.idle() {
			return
		}
		l.see()
	}
}

// idle ends the looking where no directory is open any more.
func (l *localLocks) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.looking = l.fs.open.anyDir()
	return !l.mu.looking
}

// see logs and counts locks that were not there the last time.
func (l *localLocks) see() {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return // a kernel without it
	}
	held := localLocksOf(string(text), l.device)
	l.mu.Lock()
	defer l.mu.Unlock()
	for lock := range held {
		if l.mu.held[lock] {
			continue
		}
		l.mu.count++
		l.fs.log.Warn("a program has locked a directory: that excludes nobody on other hosts; lock a file instead",
			"directory", l.fs.pathOf(lock.inode), "kind", lock.kind, "pid", lock.pid, "command", commandOf(lock.pid), "count", l.mu.count)
	}
	l.mu.held = held
}

// localLocksOf reads /proc/locks. All locks of the mount in it are of directories: those of files
// are not the kernel's.
func localLocksOf(text, device string) map[localLock]bool {
	var major, minor int
	fmt.Sscanf(device, "%d:%d", &major, &minor)
	prefix := fmt.Sprintf("%02x:%02x:", major, minor)
	held := make(map[localLock]bool)
	for line := range strings.Lines(text) {
		f := strings.Fields(line) // 1: FLOCK ADVISORY WRITE 2517 00:2d:281474976710660 0 EOF
		if len(f) < 6 || !strings.HasPrefix(f[5], prefix) {
			continue // who waits has "->" before the kind
		}
		pid, _ := strconv.ParseUint(f[4], 10, 32)
		inode, _ := strconv.ParseUint(f[5][len(prefix):], 10, 64)
		held[localLock{f[1], uint32(pid), inode}] = true
	}
	return held
}
