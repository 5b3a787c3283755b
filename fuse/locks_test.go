package fuse

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/internal/fusetest"
)

const f = lockfs.Path("/ls/ny1/d/f")

// TestL001Flock is what scripts do with flock(1).
func TestL001Flock(t *testing.T) {
	c, a, b := twoHosts(t)
	a.expect("echo x > $D/f", "")
	holder := a.start("flock $D/f sleep 1000")
	until(t, "A holds the lock", func() bool { return c.held(f) == 1 })
	b.fails("flock -n $D/f true", 1)
	a.fails("flock -n $D/f true", 1)
	b.fails("flock -w 0.2 $D/f true", 1)
	b.fails("flock -n -s $D/f true", 1)
	waiter := b.start("flock $D/f cat $D/f")
	until(t, "B waits", func() bool { return c.waiting(f) == 1 })
	syscall.Kill(-holder.Process.Pid, syscall.SIGKILL)
	if code := waiter.wait(5 * time.Second); code != 0 || waiter.out.String() != "x\n" {
		t.Errorf("B: exit code %d, printed %q", code, waiter.out)
	}
	until(t, "the lock is free", func() bool { return c.held(f) == 0 })
	shared := a.start("flock -s $D/f sleep 1000")
	until(t, "A holds the lock", func() bool { return c.held(f) == 1 })
	b.expect("flock -n -s $D/f echo shared", "shared\n")
	b.fails("flock -n $D/f true", 1)
	a.expect("flock -s $D/f sh -c 'flock -n $D/f true; echo $?'", "1\n")
	syscall.Kill(-shared.Process.Pid, syscall.SIGKILL)
}

// TestL017InheritedDescriptor: whoever has the descriptor has the lock.
func TestL017InheritedDescriptor(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	script := a.start("exec 9< $D/f; flock 9; sleep 1000 9<&9 & echo $!; exec 9>&-; wait")
	until(t, "the lock is held", func() bool { return c.held(f) == 1 && script.out.String() != "" })
	b.fails("flock -n $D/f true", 1)
	var child int
	fmt.Sscan(script.out.String(), &child)
	syscall.Kill(child, syscall.SIGKILL)
	b.expect("flock -w 5 $D/f echo got it", "got it\n")
	// Closing the descriptor in the child, or flock -o, does not hand the lock on.
	a.start("exec 9< $D/f; flock 9; sleep 1000 9<&- & exec 9<&-; flock -o $D/f sh -c 'sleep 1000 & :'; wait")
	b.expect("flock -w 5 $D/f echo got it", "got it\n")
	// A child that unlocks unlocks its parent.
	a.start("exec 9< $D/f; flock 9; (flock -u 9); sleep 1000")
	b.expect("flock -w 5 $D/f echo got it", "got it\n")
}

// TestL010WhoseLock: which close ends which lock.
func TestL010WhoseLock(t *testing.T) {
	for _, test := range []struct {
		kind      string
		afterCopy string // what B's attempt gets after another descriptor of the file was closed
	}{
		{"flock", "EAGAIN"},
		{"ofd", "EAGAIN"},
		{"fcntl", ""},
	} {
		t.Run(test.kind, func(t *testing.T) {
			c, a, b := twoHosts(t)
			a.writeFile("f", "x")
			p, q := a.program(), b.program()
			p.do("open one $D/f r+", "")
			q.do("open f $D/f r+", "")
			p.do(test.kind+" one ex", "")
			p.do("open two $D/f r", "")
			q.do(test.kind+" f ex nb", "EAGAIN")
			p.do("close two", "")
			q.do(test.kind+" f ex nb", test.afterCopy)
			q.do(test.kind+" f un", "")
			p.do(test.kind+" one ex", "")
			p.do("close one", "")
			until(t, "the lock is free after the last close", func() bool { return c.held(f) == 0 })
			p.do("open one $D/f r+", "")
			p.do(test.kind+" one ex", "")
			p.kill()
			until(t, "the lock is free after the holder was killed", func() bool { return c.held(f) == 0 })
			q.do(test.kind+" f sh nb", "")
		})
	}
}

// TestKindsSideBySide is flock and fcntl by one process on one file, which some programs do to be
// sure: both are granted, and one lock of the cell serves both. Other processes get neither.
func TestKindsSideBySide(t *testing.T) {
	c, a, _ := twoHosts(t)
	a.writeFile("f", "x")
	p, q := a.program(), a.program()
	for _, program := range []*program{p, q} {
		program.do("open f $D/f r+", "")
	}
	p.do("flock f ex nb", "")
	p.do("fcntl f ex nb", "")
	if c.held(f) != 1 {
		t.Errorf("%d holders at the cell", c.held(f))
	}
	q.do("flock f ex nb", "EAGAIN")
	q.do("fcntl f sh nb", "EAGAIN")
	q.do("ofd f ex nb", "EAGAIN")
	p.do("ofd f ex nb", "EAGAIN") // of the open file, not of the process
	p.do("flock f un", "")
	q.do("flock f ex nb", "EAGAIN")
	p.do("fcntl f un", "")
	q.do("flock f ex nb", "")
	p.do("flock f ex nb", "EAGAIN")
	q.do("close f", "")
	p.do("flock f sh", "")
	p.do("fcntl f ex", "")
	p.do("getxattr $D/f user.lockfs.lock.mode", "EXCLUSIVE")
	p.do("fcntl f un", "")
	p.do("getxattr $D/f user.lockfs.lock.mode", "SHARED")
	// A second descriptor of the process has its fcntl locks, and not its flocks; but through both of
	// them, too, it does not wait for itself.
	p.do("open g $D/f r+", "")
	p.do("flock g ex nb", "EAGAIN")
	p.do("fcntl g ex", "")
	p.do("getxattr $D/f user.lockfs.lock.mode", "EXCLUSIVE")
	if c.held(f) != 1 {
		t.Errorf("%d holders at the cell", c.held(f))
	}
	p.do("flock f un", "")
	p.do("fcntl f ex nb", "")
	p.do("flock g ex", "")
	q.do("open f $D/f r+", "")
	q.do("flock f ex nb", "EAGAIN")
	q.do("fcntl f ex nb", "EAGAIN")
	p.do("close f", "") // with which the process's fcntl locks go
	q.do("flock f ex nb", "EAGAIN")
	p.do("close g", "")
	until(t, "all is free", func() bool { return c.held(f) == 0 })
}

// TestUnlockThroughAnother unlocks through a descriptor that wrote and did not lock. What it wrote is
// there for the next holder.
func TestUnlockThroughAnother(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "old")
	p := a.program()
	p.do("open one $D/f r+", "")
	p.do("open two $D/f r+", "")
	p.do("fcntl one ex", "")
	p.do("pwrite two 0 new", "")
	p.do("fcntl two un", "")
	if got := b.readFile("f"); got != "new" {
		t.Errorf("the next holder reads %q", got)
	}
}

// TestOddNames locks from a process whose name is no UTF-8 and has what a terminal obeys. It is one
// lock like any other, and nobody else hears of it.
func TestOddNames(t *testing.T) {
	c, a, _ := twoHosts(t)
	a.writeFile("f", "x")
	session := func() uint64 { return a.fs.allTenancies()[0].ID() }
	a.expect("cat $D/f", "x")
	before := session()
	name := filepath.Join(t.TempDir(), "\x1b[31m\n\xc3")
	a.start(`cp $(command -v flock) "$1" && exec "$1" $D/f sleep 1000`, name)
	until(t, "the lock is held", func() bool { return c.held(f) == 1 })
	if note := c.lock(f).Holders[0].Note; !strings.Contains(note, "?[31m?") {
		t.Errorf("the note is %q", note)
	}
	p := a.program()
	p.do("setxattr $D/f user.lockfs.acl.read \xff", "EINVAL")
	p.do("setxattr $D/f user.lockfs.acl.read /ls/ny1/acl/readers", "")
	if err := unix.Setxattr(a.path("f"), "user.lockfs.acl.read", nil, 0); err != unix.EINVAL {
		t.Errorf("a name of ACLs is taken away: %v", err)
	}
	if err := unix.Setxattr(a.path("f"), "user.lockfs.acl.write", nil, 0); err != nil {
		t.Errorf("a name of ACLs that is not there cannot be left so: %v", err)
	}
	if session() != before {
		t.Error("the session of the host was lost")
	}
}

// TestL016RangesOfAFile: any range counts as the whole file, until the last is gone.
func TestL016RangesOfAFile(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "x")
	p, q := a.program(), b.program()
	p.do("open f $D/f r+", "")
	q.do("open f $D/f r+", "")
	r := a.program() // on the host of p
	r.do("open f $D/f r+", "")
	p.do("fcntl f ex nb 0 10", "")
	q.do("fcntl f ex nb 5 1", "EAGAIN")
	r.do("fcntl f ex nb 5 1", "EAGAIN")
	r.do("ofd f sh nb 9 100", "EAGAIN")
	q.do("fcntl f ex nb 50 1", "EAGAIN")
	p.do("fcntl f un nb 0 5", "")
	q.do("fcntl f ex nb 5 1", "EAGAIN")
	r.do("fcntl f ex nb 2 1", "EAGAIN")
	r.do("close f", "")
	p.do("fcntl f un nb 5 5", "")
	q.do("fcntl f ex nb 5 1", "")
	q.do("fcntl f sh nb 5 1", "")
	p.do("fcntl f sh nb 0 0", "")
	p.do("fcntl f get", fmt.Sprintf("type %d pid 0", unix.F_RDLCK))
	q.do("fcntl f un nb 0 0", "")
	p.do("fcntl f get", fmt.Sprintf("type %d pid 0", unix.F_UNLCK))
	q.do("ofd f get", fmt.Sprintf("type %d pid -1", unix.F_RDLCK))
}

// TestConversion is trap 40: a conversion keeps the old lock and goes first; a second one neither
// hangs nor passes.
func TestConversion(t *testing.T) {
	for kind, second := range map[string]string{"flock": "", "fcntl": "EDEADLK"} {
		t.Run(kind, func(t *testing.T) {
			c, a, b := twoHosts(t)
			a.writeFile("f", "x")
			p, q := a.program(), b.program()
			for _, program := range []*program{p, q} {
				program.do("open f $D/f r+", "")
				program.do(kind+" f sh", "")
			}
			shared := c.stat(f).LockGeneration
			p.do(kind+" f ex nb", "EAGAIN")
			p.do("getxattr $D/f user.lockfs.lock.mode", "SHARED")
			p.tell("%s f ex", kind)
			until(t, "p waits for the conversion", func() bool { return c.waiting(f) == 1 })
			q.tell("%s f ex", kind)
			if second != "" {
				if got := q.hear(); got != second {
					t.Errorf("second conversion: %q", got)
				}
				q.do(kind+" f un", "")
			}
			if got := p.hear(); got != "" {
				t.Errorf("first conversion: %q", got)
			}
			p.do("getxattr $D/f user.lockfs.sequencer", fmt.Sprintf("/ls/ny1/d/f:EXCLUSIVE:%d", shared+1))
			if second == "" {
				until(t, "q queues up", func() bool { return c.waiting(f) == 1 })
				p.do(kind+" f un", "")
				if got := q.hear(); got != "" {
					t.Errorf("second conversion: %q", got)
				}
			}
		})
	}
}

// TestSequencer is a number more for each grant, as a script sees it.
func TestSequencer(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	generation := c.stat(f).LockGeneration
	p, q := a.program(), b.program()
	for _, program := range []*program{p, q, p, q} {
		program.do("open f $D/f r+", "")
		program.do("flock f ex", "")
		generation++
		program.do("getxattr $D/f user.lockfs.sequencer", fmt.Sprintf("/ls/ny1/d/f:EXCLUSIVE:%d", generation))
		program.do("close f", "")
	}
}

// TestCounter counts with a file that two hosts lock, read and write.
func TestCounter(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "0\n")
	count := `for i in $(seq 60); do ( flock 9; read -r n < $D/f; echo $((n+1)) > $D/f ) 9<> $D/f || exit 1; done`
	var counters []*running
	for _, h := range []*host{a, b, a, b} {
		counters = append(counters, h.start(count))
	}
	for _, r := range counters {
		if code := r.wait(60 * time.Second); code != 0 {
			t.Errorf("exit code %d: %s", code, r.out)
		}
	}
	b.expect("cat $D/f", "240\n")
}

// TestL005Alternation: two hosts lock, write and close by turns; no turn takes long, and no lock is
// left.
func TestL005Alternation(t *testing.T) {
	c, a, b := twoHosts(t)
	const cycles = `
for ((i = 0; i < $1; i++)); do
	began=$EPOCHREALTIME
	( flock -x 9; echo $i > $D/v ) 9> $D/f
	took=$(( ${EPOCHREALTIME/./} - ${began/./} ))
	((took < 2000000)) || echo "cycle $i took $took us"
done`
	a.writeFile("f", "")
	each := fmt.Sprint(sized(100, 500))
	x, y := a.start(cycles, each), b.start(cycles, each)
	for _, r := range []*running{x, y} {
		if code := r.wait(3 * time.Minute); code != 0 || r.out.String() != "" {
			t.Errorf("exit code %d: %s", code, r.out)
		}
	}
	until(t, "nothing is held", func() bool { return c.held(f) == 0 && c.waiting(f) == 0 })
}

// TestL022Interrupts: a waiter ends with a signal, and is taken from the queue.
func TestL022Interrupts(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	a.start("flock $D/f sleep 1000")
	until(t, "A holds the lock", func() bool { return c.held(f) == 1 })
	for _, test := range []struct {
		script string
		code   int
	}{
		{"timeout -s INT 0.3 flock $D/f true", 124},
		{"timeout -s TERM 0.3 flock $D/f true", 124},
		{"timeout -s KILL 0.3 flock $D/f true", -1}, // it kills itself too
		{"flock -w 0.3 $D/f true", 1},
		{"flock $D/f true & sleep 0.2; kill -STOP $!; kill -KILL $!; wait $!", 128 + 9},
	} {
		start := time.Now()
		b.fails(test.script, test.code)
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("%s: took %v", test.script, d)
		}
		until(t, "the waiter leaves the queue", func() bool { return c.waiting(f) == 0 })
	}
}

// TestTicket is trap 11: neither SIGSTOP nor a signal handler costs a waiter its place.
func TestTicket(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	holder := a.start("flock $D/f sleep 1000")
	until(t, "A holds the lock", func() bool { return c.held(f) == 1 })
	first := b.program()
	first.do("open f $D/f r+", "")
	first.tell("flock f ex")
	until(t, "the first waits", func() bool { return c.waiting(f) == 1 })
	second := b.start("flock $D/f true")
	until(t, "both wait", func() bool { return c.waiting(f) == 2 })
	front := func() uint64 { return c.lock(f).Waiters[0].Owner }
	before := front()
	for range 3 {
		first.cmd.Process.Signal(syscall.SIGSTOP)
		until(t, "the first has stopped", func() bool { return strings.Contains(stateOf(first.cmd.Process.Pid), "T") })
		first.cmd.Process.Signal(syscall.SIGCONT)
		until(t, "the first goes on", func() bool { return !strings.Contains(stateOf(first.cmd.Process.Pid), "T") })
	}
	for range 3 { // a handler with SA_RESTART, which the Go runtime has for this signal
		kept := b.ticket()
		until(t, "the wait is interrupted", func() bool { first.signalThreads(syscall.SIGURG); return b.ticket() > kept })
	}
	if after := front(); after != before || c.waiting(f) != 2 {
		t.Errorf("owner %d is at the head, and %d wait; it was owner %d", after, c.waiting(f), before)
	}
	syscall.Kill(-holder.Process.Pid, syscall.SIGKILL)
	if got := first.hear(); got != "" {
		t.Errorf("the first: %q", got)
	}
	first.kill()
	if code := second.wait(5 * time.Second); code != 0 {
		t.Errorf("the second: exit code %d", code)
	}
}

// TestStoppedConverter interrupts a conversion that waits, which the kernel then asks for again: the
// new request is not told how the one that was given up has ended.
func TestStoppedConverter(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	p, q := a.program(), b.program()
	for _, program := range []*program{p, q} {
		program.do("open f $D/f r+", "")
		program.do("flock f sh", "")
	}
	p.tell("flock f ex")
	until(t, "p waits for the conversion", func() bool { return c.waiting(f) == 1 })
	for range 20 {
		p.cmd.Process.Signal(syscall.SIGSTOP)
		p.cmd.Process.Signal(syscall.SIGCONT)
	}
	until(t, "p goes on", func() bool { return !strings.Contains(stateOf(p.cmd.Process.Pid), "T") })
	q.do("flock f un", "")
	if got := p.hear(); got != "" {
		t.Errorf("the conversion: %q", got)
	}
	p.do("getxattr $D/f user.lockfs.lock.mode", "EXCLUSIVE")
}

// ticket is until when a place in the queue of f is kept.
func (h *host) ticket() clock.Instant {
	l := h.fs.allTenancies()[0].locks
	l.mu.Lock()
	defer l.mu.Unlock()
	until := clock.Instant(0)
	for _, holds := range l.mu.nodes {
		for _, hold := range holds {
			until = max(until, hold.keepUntil)
		}
	}
	return until
}

// TestL085WaitersDoNotBlock: not even hundreds of them; cat answers, and each that is killed is gone.
func TestL085WaitersDoNotBlock(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x\n")
	holder := b.start("flock $D/f sleep 1000")
	until(t, "B holds the lock", func() bool { return c.held(f) == 1 })
	a.expect("exec 9<> $D/f; flock 9 & timeout 3 cat <&9; kill $!", "x\n")
	until(t, "nobody waits", func() bool { return c.waiting(f) == 0 })
	const waiters = 300
	var programs []*waiter
	for range waiters {
		programs = append(programs, a.waiter())
	}
	until(t, "all wait", func() bool { return c.waiting(f) == waiters })
	start := time.Now()
	a.expect("cat $D/f", "x\n")
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("cat took %v", d)
	}
	for _, w := range programs[:20] {
		start := time.Now()
		w.kill(t)
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("a killed waiter was there for %v", d)
		}
	}
	until(t, "the killed wait no more", func() bool { return c.waiting(f) == waiters-20 })
	for _, w := range programs[20:] {
		syscall.Kill(w.pid, syscall.SIGKILL)
	}
	for _, w := range programs[20:] {
		w.reap(t)
	}
	until(t, "nobody waits", func() bool { return c.waiting(f) == 0 })
	syscall.Kill(-holder.Process.Pid, syscall.SIGKILL)
}

// TestNoGhosts is 1.7 of the facts: a lock that its program has given up by closing the file is
// not in the way of this host's next attempt.
func TestNoGhosts(t *testing.T) {
	c, a, _ := twoHosts(t)
	a.writeFile("f", "x")
	p := a.program()
	for i := range 500 {
		p.do("open f $D/f r+", "")
		p.tell("flock f ex nb")
		if got := p.hear(); got != "" {
			t.Fatalf("round %d: %q", i, got)
		}
		p.do("close f", "")
	}
	until(t, "the lock is free", func() bool { return c.held(f) == 0 })
}

// TestDeletedUnderALock is trap 6.
func TestDeletedUnderALock(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	p, q := a.program(), b.program()
	p.do("open f $D/f r+", "")
	q.do("open f $D/f r+", "")
	p.do("flock f ex", "")
	q.tell("flock f ex")
	until(t, "q waits", func() bool { return c.waiting(f) == 1 })
	b.expect("rm $D/f; touch $D/f", "")
	if got := q.hear(); got != "ESTALE" {
		t.Errorf("the waiter: %q", got)
	}
	p.do("getxattr $D/f user.lockfs.sequencer", "ENODATA")
	p.do("pwrite f 0 y", "ESTALE")
	p.do("flock f ex nb", "ESTALE")
	p.do("flock f un", "ESTALE")
	p.do("close f", "ESTALE")
}

// TestL033LostSession: what was open is dead for good, what is opened is not.
func TestL033LostSession(t *testing.T) {
	fusetest.Need(t)
	c, a, b := hostsOf(newTestCell(t, shortLease))
	a.writeFile("f", "x")
	p, q := a.program(), a.program()
	p.do("open f $D/f r+", "")
	p.do("open g $D/f r+", "")
	p.do("pread f 0 9", "x")
	p.do("flock f ex", "")
	p.do("pwrite g 0 lost", "")
	q.do("open f $D/f r+", "")
	q.tell("flock f ex")
	until(t, "q waits", func() bool { return c.waiting(f) == 1 })
	c.expire(a)
	if got := q.hear(); got != "ESTALE" {
		t.Errorf("the waiter: %q", got)
	}
	for _, command := range []string{"pread f 0 9", "pwrite f 0 y", "flock f ex nb", "flock f un", "fsync f", "truncate f 0", "end f", "close f", "fsync g", "close g"} {
		p.do(command, "ESTALE")
	}
	p.do("open f $D/f r+", "")
	p.do("pread f 0 9", "x")
	p.do("flock f ex nb", "")
	b.fails("flock -n $D/f true", 1)
	if said := a.log.String(); !strings.Contains(said, "lock lost") || !strings.Contains(said, fmt.Sprintf("pid=%d", p.cmd.Process.Pid)) {
		t.Errorf("no line for the lost lock")
	}
}

// TestL021OtherUsers is L021, and that others may read: a uid that could not write may not lock.
func TestL021OtherUsers(t *testing.T) {
	_, a, _ := twoHosts(t)
	a.writeFile("f", "x\n")
	as := "setpriv --reuid 65534 --clear-groups "
	if out, code := a.script("chmod 755 $(dirname " + a.dir + "); " + as + "flock -n $D/f true"); code == 0 || code == 1 || !strings.Contains(out, "not permitted") {
		t.Errorf("flock by another user: exit code %d, %q", code, out)
	}
	a.expect(as+"cat $D/f", "x\n")
	a.expect(as+"ls $D", "f\n")
	a.fails(as+"sh -c 'echo y > $D/f'", 2)
	a.fails(as+"touch $D/g", 1)
	a.fails(as+"rm -f $D/f", 1)
}

// TestL002SilentCell is L081 too: nothing hangs, and nothing is granted.
func TestL002SilentCell(t *testing.T) {
	fusetest.Need(t)
	c := newTestCell(t, shortLease)
	a := c.mount("a", Config{Timeout: 300 * time.Millisecond})
	a.writeFile("f", "x\n")
	p := a.program()
	p.do("open f $D/f r+", "")
	back := c.leave(a)
	defer back()
	a.fails("cat $D/f", 1)
	a.fails("flock -n $D/f true", 66)
	a.fails("echo y > $D/f", 1)
	a.fails("mkdir $D/x", 1)
	a.expect("df "+a.dir+" > /dev/null; ls "+a.dir, "local\nny1\n")
	// With the lease over, a write is not taken in that may never be committed.
	session := a.fs.allTenancies()[0]
	until(t, "the lease is over", func() bool { return session.Left() == 0 })
	p.tell("pwrite f 0 y")
	if got := p.hear(); got != "EIO" && got != "ESTALE" {
		t.Errorf("a write in jeopardy: %q", got)
	}
	waiter := a.start("timeout -s KILL 0.2 cat $D/f")
	if code := waiter.wait(5 * time.Second); code != -1 && code != 1 {
		t.Errorf("killed cat: exit code %d", code)
	}
}

// TestKilledWhileItCloses kills a process whose close waits for a cell that does not answer: it is
// gone, and what it wrote is committed when the cell answers.
func TestKilledWhileItCloses(t *testing.T) {
	c, a, _ := twoHosts(t)
	a.writeFile("f", "old")
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("fcntl f ex", "")
	p.do("pwrite f 0 new", "")
	back := c.leave(a)
	p.tell("close f")
	until(t, "the close waits", func() bool { return strings.Contains(stateOf(p.cmd.Process.Pid), "S") && p.silent() })
	start := time.Now()
	p.kill()
	p.cmd.Wait()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it was there for %v after kill -9", d)
	}
	back()
	until(t, "what it wrote is committed", func() bool { return c.content(f) == "new" })
	until(t, "its lock is free", func() bool { return c.held(f) == 0 })
}

// TestL076TheEnd is trap 39 too: what is held at the end of a mount ends as by expiry.
func TestL076TheEnd(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x\n")
	shell := a.start("cd $D; exec 9<> f; flock 9; echo ready; exec sleep 1000")
	until(t, "the lock is held", func() bool { return strings.Contains(shell.out.String(), "ready") })
	p := a.program()
	p.do("open g $D/g c", "")
	p.do("write g written", "")
	waiter := b.start("flock -w 5 $D/f cat $D/g")
	until(t, "B waits", func() bool { return c.waiting(f) == 1 })
	start := time.Now()
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > 9*time.Second {
		t.Errorf("took %v", d)
	}
	if code := waiter.wait(5 * time.Second); code != 0 || waiter.out.String() != "written" {
		t.Errorf("B: exit code %d, %q", code, waiter.out)
	}
	if mounted, _ := lockfsAt(a.dir); mounted {
		t.Error("still mounted")
	}
	if said := a.log.String(); !strings.Contains(said, "lock still held") || !strings.Contains(said, "detached") {
		t.Errorf("it said %q", said)
	}
}
