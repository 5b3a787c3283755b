package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockfs/internal/proccell"
)

// TestTermReplica ends the master and then a follower as an admin does: with SIGTERM, at once, and
// without an interruption that anybody would notice.
func TestTermReplica(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`echo x > $A/f`, 0, ""})
	master, err := h.cell.Master(within(t, 10*time.Second))
	h.ok(err)
	began := time.Now()
	h.ok(master.Process().Stop(proccell.StopTime))
	t.Logf("the master ended in %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	h.play(step{`echo y > $B/f; cat $A/f`, 0, "y\n"})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("after a master that handed over, a write took %v", took)
	}
	h.ok(master.Start(within(t, 10*time.Second)))

	for _, r := range h.cell.Replicas {
		if now, err := h.cell.Master(within(t, 10*time.Second)); err != nil || now == r {
			continue
		}
		h.ok(r.Process().Stop(proccell.StopTime))
		h.play(step{`echo z > $B/f; cat $A/f`, 0, "z\n"})
		break
	}
}

// TestTermMount ends a mount while a program there holds a lock and another has a file open. The
// mount is gone, though it was busy; the lock ends as by expiry, with its lock-delay.
func TestTermMount(t *testing.T) {
	h := twoHosts(t, proccell.Config{}, "--lock-delay", "2s")
	h.play(step{`echo x > $A/f; echo y > $A/g`, 0, ""})
	holder := h.held(h.a, "f")
	waiter := h.flock(h.b, "f")
	h.waiting("f", 1)

	began := time.Now()
	h.ok(h.a.Stop())
	t.Logf("the mount ended in %v", time.Since(began).Round(time.Millisecond))
	h.ok(waiter.Holds(within(t, 30*time.Second)))
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("the waiter got the lock of a program that still ran after %v, within its lock-delay of 2 s", took)
	}
	h.ok(holder.Kill())
	h.ok(h.a.Start(within(t, 20*time.Second)))
	h.play(step{`cat $A/g`, 0, "y\n"})
}

// TestDeadMount kills a mount with -9. What is left at the mount point is dead; a new start
// replaces it.
func TestDeadMount(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`echo x > $A/f`, 0, ""})
	h.ok(h.a.Process().Kill())
	h.play(step{`cat $A/f 2>&1 | sed "s,$A,A,"`, 0, "cat: A/f: Transport endpoint is not connected\n"})
	h.ok(h.a.Start(within(t, 20*time.Second)))
	h.play(step{`cat $A/f`, 0, "x\n"})
	h.ok(h.a.Stop())
	if entries, err := os.ReadDir(h.a.Dir); err != nil || len(entries) != 0 {
		t.Errorf("after all mounts are gone the mount point shows %v, %v", entries, err)
	}
}

// TestNoCell stops two of three replicas: calls fail in the time they were given, a lock is not
// given by the kernel alone, df answers; and all goes on when the replicas are back.
func TestNoCell(t *testing.T) {
	h := twoHosts(t, proccell.Config{}, "--timeout", "2s")
	h.play(step{`echo x > $A/f`, 0, ""})
	for _, r := range h.cell.Replicas[:2] {
		h.ok(r.Process().Kill())
	}
	h.play(
		step{`timeout 8 cat $A/f 2>&1 | sed "s,$A,A,"`, 0, "cat: A/f: Input/output error\n"},
		step{`timeout 8 bash -c 'echo y > $A/f' 2>/dev/null`, 1, ""},
		step{`timeout 8 mkdir $A/d 2>&1 | sed "s,$A,A,"`, 0, "mkdir: cannot create directory 'A/d': Input/output error\n"},
		step{`timeout 2 df $A > /dev/null`, 0, ""},
	)
	if _, code := h.bash(`timeout 30 flock -n $A/f true`); code == 0 || code == 124 {
		t.Errorf("flock without a cell: exit code %d", code)
	}
	if _, err := h.cell.Lockfs(within(t, time.Minute), "--timeout", "2s", "status"); proccell.ExitCode(unwrapped(err)) != 1 {
		t.Errorf("lockfs status without a master: %v", err)
	}
	for _, r := range h.cell.Replicas[:2] {
		h.ok(r.Launch())
	}
	if _, err := h.cell.Master(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	h.play(
		step{`cat $A/f`, 0, "x\n"},
		step{`echo z > $B/f; cat $A/f; ls $A`, 0, "z\nf\n"},
		step{`flock -n $A/f true`, 0, ""},
	)
}

// unwrapped is the error under what proccell added to it.
func unwrapped(err error) error {
	if wrapped, ok := err.(interface{ Unwrap() error }); ok {
		return wrapped.Unwrap()
	}
	return err
}

// TestRestart stops the whole cell and starts it again: everything acknowledged is there, and the
// generations go on where they were.
func TestRestart(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`mkdir $A/d; for i in $(seq 50); do echo $i > $A/d/$i; done`, 0, ""})
	holder := h.held(h.a, "d/1")
	before := h.sequencerOf(h.a, "d/1")
	for range 2 {
		for _, r := range h.cell.Replicas {
			h.ok(r.Process().Kill())
		}
		for _, r := range h.cell.Replicas {
			h.ok(r.Launch())
		}
		_, err := h.cell.Master(within(t, time.Minute))
		h.ok(err)
		h.play(step{`cat $B/d/* | sort -n | tail -1; ls $B/d | wc -l`, 0, "50\n50\n"})
		h.play(step{`flock -n $B/d/1 true`, 1, ""})
		if now := h.sequencerOf(h.a, "d/1"); now != before {
			t.Errorf("the sequencer was %s and is %s", before, now)
		}
	}
	h.release(holder)
	later := h.held(h.b, "d/1")
	if now := h.sequencerOf(h.b, "d/1"); now == before || !strings.HasPrefix(now, "/ls/ny1/d/1:EXCLUSIVE:") {
		t.Errorf("the grant after %s has the sequencer %s", before, now)
	}
	h.release(later)
	if _, err := os.Stat(filepath.Join(h.cell.Replicas[0].Dir, "identity.json")); err != nil {
		t.Error(err)
	}
}
