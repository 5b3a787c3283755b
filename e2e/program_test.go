package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// Locks belong to processes, and the signals that disturb who waits for one go to processes. So the
// test binary is also the programs that tests run, under these names.
var playable = map[string]func(args []string, told *bufio.Scanner) error{
	"count":   playCount,
	"hold":    playHold,
	"rewrite": playRewrite,
}

const programVariable = "LOCKFS_E2E_PROGRAM"

func init() {
	if os.Getenv(programVariable) != "" {
		runtime.LockOSThread() // main stays on the main thread, to which signals go first
	}
}

// playProgram does not return where the process is to be a program.
func playProgram() {
	play, ok := playable[os.Getenv(programVariable)]
	if !ok {
		return
	}
	if err := play(os.Args[1:], bufio.NewScanner(os.Stdin)); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// program starts one of the playable programs. The test's end ends it, before the mounts.
func program(t *testing.T, name string, args ...string) *proccell.Talker {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), programVariable+"="+name, "GOMAXPROCS=2")
	return talk(t, name+" "+strings.Join(args, " "), cmd)
}

func talk(t *testing.T, name string, cmd *exec.Cmd) *proccell.Talker {
	t.Helper()
	talker, err := proccell.Talk(name, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := talker.Kill(); err != nil {
			t.Error(err)
		}
	})
	return talker
}

// locking are the calls by which programs lock a whole file for themselves, or unlock it. A try
// that finds it locked fails with EAGAIN.
var locking = map[string]func(fd int, how lockHow) error{
	"flock": func(fd int, how lockHow) error { return unix.Flock(fd, how.flock) },
	"fcntl": func(fd int, how lockHow) error { return setLock(fd, how.fcntl, how.typ) },
	"OFD":   func(fd int, how lockHow) error { return setLock(fd, how.ofd, how.typ) },
}

type lockHow struct {
	flock, fcntl, ofd int
	typ               int16
}

var (
	try    = lockHow{unix.LOCK_EX | unix.LOCK_NB, unix.F_SETLK, unix.F_OFD_SETLK, unix.F_WRLCK}
	wait   = lockHow{unix.LOCK_EX, unix.F_SETLKW, unix.F_OFD_SETLKW, unix.F_WRLCK}
	unlock = lockHow{unix.LOCK_UN, unix.F_SETLK, unix.F_OFD_SETLK, unix.F_UNLCK}
)

func setLock(fd, command int, typ int16) error {
	return unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: typ})
}

// errnoName is the name of the errno in err, or what err says.
func errnoName(err error) string {
	var number unix.Errno
	if errors.As(err, &number) && unix.ErrnoName(number) != "" {
		return unix.ErrnoName(number)
	}
	return err.Error()
}

// playHold locks a file as a daemon does that is to run once: it says "granted" and when, in
// nanoseconds, or "refused", when and why, does what it is told, and keeps the file open until the
// end of its input.
//
//	hold KIND try|wait PATH
//
// It is told to write a line where it stands, to replace everything by a line, to sync, to lock
// once more, or to read everything. It says "done", or "failed" and why.
func playHold(args []string, told *bufio.Scanner) error {
	call, how := locking[args[0]], map[string]lockHow{"try": try, "wait": wait}[args[1]]
	file, err := os.OpenFile(args[2], os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	fd := int(file.Fd())
	fmt.Println("opened")
	if err := call(fd, how); err != nil {
		fmt.Println("refused", time.Now().UnixNano(), errnoName(err))
		return nil
	}
	fmt.Println("granted", time.Now().UnixNano())
	for told.Scan() {
		word, line, _ := strings.Cut(told.Text(), " ")
		switch word {
		case "write":
			_, err = unix.Write(fd, []byte(line+"\n"))
		case "replace":
			if err = unix.Ftruncate(fd, 0); err == nil {
				_, err = unix.Pwrite(fd, []byte(line+"\n"), 0)
			}
		case "sync":
			err = unix.Fsync(fd)
		case "lock":
			err = call(fd, try)
		case "read":
			_, err = unix.Pread(fd, make([]byte, 4096), 0)
		}
		if err != nil {
			fmt.Println("failed", errnoName(err))
			continue
		}
		fmt.Println("done")
	}
	return nil
}
