package fuse

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary a program that does what a test tells it, one system call a line:
// locks of all kinds belong to a process, so tests need processes.
func TestMain(m *testing.M) {
	if os.Getenv("LOCKFS_TEST_PROGRAM") != "" {
		runtime.LockOSThread()
		obey(os.Stdin, os.Stdout)
		return
	}
	if dir := os.Getenv("LOCKFS_TEST_DAEMON"); dir != "" {
		serveUntilKilled(dir)
	}
	os.Exit(m.Run())
}

// obey executes commands, and answers each by what the call returned or by the name of its errno.
func obey(in io.Reader, out io.Writer) {
	files := make(map[string]int)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		result, err := execute(files, strings.Fields(lines.Text()))
		var number syscall.Errno
		switch {
		case errors.As(err, &number):
			result = unix.ErrnoName(number)
		case err != nil:
			result = err.Error()
		}
		fmt.Fprintf(out, "%q\n", result)
	}
}

var openFlags = map[string]int{
	"r": unix.O_RDONLY, "w": unix.O_WRONLY, "r+": unix.O_RDWR, "c": unix.O_RDWR | unix.O_CREAT,
	"w!": unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC, "w+": unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC,
	"a": unix.O_WRONLY | unix.O_APPEND, "a+": unix.O_RDWR | unix.O_APPEND, "sync": unix.O_WRONLY | unix.O_SYNC,
	"tmpfile": unix.O_RDWR | unix.O_TMPFILE, "dir": unix.O_RDONLY | unix.O_DIRECTORY,
	"new": unix.O_RDWR | unix.O_CREAT | unix.O_EXCL,
}

func execute(files map[string]int, c []string) (string, error) {
	arg := func(i int) int64 { n, _ := strconv.ParseInt(c[i], 10, 64); return n }
	fd := func() int { return files[c[1]] }
	switch c[0] {
	case "open": // open NAME PATH HOW [MODE]
		mode := uint64(0o644)
		if len(c) > 4 {
			mode, _ = strconv.ParseUint(c[4], 8, 32)
		}
		n, err := unix.Open(c[2], openFlags[c[3]]|unix.O_CLOEXEC, uint32(mode))
		files[c[1]] = n
		return "", err
	case "make": // make PATH HOW: open and close
		n, err := unix.Open(c[1], openFlags[c[2]]|unix.O_CLOEXEC, 0o644)
		if err == nil {
			err = unix.Close(n)
		}
		return "", err
	case "close":
		return "", unix.Close(fd())
	case "write":
		_, err := unix.Write(fd(), []byte(c[2]))
		return "", err
	case "pwrite": // pwrite NAME OFFSET DATA
		_, err := unix.Pwrite(fd(), []byte(c[3]), arg(2))
		return "", err
	case "fill": // fill NAME OFFSET SIZE
		n, err := unix.Pwrite(fd(), make([]byte, arg(3)), arg(2))
		return strconv.Itoa(n), err
	case "read":
		buf := make([]byte, arg(2))
		n, err := unix.Read(fd(), buf)
		return string(buf[:max(n, 0)]), err
	case "pread": // pread NAME OFFSET SIZE
		buf := make([]byte, arg(3))
		n, err := unix.Pread(fd(), buf, arg(2))
		return string(buf[:max(n, 0)]), err
	case "truncate":
		return "", unix.Ftruncate(fd(), arg(2))
	case "fallocate": // fallocate NAME MODE OFFSET LENGTH
		return "", unix.Fallocate(fd(), uint32(arg(2)), arg(3), arg(4))
	case "data", "hole": // data NAME OFFSET: lseek(SEEK_DATA)
		n, err := unix.Seek(fd(), arg(2), map[string]int{"data": unix.SEEK_DATA, "hole": unix.SEEK_HOLE}[c[0]])
		return strconv.FormatInt(n, 10), err
	case "copy": // copy FROM OFFSET TO OFFSET LENGTH: copy_file_range(2)
		from, to := arg(2), arg(4)
		n, err := unix.CopyFileRange(fd(), &from, files[c[3]], &to, int(arg(5)), 0)
		return strconv.Itoa(n), err
	case "sendfile": // sendfile FROM TO LENGTH
		n, err := unix.Sendfile(files[c[2]], fd(), nil, int(arg(3)))
		return strconv.Itoa(n), err
	case "chmod", "mkdir": // chmod PATH MODE
		mode, _ := strconv.ParseUint(c[2], 8, 32)
		if c[0] == "mkdir" {
			return "", unix.Mkdir(c[1], uint32(mode))
		}
		return "", unix.Chmod(c[1], uint32(mode))
	case "fchmod":
		mode, _ := strconv.ParseUint(c[2], 8, 32)
		return "", unix.Fchmod(fd(), uint32(mode))
	case "fchown": // fchown NAME UID GID
		return "", unix.Fchown(fd(), int(arg(2)), int(arg(3)))
	case "touch": // touch NAME: futimens(2) to now
		return "", unix.Futimes(fd(), nil)
	case "rmdir":
		return "", unix.Rmdir(c[1])
	case "unlink":
		return "", unix.Unlink(c[1])
	case "kind":
		var st unix.Stat_t
		err := unix.Lstat(c[1], &st)
		return fmt.Sprintf("%o", st.Mode&unix.S_IFMT), err
	case "ls":
		entries, err := os.ReadDir(c[1])
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return strings.Join(names, " "), err
	case "rename":
		return "", unix.Rename(c[1], c[2])
	case "fsync":
		return "", unix.Fsync(fd())
	case "end": // lseek(SEEK_END)
		n, err := unix.Seek(fd(), 0, io.SeekEnd)
		return strconv.FormatInt(n, 10), err
	case "stat":
		var st unix.Stat_t
		err := unix.Fstat(fd(), &st)
		return fmt.Sprintf("size %d", st.Size), err
	case "getxattr": // getxattr PATH NAME
		buf := make([]byte, 4096)
		n, err := unix.Getxattr(c[1], c[2], buf)
		return string(buf[:max(n, 0)]), err
	case "setxattr":
		return "", unix.Setxattr(c[1], c[2], []byte(c[3]), 0)
	case "listxattr":
		buf := make([]byte, 4096)
		n, err := unix.Listxattr(c[1], buf)
		return strings.ReplaceAll(string(buf[:max(n, 0)]), "\x00", " "), err
	case "renameat2": // renameat2 FROM TO FLAGS
		return "", unix.Renameat2(unix.AT_FDCWD, c[1], unix.AT_FDCWD, c[2], uint(arg(3)))
	}
	return lock(fd, arg, c)
}

// lock executes flock NAME sh|ex|un [nb], and fcntl or ofd NAME sh|ex|un|get [nb] [START LEN].
func lock(fd func() int, arg func(int) int64, c []string) (string, error) {
	nb := len(c) > 3 && c[3] == "nb"
	if c[0] == "flock" {
		how := map[string]int{"sh": unix.LOCK_SH, "ex": unix.LOCK_EX, "un": unix.LOCK_UN}[c[2]]
		if nb {
			how |= unix.LOCK_NB
		}
		return "", unix.Flock(fd(), how)
	}
	lk := unix.Flock_t{Type: map[string]int16{"sh": unix.F_RDLCK, "ex": unix.F_WRLCK, "get": unix.F_WRLCK, "un": unix.F_UNLCK}[c[2]]}
	if len(c) >= 6 {
		lk.Start, lk.Len = arg(4), arg(5)
	}
	set, wait, get := unix.F_SETLK, unix.F_SETLKW, unix.F_GETLK
	if c[0] == "ofd" {
		set, wait, get = unix.F_OFD_SETLK, unix.F_OFD_SETLKW, unix.F_OFD_GETLK
	}
	switch {
	case c[2] == "get":
		err := unix.FcntlFlock(uintptr(fd()), get, &lk)
		return fmt.Sprintf("type %d pid %d", lk.Type, lk.Pid), err
	case nb:
		return "", unix.FcntlFlock(uintptr(fd()), set, &lk)
	}
	return "", unix.FcntlFlock(uintptr(fd()), wait, &lk)
}

// program is a process that does what it is told.
type program struct {
	t       *testing.T
	h       *host
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string
}

func (h *host) program() *program {
	h.t.Helper()
	p := &program{t: h.t, h: h, cmd: exec.Command(os.Args[0]), answers: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), "LOCKFS_TEST_PROGRAM=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.in, _ = p.cmd.StdinPipe()
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(p.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			answer, _ := strconv.Unquote(lines.Text())
			p.answers <- answer
		}
	}()
	h.t.Cleanup(func() { p.kill(); p.cmd.Wait() })
	return p
}

func (p *program) kill() { p.cmd.Process.Kill() }

// signalThreads signals each thread of the program, the one that waits among them.
func (p *program) signalThreads(sig unix.Signal) {
	p.t.Helper()
	pid := p.cmd.Process.Pid
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			unix.Tgkill(pid, tid, sig)
		}
	}
}

// tell gives a command; $D stands for the test's directory.
func (p *program) tell(format string, args ...any) {
	fmt.Fprintln(p.in, strings.ReplaceAll(fmt.Sprintf(format, args...), "$D", p.h.here))
}

// hear waits for the answer to the next command that was told.
func (p *program) hear() string {
	p.t.Helper()
	select {
	case answer, ok := <-p.answers:
		if !ok {
			p.t.Fatal("the program has ended")
		}
		return answer
	case <-time.After(15 * time.Second):
		p.t.Fatal("no answer")
	}
	return ""
}

// silent reports whether there is no answer yet.
func (p *program) silent() bool { return len(p.answers) == 0 }

// do gives a command and wants its answer.
func (p *program) do(command, want string) {
	p.t.Helper()
	p.tell("%s", command)
	if got := p.hear(); got != want {
		p.t.Errorf("%s: %q, want %q", command, got, want)
	}
}

// waiter is a small process that waits for the lock of f: hundreds of shells would be too many.
type waiter struct{ pid int }

// waiter starts one by fork and exec of flock(1) itself.
func (h *host) waiter() *waiter {
	h.t.Helper()
	cmd := exec.Command("flock", h.path("f"), "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return &waiter{cmd.Process.Pid}
}

func (w *waiter) kill(t *testing.T) {
	t.Helper()
	syscall.Kill(w.pid, syscall.SIGKILL)
	w.reap(t)
}

func (w *waiter) reap(t *testing.T) {
	t.Helper()
	until(t, "a killed waiter ends", func() bool {
		pid, err := syscall.Wait4(w.pid, nil, syscall.WNOHANG, nil)
		return pid == w.pid || err != nil
	})
}

// stateOf is the state of a process, as ps shows it.
func stateOf(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:min(1, len(after))]
}
