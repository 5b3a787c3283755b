package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// TestL006SharedLocksOfADeadMount kills the mount of a host with -9 whose programs hold a lock
// shared. The other host gets it exclusively when the session is over.
func TestL006SharedLocksOfADeadMount(t *testing.T) {
	h := twoHosts(t, proccell.Config{Lease: 2 * time.Second}, "--lock-delay", "0s")
	h.play(step{`touch $A/f`, 0, ""})
	holder, err := proccell.Launch("holder", exec.Command("flock", "-s", h.a.Path("f"), "sleep", "1000"), nil)
	h.ok(err)
	h.Cleanup(func() { holder.Kill() })
	h.until("the lock is shared", time.Minute, func() bool { return strings.Contains(h.lockfs("locks"), "SHARED") })
	h.play(step{`flock -n -s $B/f true`, 0, ""}, step{`flock -n -x $B/f true`, 1, ""})
	h.ok(h.a.Process().Kill())
	h.play(step{`flock -w 30 -x $B/f true`, 0, ""})
	h.noLocks()
}

// TestL024WaitOverFailovers: a blocking wait has no deadline. It lasts longer than any other call may,
// over two masters that are killed, and keeps its place before a later one.
func TestL024WaitOverFailovers(t *testing.T) {
	h := twoHosts(t, proccell.Config{}, "--timeout", "2s")
	h.play(step{`touch $A/f`, 0, ""})
	holder := h.held(h.a, "f")
	first := h.flock(h.b, "f")
	h.waiting("f", 1)
	second := h.flock(h.b, "f")
	h.waiting("f", 2)
	began := time.Now()
	for range 2 {
		master, err := h.cell.Master(within(t, 30*time.Second))
		h.ok(err)
		h.ok(master.Process().Kill())
		h.waiting("f", 2)
		h.ok(master.Start(within(t, 30*time.Second)))
	}
	<-time.After(time.Until(began.Add(5 * time.Second))) // more than twice the time-out
	h.waiting("f", 2)
	h.release(holder)
	h.ok(first.Holds(within(t, 10*time.Second)))
	h.waiting("f", 1)
	h.release(first)
	h.ok(second.Holds(within(t, 10*time.Second)))
	h.release(second)
	h.noLocks()
}

// launch starts a lockfs-mount of its own kind on dir, and waits until it is ready. The test's end
// ends it.
func launch(t *testing.T, cell *proccell.Cell, program, dir string, attr *syscall.SysProcAttr, flags ...string) *proccell.Process {
	t.Helper()
	cmd := exec.Command(program, append(append(cell.ClientFlags(), flags...), dir)...)
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = attr
	p, err := proccell.Launch("lockfs-mount", cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.Done():
		default:
			if err := p.Stop(proccell.StopTime); err != nil {
				t.Error(err)
			}
		}
		if err := proccell.Detach(dir); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("it said:\n%s", p.Log)
		}
	})
	h := &hosts{T: t}
	h.until("the mount is ready", time.Minute, func() bool {
		select {
		case <-p.Done():
			t.Fatalf("it has ended; it said:\n%s", p.Log)
		default:
		}
		return strings.Contains(p.Log.String(), "msg=ready")
	})
	return p
}

// TestL015MountInPidNamespace runs the mount's daemon in a pid namespace of its own: to it all who
// use the mount have the pid 0. They lock, wait and are interrupted like any others.
func TestL015MountInPidNamespace(t *testing.T) {
	fusetest.Need(t)
	cell := newCell(t, proccell.Config{Replicas: 1})
	dir := t.TempDir()
	launch(t, cell, programs.Mount, dir, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	bash := func(script string, code int, want string) {
		t.Helper()
		cmd := exec.Command("bash", "-c", script)
		cmd.Env = append(os.Environ(), "A="+filepath.Join(dir, "ny1"), "LC_ALL=C")
		if out, err := proccell.Run(within(t, time.Minute), script, cmd); proccell.ExitCode(err) != code || out != want {
			t.Errorf("%s: %v; it said %q, want %d and %q", script, err, out, code, want)
		}
	}
	bash(`echo x > $A/f; echo y >> $A/f; cat $A/f; stat -c %s $A/f`, 0, "x\ny\n4\n")
	bash(`flock $A/f flock -n $A/f true`, 1, "")
	bash(`flock $A/f timeout -s INT 0.3 flock $A/f true`, 124, "")
	bash(`exec 9< $A/f; flock 9; flock $A/f echo got it & sleep 0.2; kill -STOP $!; kill -CONT $!; flock -u 9; wait $!`, 0, "got it\n")
	bash(`exec 9<> $A/f; flock 9; echo z >&9; flock -u 9; cat $A/f`, 0, "z\ny\n")
	bash(`cp -a $A/f $A/g; sed -i s/z/a/ $A/g; cat $A/g; rm $A/g; ls $A`, 0, "a\ny\nf\n")
}

// TestNonRoot is the mount of a user who is not root, through fusermount3: it is his alone, ends as
// root's does, and is replaced when it is dead.
func TestNonRoot(t *testing.T) {
	fusetest.Need(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip(err)
	}
	if device, err := os.Stat("/dev/fuse"); err != nil || device.Mode()&0o006 != 0o006 {
		t.Skipf("/dev/fuse is not for everybody: %v, %v", device.Mode(), err)
	}
	const nobody = 65534
	base, err := os.MkdirTemp("", "lockfs-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	dir, program := filepath.Join(base, "ls"), filepath.Join(base, "lockfs-mount")
	binary, err := os.ReadFile(programs.Mount)
	for _, step := range []func() error{
		func() error { return err },
		func() error { return os.WriteFile(program, binary, 0o755) },
		func() error { return os.Mkdir(dir, 0o755) },
		func() error { return os.Chown(dir, nobody, nobody) },
		func() error { return os.Chmod(base, 0o755) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	as := func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	bash := func(attr *syscall.SysProcAttr, script string, code int, want string) {
		t.Helper()
		cmd := exec.Command("bash", "-c", script)
		cmd.Env = append(os.Environ(), "A="+filepath.Join(dir, "ny1"), "LC_ALL=C")
		cmd.SysProcAttr = attr
		if out, err := proccell.Run(within(t, time.Minute), script, cmd); proccell.ExitCode(err) != code || out != want {
			t.Errorf("%s: %v; it said %q, want %d and %q", script, err, out, code, want)
		}
	}
	mounts := func() int {
		text, _ := os.ReadFile("/proc/mounts")
		return strings.Count(string(text), " "+dir+" fuse.lockfs ")
	}

	cell := newCell(t, proccell.Config{Replicas: 1, Lease: 2 * time.Second})
	mount := launch(t, cell, program, dir, as(), "--lock-delay", "0s")
	bash(as(), `echo x > $A/f; cat $A/f; stat -c '%U %a' $A/f; flock -n $A/f echo got it; flock $A/f flock -n $A/f true`, 1, "x\nnobody 644\ngot it\n")
	bash(as(), `cd $A; install -m 644 f g; cp -a f h; rm f g; ls; df . > /dev/null`, 0, "h\n")
	bash(nil, `ls $A 2> /dev/null`, 2, "") // not even root may look
	if err := mount.Kill(); err != nil {
		t.Fatal(err)
	}
	mount = launch(t, cell, program, dir, as(), "--lock-delay", "0s")
	if n := mounts(); n != 1 {
		t.Errorf("%d mounts after the restart, want 1", n)
	}
	bash(as(), `cat $A/h; flock -w 10 $A/h echo got it`, 0, "x\ngot it\n")
	if err := mount.Stop(proccell.StopTime); err != nil {
		t.Error(err)
	}
	if n := mounts(); n != 0 {
		t.Errorf("%d mounts after the end, want none", n)
	}
}
