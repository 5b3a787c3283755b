package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// visibleTime is how soon others see what a daemon has written under its lock into a file that it
// keeps open.
const visibleTime = 2 * time.Second

// daemon is a program that is to run once: it locks its pid file, writes its number into it, and
// keeps it open. It says "granted" or "refused" and, when it has written what it was told, "done".
type daemon struct {
	name  string
	start func(t *testing.T, path string) *proccell.Talker
}

const shellDaemon = `
exec 9<>"$1"
flock -n 9 || { echo refused; exit 1; }
echo granted
while read -r replace pid; do
	: > "$1"
	echo "$pid" >&9
	echo done
done`

const pythonDaemon = `
import fcntl, os, sys
f = open(sys.argv[1], 'r+')
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print('refused', flush=True)
    sys.exit(1)
print('granted', flush=True)
for line in sys.stdin:
    f.truncate(0)
    f.seek(0)
    f.write(line.split()[1] + '\n')
    f.flush()
    print('done', flush=True)`

func daemons(t *testing.T) []daemon {
	all := []daemon{{"bash", func(t *testing.T, path string) *proccell.Talker {
		return talk(t, "daemon in bash", exec.Command("bash", "-c", shellDaemon, "daemon", path))
	}}}
	for kind := range locking {
		all = append(all, daemon{"C with " + kind, func(t *testing.T, path string) *proccell.Talker {
			return program(t, "hold", kind, "try", path)
		}})
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Log("left out: ", err)
		return all
	}
	return append(all, daemon{"Python", func(t *testing.T, path string) *proccell.Talker {
		return talk(t, "daemon in Python", exec.Command(python, "-c", pythonDaemon, path))
	}})
}

// TestPidFile runs daemons of several makes, one after the other on this host and that one. What
// each writes can be read from the other host within two seconds, although it closes nothing; it
// keeps all others away; and the next one can begin as soon as it is dead.
func TestPidFile(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(step{`: > $A/pid`, 0, ""})
	makes := daemons(t)
	for round := range sized(1, 40) {
		for i, d := range makes {
			here, there := h.a, h.b
			if (round+i)%2 == 1 {
				here, there = there, here
			}
			pid := strings.Repeat("1", 7-(round+i)%7) // of changing length
			h.runOnce(d, makes[(i+1)%len(makes)], here, there, pid)
		}
	}
	h.noLocks()
}

// runOnce runs a daemon here, and looks from there; another one, of another make, must not run.
func (h *hosts) runOnce(d, other daemon, here, there *proccell.Mount, pid string) {
	h.Helper()
	running := d.start(h.T, here.Path("pid"))
	_, err := running.Hear(within(h.T, time.Minute), "granted", 0)
	h.ok(err)
	_, err = running.Ask(within(h.T, time.Minute), "replace "+pid, "done")
	h.ok(err)
	written := time.Now()
	h.until("the pid is there", time.Minute, func() bool {
		content, err := os.ReadFile(there.Path("pid"))
		h.ok(err)
		return string(content) == pid+"\n"
	})
	took := time.Since(written)
	h.Logf("%s on host %s: its pid was there after %v", d.name, here.Name, took.Round(time.Millisecond))
	if took > visibleTime {
		h.Errorf("that is more than %v", visibleTime)
	}
	loser := other.start(h.T, there.Path("pid"))
	_, err = loser.Hear(within(h.T, time.Minute), "refused", 0)
	h.ok(err)
	h.play(step{`cat $A/pid $B/pid`, 0, fmt.Sprintf("%s\n%s\n", pid, pid)})
	h.ok(running.Kill())
	h.until("its lock is free", time.Minute, func() bool { return h.lockfs("locks") == "" })
}

// losers are scripts that open a file, and so cut it to nothing, before they find that it is locked;
// $f is the file. They exit with 1. Each needs a program that not every machine has.
var losers = []struct{ needs, script string }{
	{"flock", `exec 9>$f; flock -n 9 || exit 1; echo wiped >&9`},
	{"flock", `exec 9>$f; host=$(uname -n); date > /dev/null; flock -n 9 || exit 1; echo wiped >&9`},
	{"flock", `( flock -n 9 || exit 1; echo wiped >&9 ) 9>$f`},
	{"flock", `exec 9>$f; flock -w 0.1 9 || exit 1; echo wiped >&9`},
	{"flock", `exec 9>$f; flock -s -n 9 || exit 1; echo wiped >&9`},
	{"flock", `exec 9>$f; timeout -s KILL 0.2 flock 9 && echo wiped >&9; exit 1`},
	{"flock", `exec 9>$f; timeout -s INT 0.2 flock 9 && echo wiped >&9; exit 1`},
	{"flock", `timeout -s KILL 0.3 bash -c 'exec 9>$f; flock 9; echo wiped >&9' || exit 1`},
	{"perl", `perl -e 'use Fcntl ":flock"; open F, ">", $ARGV[0]; flock(F, LOCK_EX | LOCK_NB) || exit 1; print F "wiped"' $f`},
	{"python3", `python3 -c 'import fcntl, sys
f = open(sys.argv[1], "w")
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
f.write("wiped")' $f 2> /dev/null`},
	{"python3", `python3 -c 'import fcntl, sys
f = open(sys.argv[1], "w")
fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
f.write("wiped")' $f 2> /dev/null`},
}

// TestLosers lets scripts lose the race for a lock on both hosts, in crowds. They may not wipe what
// the winner wrote, nor write anything at all: the file's generation stays. Who wins with the same
// words writes.
func TestLosers(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	var scripts []string
	for _, loser := range losers {
		if _, err := exec.LookPath(loser.needs); err != nil {
			t.Log("left out: ", err)
			continue
		}
		scripts = append(scripts, loser.script)
	}
	holder := h.held(h.a, "f")
	h.play(step{`echo the winner > $A/f`, 0, ""})
	generation := h.generation("f")
	unmoved := func() {
		t.Helper()
		h.play(step{`cat $A/f $B/f`, 0, "the winner\nthe winner\n"})
		if now := h.generation("f"); now != generation {
			t.Fatalf("who lost has moved the file's generation from %s to %s", generation, now)
		}
	}
	for range sized(1, 40) {
		var racing sync.WaitGroup
		for i, script := range scripts {
			for _, host := range []*proccell.Mount{h.a, h.b} {
				racing.Go(func() { h.lose(script, host.Path("f")) })
			}
			if i%4 == 3 {
				racing.Wait()
			}
		}
		racing.Wait()
		unmoved()
	}
	h.release(holder)
	h.until("all locks are let go", time.Minute, func() bool { return h.lockfs("locks") == "" })
	unmoved()
	h.play(step{`f=$B/f; exec 9>$f; flock -n 9 || exit 1`, 0, ""}) // wins, and writes nothing
	unmoved()
	h.play(step{`f=$B/f; exec 9>$f; flock -n 9 || exit 1; echo new >&9`, 0, ""}, step{`cat $A/f`, 0, "new\n"})
	h.noLocks()
}

func (h *hosts) lose(script, path string) {
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = append(os.Environ(), "f="+path)
	output, err := proccell.Run(within(h.T, time.Minute), script, cmd)
	if proccell.ExitCode(err) != 1 {
		h.Errorf("%s: %v, want exit code 1; it said %q", script, err, output)
	}
}

func (h *hosts) generation(name string) string {
	h.Helper()
	value := make([]byte, 100)
	n, err := unix.Getxattr(h.b.Path(name), "user.lockfs.content_generation", value)
	if err != nil {
		h.Fatalf("generation of %s: %v", name, err)
	}
	return string(value[:n])
}
