// Package e2e runs lockfs as its users do: daemons as processes, mounts as two hosts would have
// them, and bash, cat, echo and flock on top. Each test has a cell of its own. They need root and
// FUSE for the mounts, and say so where they skip.
//
// LOCKFS_SOAK=1 (make soak) gives the long forms.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// programs are built once for all tests, with the race detector where the tests have it.
var programs proccell.Programs

var soak = os.Getenv("LOCKFS_SOAK") != ""

func TestMain(m *testing.M) {
	playProgram()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	folder, err := os.MkdirTemp("", "lockfs-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(folder)
	if programs, err = proccell.Build(context.Background(), folder); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// sized chooses a size by the form of the test.
func sized(short, long int) int {
	if soak {
		return long
	}
	return short
}

// hosts is a running cell with two mounts, which stand for two hosts.
type hosts struct {
	*testing.T
	cell *proccell.Cell
	a, b *proccell.Mount
}

// newCell starts a cell, and sees to its end.
func newCell(t *testing.T, config proccell.Config) *proccell.Cell {
	t.Helper()
	config.Programs, config.Dir = programs, t.TempDir()
	cell, err := proccell.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cell.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(cell.Logs())
		}
	})
	if err := cell.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	return cell
}

// twoHosts starts a cell with two mounts, which are given the flags.
func twoHosts(t *testing.T, config proccell.Config, flags ...string) *hosts {
	t.Helper()
	fusetest.Need(t)
	h := &hosts{T: t, cell: newCell(t, config)}
	var err error
	if h.a, err = h.cell.Mount(within(t, time.Minute), "a", flags...); err != nil {
		t.Fatal(err)
	}
	if h.b, err = h.cell.Mount(within(t, time.Minute), "b", flags...); err != nil {
		t.Fatal(err)
	}
	return h
}

// within returns a context that ends with the test, or after limit.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not within %v", limit))
	t.Cleanup(cancel)
	return ctx
}

// bash runs a script with $A and $B, the cell's folder on each host, and the commands in its PATH.
// Its output is standard output and error.
func (h *hosts) bash(script string) (output string, code int) {
	h.Helper()
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = append(os.Environ(), "A="+h.a.Path(""), "B="+h.b.Path(""), "LC_ALL=C")
	output, err := proccell.Run(within(h.T, time.Minute), script, cmd)
	if code = proccell.ExitCode(err); code < 0 {
		h.Fatalf("%s\n%v; it said:\n%s", script, err, output)
	}
	return output, code
}

// step is a script, and what it must do.
type step struct {
	script string
	code   int
	output string
}

func (h *hosts) play(steps ...step) {
	h.Helper()
	for _, s := range steps {
		if output, code := h.bash(s.script); code != s.code || output != s.output {
			h.Fatalf("%s\nexit code %d, said %q; want %d, %q", s.script, code, output, s.code, s.output)
		}
	}
}

// flock starts a process that wants the lock of a file on a host. The test's end ends it.
func (h *hosts) flock(host *proccell.Mount, name string) *proccell.Locker {
	h.Helper()
	locker, err := proccell.Flock(host.Path(name))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { locker.Kill() }) // before the mount's end
	return locker
}

// held is flock, and having got the lock.
func (h *hosts) held(host *proccell.Mount, name string) *proccell.Locker {
	h.Helper()
	locker := h.flock(host, name)
	h.ok(locker.Holds(within(h.T, time.Minute)))
	return locker
}

func (h *hosts) release(locker *proccell.Locker) {
	h.Helper()
	h.ok(locker.Release(within(h.T, time.Minute)))
}

func (h *hosts) ok(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// lockfs runs the command line on the cell.
func (h *hosts) lockfs(args ...string) string {
	h.Helper()
	output, err := h.cell.Lockfs(within(h.T, time.Minute), args...)
	h.ok(err)
	return output
}

// noLocks checks that the cell knows of no lock that is held, waited for or in its lock-delay.
func (h *hosts) noLocks() {
	h.Helper()
	if locks := h.lockfs("locks"); locks != "" {
		h.Errorf("locks are left:\n%s", locks)
	}
}

// until polls another process until it shows what is awaited.
func (h *hosts) until(what string, limit time.Duration, shown func() bool) {
	h.Helper()
	ctx := within(h.T, limit)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for !shown() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			h.Fatalf("%s: %v", what, context.Cause(ctx))
		}
	}
}

// waiting waits until n processes wait for the lock of a file.
func (h *hosts) waiting(name string, n int) {
	h.Helper()
	path := "/ls/" + h.cell.Name() + "/" + name
	h.until(fmt.Sprintf("%d waiters for %s", n, name), time.Minute, func() bool {
		lines := strings.Split(h.lockfs("locks", path), "\n")
		return n == len(slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, " waits ") }))
	})
}
