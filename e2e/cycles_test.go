package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockfs/internal/proccell"
)

// counterScript takes the lock of a counter file, adds one, and lets the lock go, $2 times. It
// prints the longest it waited for the lock, in microseconds.
const counterScript = `
longest=0
for ((i = 0; i < $2; i++)); do
	exec 9<>"$1/counter"
	before=${EPOCHREALTIME/[.,]/}
	flock 9 || exit 1
	waited=$((${EPOCHREALTIME/[.,]/} - before))
	((waited > longest)) && longest=$waited
	read -r n < "$1/counter"
	echo $((n + 1)) > "$1/counter" || exit 1
	flock -u 9
	exec 9>&-
done
echo $longest`

// TestCounter counts on both hosts at once. Not one increment may be lost.
func TestCounter(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`echo 0 > $A/counter`, 0, ""})
	each := sized(500, 20_000)
	began := time.Now()
	var counting sync.WaitGroup
	for _, host := range []*proccell.Mount{h.a, h.b} {
		counting.Go(func() {
			cmd := exec.Command("bash", "-c", counterScript, "counter", host.Path(""), strconv.Itoa(each))
			output, err := proccell.Run(within(t, time.Duration(each)*time.Second/5), "counter", cmd)
			if err != nil {
				t.Errorf("counter on host %s: %v: %s", host.Name, err, output)
				return
			}
			longest, err := time.ParseDuration(strings.TrimSpace(output) + "us")
			if err != nil || longest > 2*time.Second {
				t.Errorf("host %s waited for %v, %v", host.Name, longest, err)
			}
			t.Logf("host %s waited no longer than %v", host.Name, longest)
		})
	}
	counting.Wait()
	t.Logf("%d cycles of lock, write, unlock in %v", 2*each, time.Since(began).Round(time.Millisecond))
	h.play(step{`cat $B/counter`, 0, fmt.Sprintln(2 * each)})
	if locks := h.lockfs("locks"); locks != "" {
		t.Errorf("locks are left:\n%s", locks)
	}
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

// TestWaiters blocks two thousand processes of one host in flock. The host goes on reading and
// writing, and each process that is killed is gone within two seconds.
func TestWaiters(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`: > $A/f; echo x > $A/other`, 0, ""})
	holder := h.held(h.a, "f")

	const n = 2000
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
	var longest time.Duration
	for _, w := range waiters[:sized(100, n/2)] {
		longest = max(longest, w.kill(t))
	}
	t.Logf("one after the other, the slowest was gone after %v", longest)
	var rest sync.WaitGroup
	var mu sync.Mutex
	for _, w := range waiters {
		rest.Go(func() {
			took := w.kill(t)
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, took)
		})
	}
	rest.Wait()
	t.Logf("all at once, the slowest was gone after %v", longest)
	if longest > 2*time.Second {
		t.Errorf("a killed process was there for %v", longest)
	}

	// None of the dead is ever granted the lock.
	h.waiting("f", 0)
	h.release(holder)
	h.release(h.held(h.b, "f"))
	if locks := h.lockfs("locks"); locks != "" {
		t.Errorf("locks are left:\n%s", locks)
	}
}
