package fuse

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// javaLock is what Java calls a file lock: fcntl of the whole file, or of a range.
const javaLock = `
import java.io.*;
import java.nio.channels.*;
class Lock {
	public static void main(String[] args) throws Exception {
		FileChannel file = new RandomAccessFile(args[0], "rw").getChannel();
		FileLock lock = args[1].equals("try") ? file.tryLock(0, Long.MAX_VALUE, false) : file.lock();
		if (lock == null) System.exit(1);
		System.out.println("held");
		System.in.read();
	}
}`

// TestLanguages locks by what the libraries of languages offer, on one host, and wants to on the
// other, by the same and by flock(1).
func TestLanguages(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "x")
	java := filepath.Join(t.TempDir(), "Lock.java")
	if err := os.WriteFile(java, []byte(javaLock), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, tool string
		script     string // $1 is wait or try
	}{
		{"python lockf", "python3", `python3 -c 'import fcntl, sys
f = open(sys.argv[1], "r+")
try: fcntl.lockf(f, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[2] == "try" else 0))
except BlockingIOError: sys.exit(1)
print("held", flush=True)
sys.stdin.read()' $D/f $1`},
		{"python flock", "python3", `python3 -c 'import fcntl, sys
f = open(sys.argv[1])
try: fcntl.flock(f, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[2] == "try" else 0))
except BlockingIOError: sys.exit(1)
print("held", flush=True)
sys.stdin.read()' $D/f $1`},
		{"perl flock", "perl", `perl -e 'use Fcntl ":flock"; open(F, "+<", $ARGV[0]) or die;
flock(F, LOCK_EX | ($ARGV[1] eq "try" ? LOCK_NB : 0)) or exit 1;
$| = 1; print "held\n"; <STDIN>' $D/f $1`},
		{"java FileChannel", "java", `exec java $2 $D/f $1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := exec.LookPath(test.tool); err != nil {
				t.Skipf("%v; its system calls are those of the other tests", err)
			}
			until(t, "the lock is free", func() bool { return c.held(f) == 0 })
			holder := a.start("{ "+test.script+"; } < <(exec sleep 1000)", "wait", java)
			until(t, "it is held", func() bool { return holder.out.String() == "held\n" })
			b.fails("flock -n $D/f true", 1)
			if out, code := b.script(test.script, "try", java); code != 1 || out != "" {
				t.Errorf("tried on B: exit code %d: %s", code, out)
			}
			waiter := b.start(test.script+" < /dev/null", "wait", java)
			until(t, "B waits", func() bool { return c.waiting(f) == 1 })
			holder.end()
			if code := waiter.wait(20 * time.Second); code != 0 || waiter.out.String() != "held\n" {
				t.Errorf("waited for on B: exit code %d: %s", code, waiter.out)
			}
		})
	}
}
