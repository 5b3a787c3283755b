package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockfs/internal/proccell"
)

// TestCounter counts on both hosts at once, under the lock of the counter file itself. The lock goes
// to and fro, and not one increment may be lost.
func TestCounter(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`echo 0 > $A/counter`, 0, ""})
	each := sized(300, 50_000)
	began := time.Now()
	var c critical
	var counting sync.WaitGroup
	for _, host := range []*proccell.Mount{h.a, h.b} {
		counting.Go(func() {
			longest := time.Duration(0)
			for range each {
				began := time.Now()
				if err := c.enter(t, host.Path("counter")); err != nil {
					t.Errorf("host %s: %v", host.Name, err)
					return
				}
				longest = max(longest, time.Since(began))
			}
			t.Logf("host %s: no cycle took longer than %v", host.Name, longest)
			if longest > 2*time.Second {
				t.Errorf("host %s: a cycle took %v", host.Name, longest)
			}
		})
	}
	counting.Wait()
	t.Logf("%d cycles of lock, write, unlock in %v", 2*each, time.Since(began).Round(time.Millisecond))
	h.play(step{`cat $B/counter`, 0, fmt.Sprintln(2 * each)})
	h.noLocks()
}

// counterScript is the same in bash: it takes the lock of a counter file, adds one, and lets the
// lock go, $2 times.
const counterScript = `
for ((i = 0; i < $2; i++)); do
	exec 9<>"$1/counter"
	flock 9 || exit 1
	read -r n < "$1/counter"
	echo $((n + 1)) > "$1/counter" || exit 1
	exec 9>&-
done`

func TestCounterInBash(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`echo 0 > $A/counter`, 0, ""})
	each := sized(50, 10_000)
	var counting sync.WaitGroup
	for _, host := range []*proccell.Mount{h.a, h.b} {
		counting.Go(func() {
			cmd := exec.Command("bash", "-c", counterScript, "counter", host.Path(""), strconv.Itoa(each))
			if output, err := proccell.Run(within(t, time.Duration(each)*time.Second/2), "counter", cmd); err != nil {
				t.Errorf("counter on host %s: %v: %s", host.Name, err, output)
			}
		})
	}
	counting.Wait()
	h.play(step{`cat $B/counter`, 0, fmt.Sprintln(2 * each)})
	h.until("all locks are let go", 10*time.Second, func() bool { return h.lockfs("locks") == "" })
}

// waiter is one blocked flock(1).
type waiter struct {
	cmd  *exec.Cmd
	gone chan struct{}
}

func startWaiter(t *testing.T, path string) *waiter {
	t.Helper()
	w := &waiter{exec.Command("flock", path, "true"), make(chan struct{})}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		w.cmd.Wait()
		close(w.gone)
	}()
	return w
}

// kill kills the waiter and returns how long it took to be gone.
func (w *waiter) kill(t *testing.T) time.Duration {
	began := time.Now()
	w.cmd.Process.Kill()
	select {
	case <-w.gone:
	case <-time.After(20 * time.Second):
		t.Errorf("process %d is still there 20 s after kill -9", w.cmd.Process.Pid)
	}
	return time.Since(began)
}

// TestWaiters blocks hundreds of processes of one host in flock, or two thousand. The host goes on reading and
// writing, and each process that is killed is gone within two seconds.
func TestWaiters(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`: > $A/f; echo x > $A/other`, 0, ""})
	holder := h.held(h.a, "f")

	n := sized(600, 2000)
	var waiters []*waiter
	t.Cleanup(func() { // whatever happens, before the mounts' end
		for _, w := range waiters {
			w.cmd.Process.Kill()
		}
	})
	began := time.Now()
	for range n {
		waiters = append(waiters, startWaiter(t, h.b.Path("f")))
	}
	h.waiting("f", n)
	t.Logf("%d waiters in %v", n, time.Since(began).Round(time.Millisecond))

	for range 20 {
		began := time.Now()
		content, err := os.ReadFile(h.b.Path("other"))
		if took := time.Since(began); err != nil || string(content) != "x\n" || took > time.Second {
			t.Errorf("reading beside %d waiters: %q, %v, after %v", n, content, err, took)
		}
	}
	kill := func(together []*waiter) (longest time.Duration) {
		took := make([]time.Duration, len(together))
		var dying sync.WaitGroup
		for i, w := range together {
			dying.Go(func() { took[i] = w.kill(t) })
		}
		dying.Wait()
		return slices.Max(took)
	}
	for _, size := range []int{1, 50} { // some one by one, then all, in crowds
		longest, killed := time.Duration(0), 0
		for killed < 50*size && len(waiters) > 0 {
			crowd := waiters[:min(size, len(waiters))]
			longest, killed = max(longest, kill(crowd)), killed+size
			waiters = waiters[len(crowd):]
		}
		t.Logf("%d killed, %d at a time: the slowest was gone after %v", killed, size, longest)
		if longest > 2*time.Second {
			t.Errorf("a killed process was there for %v", longest)
		}
	}

	// None of the dead is ever granted the lock.
	h.waiting("f", 0)
	h.release(holder)
	h.release(h.held(h.b, "f"))
	h.noLocks()
}
