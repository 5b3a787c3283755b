package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/internal/fusetest"
)

// TestL006SharedLocksOfALostHost: when a host's session ends, its shared locks end too, and nobody
// waits in its name any more.
func TestL006SharedLocksOfALostHost(t *testing.T) {
	fusetest.Need(t)
	c, a, b := hostsOf(newTestCell(t, shortLease))
	a.expect("touch $D/f $D/g", "")
	const g = lockfs.Path("/ls/ny1/d/g")
	holder := b.program()
	holder.do("open g $D/g r+", "")
	holder.do("flock g ex", "")
	var programs []*program
	for range 2 {
		p := a.program()
		p.do("open f $D/f r+", "")
		p.do("flock f sh", "")
		p.do("open g $D/g r+", "")
		p.tell("flock g sh")
		programs = append(programs, p)
	}
	until(t, "A holds one lock twice, and waits for the other", func() bool { return c.held(f) == 2 && c.waiting(g) == 2 })
	writer := b.program()
	writer.do("open f $D/f r+", "")
	writer.tell("flock f ex")
	until(t, "B waits", func() bool { return c.waiting(f) == 1 })
	c.expire(a)
	if got := writer.hear(); got != "" {
		t.Errorf("B: %q", got)
	}
	if n := c.waiting(g); n != 0 {
		t.Errorf("%d still wait", n)
	}
	holder.do("flock g un", "")
	holder.do("flock g ex nb", "")
	for _, p := range programs {
		if got := p.hear(); got != "ESTALE" {
			t.Errorf("a waiter of A: %q", got)
		}
	}
}

// TestL011Errnos: whatever eight processes do to one file's lock on two hosts, while others read,
// list and write, they get the lock or an errno that means something.
func TestL011Errnos(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "x")
	load := b.start("while :; do dd if=$D/f of=$D/g status=none; ls -l $D > /dev/null; done")
	allowed := map[string][]string{
		"ex": nil, "sh": nil, "un": nil, // a wait is granted,
		"up": {"EDEADLK"}, // but for two who want a lock that they share for themselves;
		"nb": {"EAGAIN"},
	}
	var wrong sync.Map
	var running sync.WaitGroup
	for i := range 8 {
		p := []*host{a, b}[i%2].program()
		p.do("open f $D/f r+", "")
		kind := []string{"fcntl", "flock", "ofd", "fcntl"}[i/2]
		call := func(what, command string) {
			p.tell("%s f %s", kind, command)
			if got := p.hear(); got != "" && !slices.Contains(allowed[what], got) {
				wrong.Store(fmt.Sprintf("%s %s: %s", kind, command, got), true)
			}
		}
		running.Go(func() {
			for range 20 {
				call("ex", "ex")
				call("ex", "sh")
				call("un", "un")
				call("nb", "ex nb")
				call("un", "un")
				call("sh", "sh")
				call("up", "ex")
				call("un", "un")
			}
		})
	}
	running.Wait()
	wrong.Range(func(what, _ any) bool { t.Error(what); return true })
	select {
	case <-load.done:
		t.Errorf("the others have ended: %s", load.out)
	default:
	}
}

// TestL015PidNamespace: the pid in a request is of no consequence. A holder in a pid namespace of
// its own excludes others, and to another host its pid is nobody's.
func TestL015PidNamespace(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	if out, code := a.script("unshare -Upf --mount-proc true"); code != 0 {
		t.Skipf("no namespaces here: %s", out)
	}
	a.start("exec unshare -Upf --mount-proc flock $D/f sleep 1000")
	until(t, "A holds the lock", func() bool { return c.held(f) == 1 })
	a.fails("flock -n $D/f true", 1)
	b.fails("flock -n $D/f true", 1)
	p := b.program()
	p.do("open f $D/f r+", "")
	p.do("fcntl f get", fmt.Sprintf("type %d pid 0", unix.F_WRLCK))
	waiter := a.start("unshare -Upf --mount-proc timeout -s INT 0.3 flock $D/f true")
	if code := waiter.wait(10 * time.Second); code != 124 {
		t.Errorf("an interrupted waiter: exit code %d: %s", code, waiter.out)
	}
	until(t, "nobody waits", func() bool { return c.waiting(f) == 0 })

	// On the host itself, who asks learns the pid.
	q := a.program()
	q.do("open g $D/g c", "")
	q.do("fcntl g ex", "")
	r := a.program()
	r.do("open g $D/g r+", "")
	r.do("fcntl g get", fmt.Sprintf("type %d pid %d", unix.F_WRLCK, q.cmd.Process.Pid))
}

// TestL081Outage asks for the same name twenty times at once while no master can be reached. The kernel
// asks for it one after the other; still all have their errors in the time that one of them has.
func TestL081Outage(t *testing.T) {
	fusetest.Need(t)
	c := newTestCell(t, shortLease)
	const timeout = 2 * time.Second
	a := c.mount("a", Config{Timeout: timeout})
	a.writeFile("f", "x")
	back := c.leave(a)
	began := time.Now()
	var all []*running
	for range 10 {
		all = append(all, a.start("cat $D/f"), a.start("mkdir $D/dir"))
	}
	for _, one := range all {
		if code := one.wait(time.Minute); code == 0 {
			t.Errorf("it succeeded: %s", one.out)
		}
	}
	if took := time.Since(began); took > 3*timeout {
		t.Errorf("it took %v", took)
	}
	back()
	until(t, "the cell answers again", func() bool { _, code := a.script("cat $D/f"); return code == 0 })
}

// TestL026OrderOfArrival: forty waiters of two hosts are served in the order in which they came, and
// the lock goes from one to the next without a pause.
func TestL026OrderOfArrival(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	holder := a.program()
	holder.do("open f $D/f r+", "")
	holder.do("flock f ex", "")
	order := filepath.Join(t.TempDir(), "order")
	const waiters = 40
	var all []*running
	var want strings.Builder
	for i := range waiters {
		h := []*host{a, b}[i%2]
		all = append(all, h.start("exec 9< $D/f; flock 9; echo $2 >> $1; sleep 0.02", order, fmt.Sprint(i)))
		until(t, "it waits", func() bool { return c.waiting(f) == i+1 })
		fmt.Fprintln(&want, i)
	}
	began := time.Now()
	holder.do("flock f un", "")
	for _, r := range all {
		if code := r.wait(20 * time.Second); code != 0 {
			t.Errorf("exit code %d: %s", code, r.out)
		}
	}
	took := time.Since(began)
	t.Logf("%d waiters served in %v", waiters, took)
	if took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	if got, _ := os.ReadFile(order); string(got) != want.String() {
		t.Errorf("served in the order %q", got)
	}
}

// TestL052FailuresAreTold: what was not saved says so, at a moment that programs look at.
func TestL052FailuresAreTold(t *testing.T) {
	fusetest.Need(t)
	c := newTestCell(t, shortLease)
	a := c.mount("a", Config{Timeout: 300 * time.Millisecond})
	a.writeFile("f", "old\n")
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, []byte("new\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(t.TempDir(), "marker")
	shell := a.start("exec 9>> $D/f; echo opened; while test ! -e $1; do sleep 0.05; done; echo x >&9; exit $?", marker)
	until(t, "the shell has it open", func() bool { return shell.out.String() == "opened\n" })
	c.expire(a)
	if err := os.WriteFile(marker, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code := shell.wait(10 * time.Second); code == 0 {
		t.Errorf("a shell appends under a session that is lost: %s", shell.out)
	}
	back := c.leave(a)
	for _, script := range []string{
		"cp $1 $D/f", "dd if=$1 of=$D/f conv=fsync status=none", "echo x > $D/f", "cat $1 > $D/f", "echo x >> $D/f",
		"sed -i s/o/x/ $D/f", "install $1 $D/f", "touch $D/f", "truncate -s 0 $D/f", "rm -f $D/f", "mv $1 $D/g",
	} {
		if out, code := a.script(script, file); code == 0 {
			t.Errorf("%s: succeeds without a cell: %s", script, out)
		}
	}
	back()
	until(t, "the cell answers", func() bool { _, code := a.script("cat $D/f"); return code == 0 })
	a.expect("cat $D/f; ls $D", "old\nf\n")
}

// TestL083DeletedWhileOpen: readers have files open on one host while they are written, deleted and
// made anew on the other. No request is stuck, none takes long, and the kernel waits for none.
func TestL083DeletedWhileOpen(t *testing.T) {
	_, a, b := twoHosts(t)
	const files, readers = 5, 50
	var slowest atomic.Int64
	stop := make(chan struct{})
	var reading sync.WaitGroup
	for i := range readers {
		reading.Go(func() { a.readOn(fmt.Sprint("f", i%files), stop, &slowest) })
	}
	end := time.Now().Add(time.Duration(sized(5, 600)) * time.Second)
	for round := 0; time.Now().Before(end); round++ {
		name := fmt.Sprint("f", round%files)
		b.writeFile(name, fmt.Sprint(round))
		switch round % 3 {
		case 0:
			b.writeFile("t", "renamed")
			must(t, unix.Rename(b.path("t"), b.path(name)))
		case 1:
			must(t, unix.Unlink(b.path(name)))
		}
	}
	close(stop)
	reading.Wait()
	t.Logf("the slowest request took %v", time.Duration(slowest.Load()))
	if took := time.Duration(slowest.Load()); took > 5*time.Second {
		t.Errorf("a request took %v", took)
	}
	for _, h := range []*host{a, b} {
		until(t, "no request is open", func() bool { return h.openRequests() == "0" })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// readOn opens a file again and again and reads it, each open file a few times. Only that the file
// is gone may happen.
func (h *host) readOn(name string, stop chan struct{}, slowest *atomic.Int64) {
	timed := func(what string, call func() error) bool {
		began := time.Now()
		err := call()
		for took := int64(time.Since(began)); ; {
			if old := slowest.Load(); took <= old || slowest.CompareAndSwap(old, took) {
				break
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE) && !errors.Is(err, unix.EINTR) {
			h.t.Errorf("%s %s: %v", what, name, err)
		}
		return err == nil
	}
	for {
		select {
		case <-stop:
			return
		default:
		}
		var fd int
		var st unix.Stat_t
		buf := make([]byte, 100)
		if !timed("open", func() (err error) { fd, err = h.open(name, unix.O_RDONLY); return err }) {
			continue
		}
		for range 5 {
			timed("read", func() error { _, err := unix.Pread(fd, buf, 0); return err })
			timed("fstat", func() error { return unix.Fstat(fd, &st) })
		}
		timed("close", func() error { return unix.Close(fd) })
	}
}

// openRequests is how many requests the kernel has not had an answer to.
func (h *host) openRequests() string {
	h.t.Helper()
	control := h.t.TempDir()
	if err := unix.Mount("fusectl", control, "fusectl", 0, ""); err != nil {
		h.t.Fatal(err)
	}
	defer unix.Unmount(control, unix.MNT_DETACH)
	_, minor, _ := strings.Cut(h.fs.localLocks.device, ":")
	waiting, err := os.ReadFile(filepath.Join(control, minor, "waiting"))
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(string(waiting))
}
