package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/fusetest"
)

// sized chooses between the short form of a test and the long one, of LOCKFS_SOAK=1.
func sized(short, long int) int {
	if os.Getenv("LOCKFS_SOAK") != "" {
		return long
	}
	return short
}

// host is one mount of a cell in a test.
type host struct {
	t    *testing.T
	name string
	dir  string // of the mount
	here string // a directory of the cell through the mount, the same for all hosts
	*Server
	log *testLog
}

// testLog is where a mount logs. It is shown if the test fails.
type testLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// twoHosts mounts a cell twice, and makes the directory in which the test works.
func twoHosts(t *testing.T) (c *testCell, a, b *host) {
	t.Helper()
	fusetest.Need(t)
	return hostsOf(newTestCell(t, lockfs.DefaultLease))
}

func hostsOf(c *testCell) (_ *testCell, a, b *host) {
	return c, c.mount("a", Config{}), c.mount("b", Config{})
}

func (c *testCell) mount(name string, cfg Config) *host {
	t := c.t
	t.Helper()
	h := &host{t: t, name: name, dir: t.TempDir(), log: &testLog{}}
	cfg.MountPoint, cfg.AllowOther = h.dir, true
	cfg.Logger = slog.New(slog.NewTextHandler(h.log, nil))
	cfg.Cells = []Cell{{"ny1", c.client(name, cfg.Timeout)}}
	server, err := Mount(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.Server, h.here = server, filepath.Join(h.dir, "ny1/d")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Logf("mount %s said:\n%s", h.dir, h.log)
		}
	})
	return h
}

// sh runs a script of bash in the test's directory and returns what it printed. Every script ends
// within limit, and is killed with all its children when the test ends.
func (h *host) command(script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(h.t.Context(), "bash", append([]string{"-c", script, "bash"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "D="+h.here, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// script runs a script with $D, the test's directory, and returns what it printed and its exit code.
func (h *host) script(script string, args ...string) (string, int) {
	h.t.Helper()
	out, err := h.command(script, args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%s: %v", script, err)
	}
	code := 0
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(out), code
}

// expect runs a script and wants its output, and that it succeeds.
func (h *host) expect(script, want string) {
	h.t.Helper()
	if out, code := h.script(script); out != want || code != 0 {
		h.t.Errorf("%s: printed %q, exit code %d; want %q", script, out, code, want)
	}
}

// fails runs a script and wants its exit code.
func (h *host) fails(script string, want int) {
	h.t.Helper()
	if out, code := h.script(script); code != want {
		h.t.Errorf("%s: exit code %d, want %d; printed %q", script, code, want, out)
	}
}

// running is a script in the background.
type running struct {
	*exec.Cmd
	t    *testing.T
	out  *testLog
	done chan struct{}
}

func (h *host) start(script string, args ...string) *running {
	h.t.Helper()
	r := &running{Cmd: h.command(script, args...), t: h.t, out: &testLog{}, done: make(chan struct{})}
	r.Stdout, r.Stderr = r.out, r.out
	if err := r.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		r.Cmd.Wait()
	}()
	h.t.Cleanup(r.end)
	return r
}

// end kills the script and all its children.
func (r *running) end() {
	syscall.Kill(-r.Process.Pid, syscall.SIGKILL)
	<-r.done
}

// wait waits for the script's end and returns its exit code, -1 if a signal ended it.
func (r *running) wait(limit time.Duration) int {
	r.t.Helper()
	select {
	case <-r.done:
		return r.ProcessState.ExitCode()
	case <-time.After(limit):
		r.t.Fatalf("%v has not ended after %v; it printed %q", r.Args, limit, r.out)
	}
	return 0
}

// until waits for a condition that another process brings about, and fails the test after a while.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for pause := time.Millisecond; !met(); pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-limit:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// The mount's own process must not use os.File on it: Go's runtime would ask the mount whether the
// file can be polled, with a thread that then does not serve. Plain system calls do not.

// open tries again after a signal, as the runtime sends them to its own threads.
func (h *host) open(name string, flags int) (int, error) {
	for {
		fd, err := unix.Open(h.path(name), flags|unix.O_CLOEXEC, 0o644)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func (h *host) writeFile(name, content string) {
	h.t.Helper()
	fd, err := h.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err == nil {
		if content != "" {
			_, err = unix.Write(fd, []byte(content))
		}
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		h.t.Fatalf("write %s: %v", name, err)
	}
}

func (h *host) readFile(name string) string {
	h.t.Helper()
	fd, err := h.open(name, unix.O_RDONLY)
	if err != nil {
		h.t.Fatalf("read %s: %v", name, err)
	}
	defer unix.Close(fd)
	var content []byte
	for buf := make([]byte, 4096); ; {
		n, err := unix.Read(fd, buf)
		if err != nil {
			h.t.Fatalf("read %s: %v", name, err)
		}
		if n == 0 {
			return string(content)
		}
		content = append(content, buf[:n]...)
	}
}

func TestTheFolder(t *testing.T) {
	c, a, b := twoHosts(t)
	if out, _ := a.script("ls " + a.dir); out != "local\nny1\n" {
		t.Errorf("ls lists %q", out)
	}
	a.expect("readlink "+a.dir+"/local", "ny1\n")
	if mounts, _ := os.ReadFile("/proc/mounts"); !strings.Contains(string(mounts), fmt.Sprintf("lockfs %s fuse.lockfs ", a.dir)) {
		t.Error("no fuse.lockfs in /proc/mounts")
	}
	a.expect("cd $D && mkdir x && echo 10.4.7.22:7000 > x/master && ls -R .", ".:\nx\n\n./x:\nmaster\n")
	b.expect("cat $D/x/master "+b.dir+"/local/d/x/master", "10.4.7.22:7000\n10.4.7.22:7000\n")
	b.expect("stat -c '%s %a %U %h' $D/x/master; stat -c '%a %F' $D/x", "15 644 root 1\n755 directory\n")
	instance := c.stat("/ls/ny1/d/x/master").Instance
	b.expect("stat -c %i $D/x/master", fmt.Sprintln(instance))
	b.expect("ls -i $D/x", fmt.Sprintln(instance, "master"))
	b.expect("df --output=fstype,itotal "+b.dir+" | tail -1 | tr -s ' '", "fuse.lockfs 1000000\n")
}

func TestCapabilities(t *testing.T) {
	const both = 1<<1 | 1<<10 // POSIX_LOCKS, FLOCK_LOCKS
	for flags, ok := range map[uint64]bool{both: true, 1 << 1: false, 1 << 10: false, 0: false, ^uint64(0): true} {
		if err := checkCapabilities(flags); (err == nil) != ok {
			t.Errorf("flags %#x: %v, want ok %v", flags, err, ok)
		}
	}
}

func TestTopmost(t *testing.T) {
	const mounts = `22 1 254:0 / / rw - ext4 /dev/root rw
40 22 0:37 / /ls rw,nosuid shared:1 - tmpfs tmpfs rw
41 40 0:38 / /ls rw,nosuid - fuse.lockfs lockfs rw
42 22 0:39 / /mnt/with\040space rw - fuse.lockfs lockfs rw
`
	for path, want := range map[string]string{
		"/": "ext4 254:0", "/ls": "fuse.lockfs 0:38", "/mnt/with space": "fuse.lockfs 0:39", "/mnt": " ",
	} {
		if typ, device := topmost(mounts, path); typ+" "+device != want {
			t.Errorf("topmost of %s: %q on %q, want %q", path, typ, device, want)
		}
	}
}

func TestMountPoint(t *testing.T) {
	fusetest.Need(t)
	c := newTestCell(t, lockfs.DefaultLease)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h := c.mount("a", Config{})
	for _, test := range []struct {
		mountPoint string
		says       string
	}{
		{file, "not a directory"},
		{file + "s", "no such file"},
		{h.dir, "another lockfs is mounted there"},
	} {
		_, err := Mount(Config{MountPoint: test.mountPoint, Cells: []Cell{{"ny1", c.client("b", 0)}}})
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("mount at %s: %v, want %q", test.mountPoint, err, test.says)
		}
	}
}

// TestMountPointByALink mounts where links lead, relative ones too, and takes that away again.
func TestMountPointByALink(t *testing.T) {
	fusetest.Need(t)
	c := newTestCell(t, lockfs.DefaultLease)
	dir := t.TempDir()
	for _, step := range []error{
		os.Mkdir(filepath.Join(dir, "real"), 0o755),
		os.Symlink("real", filepath.Join(dir, "link")),
		os.Symlink(filepath.Join(dir, "link"), filepath.Join(dir, "ls")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	s, err := Mount(Config{MountPoint: filepath.Join(dir, "ls"), Cells: []Cell{{"ny1", c.client("a", 0)}}})
	if err != nil {
		t.Fatal(err)
	}
	if mounted, err := lockfsAt(filepath.Join(dir, "real")); !mounted {
		t.Errorf("not mounted where the links lead: %v", err)
	}
	if _, err := Mount(Config{MountPoint: filepath.Join(dir, "link"), Cells: []Cell{{"ny1", c.client("b", 0)}}}); err == nil {
		t.Error("mounted over it by another link")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if mounted, err := lockfsAt(filepath.Join(dir, "real")); mounted {
		t.Errorf("still mounted: %v", err)
	}
}

// TestL074DeadMount kills a mount's daemon, a child process of the test, and mounts over what it left.
func TestL074DeadMount(t *testing.T) {
	fusetest.Need(t)
	dir := t.TempDir()
	daemon := exec.Command(os.Args[0])
	daemon.Env = append(os.Environ(), "LOCKFS_TEST_DAEMON="+dir)
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	until(t, "the daemon mounts", func() bool { mounted, _ := lockfsAt(dir); return mounted })
	daemon.Process.Kill()
	daemon.Wait()
	until(t, "the mount is dead", func() bool { _, err := os.Stat(dir); return errors.Is(err, unix.ENOTCONN) })
	s, err := Mount(Config{MountPoint: dir, Cells: []Cell{{"ny1", newTestCell(t, lockfs.DefaultLease).client("a", 0)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ny1/d")); err != nil {
		t.Error(err)
	}
	mounts, _ := os.ReadFile("/proc/mounts")
	if n := strings.Count(string(mounts), " "+dir+" "); n != 1 {
		t.Errorf("%d entries in /proc/mounts, want 1", n)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// serveUntilKilled is the daemon that TestL074DeadMount kills. Its cell never answers.
func serveUntilKilled(dir string) {
	c, err := client.Open(client.Config{Cell: "ny1", Addresses: []string{"127.0.0.1:1"}})
	if err == nil {
		_, err = Mount(Config{MountPoint: dir, Cells: []Cell{{"ny1", c}}})
	}
	if err != nil {
		panic(err)
	}
	select {}
}
