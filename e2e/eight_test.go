package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// TestEight counts in eight processes on two hosts, under each kind of lock, unlocking by a call or
// by a close. The count is exact, no two are in there at once, and of all errors programs see only
// that the lock is another's, and EINTR where they asked for it: some of them get signals all the
// time, with SA_RESTART or without, and some are stopped now and then. Others list the directory and
// write there.
func TestEight(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	for _, host := range []*proccell.Mount{h.a, h.b} {
		talk(t, "bystander", exec.Command("bash", "-c", bystanderScript, "bystander", host.Path("")))
	}
	for _, kind := range slices.Sorted(maps.Keys(locking)) {
		for _, by := range []string{"unlocked", "closed"} {
			t.Run(kind+" "+by, func(t *testing.T) {
				h := &hosts{T: t, cell: h.cell, a: h.a, b: h.b}
				h.countInEight(kind, by)
			})
		}
	}
	h.noLocks()
}

const bystanderScript = `
while sleep 0.05; do
	ls -l "$1" > /dev/null
	dd if=/dev/zero of="$1/bystander" bs=1k count=9 status=none
	dd if="$1/bystander" of=/dev/null status=none
done`

// How processes are disturbed, one of each on each host.
var disturbances = []string{"alarmed", "alarmed without SA_RESTART", "stopped", "left alone"}

func (h *hosts) countInEight(kind, by string) {
	file := strings.ReplaceAll(kind+" "+by, " ", "-")
	h.play(step{`echo 0 > $A/` + file, 0, ""})
	const unlimited = 1 << 30
	rounds := sized(unlimited, 2000)
	counters := h.startCounters(kind, by, file, rounds)
	began := time.Now()
	for _, c := range counters {
		h.ok(c.Say("go"))
	}
	reports := h.hearCounters(counters)
	finish := disturb(counters[0:4], counters[4:6])
	defer finish()
	if rounds == unlimited {
		<-time.After(2 * time.Second) // as many as fit
		for _, c := range counters {
			c.Say("stop") // which one that has ended does not hear
		}
	}
	total, slowest, saw := 0, time.Duration(0), make(map[string]int)
	for range counters {
		r := <-reports
		h.ok(r.err)
		h.check(r)
		total, slowest = total+r.Rounds, max(slowest, r.Slowest)
		for what, times := range r.Saw {
			saw[what] += times
		}
	}
	finish()
	h.Logf("%d rounds in %v, the slowest %v; seen: %v", total, time.Since(began).Round(time.Millisecond), slowest.Round(time.Millisecond), saw)
	h.play(step{`cat $A/` + file, 0, fmt.Sprintln(total)}, step{`cat $B/` + file, 0, fmt.Sprintln(total)})
	if total < 8 {
		h.Error("that is no contention")
	}
}

// startCounters starts eight processes that are ready to count.
func (h *hosts) startCounters(kind, by, file string, rounds int) []*proccell.Talker {
	h.Helper()
	arena := filepath.Join(h.TempDir(), "arena")
	h.ok(os.WriteFile(arena, make([]byte, os.Getpagesize()), 0o600))
	var counters []*proccell.Talker
	for i := range 8 {
		host := []*proccell.Mount{h.a, h.b}[i%2]
		counters = append(counters, program(h.T, "count", kind, by, disturbances[i/2], strconv.Itoa(rounds), host.Path(file), arena))
	}
	for _, c := range counters {
		_, err := c.Hear(within(h.T, time.Minute), "ready", 0)
		h.ok(err)
	}
	return counters
}

// report is what process i has seen.
type report struct {
	counted
	i   int
	err error // it said nothing
}

// hearCounters returns what the processes report, whichever ends first: one that gives up may leave
// the others waiting for ever.
func (h *hosts) hearCounters(counters []*proccell.Talker) <-chan report {
	reports := make(chan report, len(counters))
	for i, c := range counters {
		ctx := within(h.T, time.Hour)
		go func() {
			r := report{i: i}
			said, err := c.Hear(ctx, "counted ", 0)
			if r.err = err; err == nil {
				r.err = json.Unmarshal([]byte(said), &r.counted)
			}
			reports <- r
		}()
	}
	return reports
}

// check looks at what one process has seen.
func (h *hosts) check(r report) {
	h.Helper()
	who := fmt.Sprintf("process %d, %s", r.i, disturbances[r.i/2])
	interruptible := disturbances[r.i/2] == "alarmed without SA_RESTART"
	if r.Overlaps > 0 {
		h.Errorf("%s: %d times another was in there too", who, r.Overlaps)
	}
	if r.Strange != "" {
		h.Fatalf("%s: %s; it saw %v", who, r.Strange, r.Saw)
	}
	for what := range r.Saw {
		switch {
		case what == "try EAGAIN":
		case what == "open EINTR" || what == "read EINTR": // the kernel does not restart these
		case interruptible && (what == "wait EINTR" || what == "try EINTR"):
		default:
			h.Errorf("%s: it saw %s", who, what)
		}
	}
}

// disturb signals the alarmed, and stops and continues the stopped, until it is told to end it.
func disturb(alarmed, stopped []*proccell.Talker) (finish func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			for _, c := range alarmed {
				c.Signal(unix.SIGALRM)
			}
			for i, c := range stopped {
				switch (n + 10*i) % 20 {
				case 0:
					c.Freeze()
				case 3:
					c.Thaw()
				}
			}
			select {
			case <-tick.C:
			case <-end:
				for _, c := range stopped {
					c.Thaw()
				}
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(end); <-ended })
}

// counted is what a counting process has seen.
type counted struct {
	Rounds   int
	Overlaps int            // somebody else was in there too
	Saw      map[string]int // call and errno
	Strange  string         // why it gave up
	Slowest  time.Duration
}

// counter is a process that counts in a file under the file's lock.
type counter struct {
	counted
	call    func(fd int, how lockHow) error
	path    string
	closing bool          // unlock by close
	inside  *atomic.Int32 // shared by all processes
	fd      int           // -1 while the file is closed
}

// playCount counts until it is told to stop, or as often as it shall:
//
//	count KIND unlocked|closed DISTURBANCE ROUNDS PATH ARENA
func playCount(args []string, told *bufio.Scanner) error {
	rounds, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	c := &counter{call: locking[args[0]], path: args[4], closing: args[1] == "closed", fd: -1}
	c.Saw = make(map[string]int)
	if c.inside, err = shared(args[5]); err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGALRM)
	if args[2] == "alarmed without SA_RESTART" {
		if err := withoutRestart(unix.SIGALRM); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	told.Scan()
	var stop atomic.Bool
	go func() { told.Scan(); stop.Store(true) }()
	for c.Rounds < rounds && !stop.Load() {
		began := time.Now()
		if err := c.round(); err != nil {
			c.Strange = err.Error()
			break
		}
		c.Rounds++
		c.Slowest = max(c.Slowest, time.Since(began))
	}
	report, err := json.Marshal(c.counted)
	fmt.Printf("counted %s\n", report)
	return err
}

// shared returns a number in memory that is shared by all who name the same file.
func shared(path string) (*atomic.Int32, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	page, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*atomic.Int32)(unsafe.Pointer(&page[0])), nil
}

// withoutRestart lets a signal that is handled interrupt system calls. Go's own handlers restart
// them.
func withoutRestart(sig syscall.Signal) error {
	var action struct {
		handler  uintptr
		flags    uint64
		restorer uintptr
		mask     uint64
	}
	const set, saRestart = unsafe.Sizeof(action.mask), 0x10000000
	here := uintptr(unsafe.Pointer(&action))
	if _, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, here, set, 0, 0); err != 0 {
		return err
	}
	action.flags &^= saRestart
	if _, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), here, 0, set, 0, 0); err != 0 {
		return err
	}
	return nil
}

// again does a call, again while that is interrupted, and notes what errors it sees.
func (c *counter) again(call string, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		c.Saw[call+" "+errnoName(err)]++
		if err != unix.EINTR {
			return fmt.Errorf("%s: %w", call, err)
		}
	}
}

// round locks, counts, and unlocks.
func (c *counter) round() error {
	if err := c.lock(); err != nil {
		return err
	}
	if c.inside.Add(1) != 1 {
		c.Overlaps++
	}
	err := c.add()
	c.inside.Add(-1)
	if err != nil {
		return err
	}
	if !c.closing {
		return c.again("unlock", func() error { return c.call(c.fd, unlock) })
	}
	fd := c.fd
	c.fd = -1
	if err := unix.Close(fd); err != nil { // not again: the descriptor is gone in any case
		c.Saw["close "+errnoName(err)]++
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// lock tries, and waits where the lock is another's.
func (c *counter) lock() error {
	if c.fd < 0 {
		err := c.again("open", func() (err error) {
			c.fd, err = unix.Open(c.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
			return err
		})
		if err != nil {
			return err
		}
	}
	err := c.again("try", func() error { return c.call(c.fd, try) })
	if errors.Is(err, unix.EAGAIN) {
		err = c.again("wait", func() error { return c.call(c.fd, wait) })
	}
	return err
}

// add adds one, and reads it back.
func (c *counter) add() error {
	n, err := c.read()
	if err != nil {
		return err
	}
	line := fmt.Appendln(nil, n+1)
	err = c.again("write", func() error { _, err := unix.Pwrite(c.fd, line, 0); return err })
	if err != nil {
		return err
	}
	if now, err := c.read(); err != nil || now != n+1 {
		return fmt.Errorf("wrote %d, read back %d, %v", n+1, now, err)
	}
	return nil
}

func (c *counter) read() (int, error) {
	buf := make([]byte, 64)
	var got int
	err := c.again("read", func() (err error) { got, err = unix.Pread(c.fd, buf, 0); return err })
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(buf[:got])))
}
