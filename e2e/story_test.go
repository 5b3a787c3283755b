package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// TestFiles is what shell scripts do with files, one host after the other.
func TestFiles(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(
		step{`mkdir $A/orders-db`, 0, ""},
		step{`echo 10.4.7.22:7000 > $A/orders-db/master`, 0, ""},
		step{`cat $B/orders-db/master`, 0, "10.4.7.22:7000\n"},
		step{`ls $B $B/orders-db | sed "s,$B,B,"`, 0, "B:\norders-db\n\nB/orders-db:\nmaster\n"},
		step{`cat $(dirname $B)/local/orders-db/master`, 0, "10.4.7.22:7000\n"},

		step{`echo one > $A/orders-db/tmp; mv $A/orders-db/tmp $A/orders-db/master; cat $B/orders-db/master; ls $B/orders-db`, 0, "one\nmaster\n"},
		step{`sed -i s/one/two/ $B/orders-db/master; cat $A/orders-db/master; ls $A/orders-db`, 0, "two\nmaster\n"},
		step{`echo three >> $A/orders-db/master; echo four >> $B/orders-db/master; cat $A/orders-db/master`, 0, "two\nthree\nfour\n"},
		step{`echo short > $B/orders-db/master; cat $A/orders-db/master`, 0, "short\n"},
		step{`: > $A/orders-db/master; stat -c %s $B/orders-db/master`, 0, "0\n"},
		step{`for i in $(seq 100); do echo $i > $A/orders-db/master; test "$(cat $B/orders-db/master)" = $i || echo $i is stale; done`, 0, ""},

		step{`rmdir $B/orders-db 2>&1 | sed "s,$B,B,"`, 0, "rmdir: failed to remove 'B/orders-db': Directory not empty\n"},
		step{`mkdir $B/orders-db 2>&1 | sed "s,$B,B,"`, 0, "mkdir: cannot create directory 'B/orders-db': File exists\n"},
		step{`rm $B/orders-db/master && rmdir $A/orders-db && ls $B`, 0, ""},
		step{`cat $A/orders-db/master 2>&1 | sed "s,$A,A,"`, 0, "cat: A/orders-db/master: No such file or directory\n"},
	)
}

// TestCommandLine reads with the command line what a mount wrote, and the other way round.
func TestCommandLine(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	want := func(output string, args ...string) {
		t.Helper()
		if got := h.lockfs(args...); got != output {
			t.Errorf("lockfs %s: %q, want %q", strings.Join(args, " "), got, output)
		}
	}
	want("", "mkdir", "/ls/ny1/orders-db")
	want("", "put", "/ls/ny1/orders-db/master", "10.4.7.22:7000")
	h.play(step{`cat $B/orders-db/master`, 0, "10.4.7.22:7000"})
	want("", "put", "/ls/ny1/orders-db/master", "")
	h.play(step{`stat -c %s $B/orders-db/master; echo hello > $A/orders-db/master`, 0, "0\n"})
	want("hello\n", "get", "/ls/ny1/orders-db/master")
	want("orders-db/\n", "ls")
	want("master\n", "ls", "/ls/ny1/orders-db/")
	want("", "locks")

	for _, part := range []string{"\npath                /ls/ny1/orders-db/master\n", "\ntype                file\n", "\nsize                6\n", "\ncontent_generation  3\n"} {
		if got := "\n" + h.lockfs("stat", "/ls/ny1/orders-db/master"); !strings.Contains(got, part) {
			t.Errorf("stat prints %q, without %q", got, part)
		}
	}
	for _, part := range []string{`"content": "hello\n"`, `"size": 6`} {
		if got := h.lockfs("get", "/ls/ny1/orders-db/master", "-o", "json"); !strings.Contains(got, part) {
			t.Errorf("get -o json prints %s, without %s", got, part)
		}
	}
	holder := h.held(h.a, "orders-db/master")
	if got := h.lockfs("locks"); strings.Count(got, "\n") != 2 || !strings.Contains(got, "/ls/ny1/orders-db/master  held ") {
		t.Errorf("locks prints %q", got)
	}
	h.release(holder)
	if got := h.lockfs("sessions"); strings.Count(got, "\n") != 3 {
		t.Errorf("sessions prints %q, not a header and two mounts", got)
	}
	if got := h.lockfs("status"); !strings.Contains(got, "; 1 more may be lost\n") {
		t.Errorf("status prints %q", got)
	}
	want("", "rm", "/ls/ny1/orders-db/master")
	want("", "rm", "/ls/ny1/orders-db")
	want("", "ls")
}

// sequencerOf reads what a host holds of a file.
func (h *hosts) sequencerOf(host *proccell.Mount, name string) string {
	h.Helper()
	value := make([]byte, 2048)
	n, err := unix.Getxattr(host.Path(name), "user.lockfs.sequencer", value)
	if err != nil {
		h.Fatalf("sequencer of %s on host %s: %v", name, host.Name, err)
	}
	return string(value[:n])
}

// TestFlock is the life of a lock between two hosts, as flock(1) sees it.
func TestFlock(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`mkdir $A/orders-db; echo x > $A/orders-db/master`, 0, ""})

	holder := h.held(h.a, "orders-db/master")
	h.play(
		step{`flock -n $B/orders-db/master true`, 1, ""},
		step{`flock -n -s $B/orders-db/master true`, 1, ""},
		step{`flock -n $A/orders-db/master true`, 1, ""},
		step{`flock -w 0.3 $B/orders-db/master true`, 1, ""},
		step{`cat $B/orders-db/master`, 0, "x\n"}, // the lock is advisory
	)
	waiter := h.flock(h.b, "orders-db/master")
	h.waiting("orders-db/master", 1)
	began := time.Now()
	h.release(holder)
	h.ok(waiter.Holds(within(t, 10*time.Second)))
	t.Logf("the lock went from host to host in %v", time.Since(began))
	h.release(waiter)

	// Each grant has the generation after the last one, wherever it was given.
	const path = "/ls/ny1/orders-db/master:EXCLUSIVE:"
	var first int
	for i := range 6 {
		host := []*proccell.Mount{h.a, h.b}[i%2]
		holder := h.held(host, "orders-db/master")
		got := h.sequencerOf(host, "orders-db/master")
		if i == 0 {
			if _, err := fmt.Sscanf(got, path+"%d", &first); err != nil {
				t.Fatalf("sequencer %q: %v", got, err)
			}
		}
		if want := fmt.Sprint(path, first+i); got != want {
			t.Errorf("grant %d has the sequencer %q, want %q", i, got, want)
		}
		h.release(holder)
	}
	if _, err := unix.Getxattr(h.a.Path("orders-db/master"), "user.lockfs.sequencer", make([]byte, 100)); err != unix.ENODATA {
		t.Errorf("the sequencer of a lock that is not held: %v, want ENODATA", err)
	}

	// Shared holders keep an exclusive one away, and nobody else.
	h.play(
		step{`flock -s $A/orders-db/master flock -s -n $B/orders-db/master true`, 0, ""},
		step{`flock -s $A/orders-db/master flock -n $B/orders-db/master true`, 1, ""},
	)
	h.noLocks()
}

// TestHolderKilled kills the process that holds a lock: who waits on the other host gets it at
// once, and what the holder had not yet written does not matter to the lock.
func TestHolderKilled(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`: > $A/f`, 0, ""})
	for range 10 {
		holder := h.held(h.a, "f")
		waiter := h.flock(h.b, "f")
		h.waiting("f", 1)
		began := time.Now()
		h.ok(holder.Kill())
		h.ok(waiter.Holds(within(t, 10*time.Second)))
		if took := time.Since(began); took > time.Second {
			t.Errorf("the waiter got the lock %v after the holder's death", took)
		}
		h.release(waiter)
	}
}
