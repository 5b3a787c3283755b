package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockfs/internal/proccell"
)

// refuse runs a program that has to fail, and expects its last words: one sentence, prefixed with
// its name.
func refuse(t *testing.T, program string, args []string, code int, sentence string) {
	t.Helper()
	output, err := proccell.Run(within(t, 30*time.Second), program, exec.Command(program, args...))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code {
		t.Errorf("%s %s: %v, want exit code %d; it said\n%s", filepath.Base(program), strings.Join(args, " "), err, code, output)
		return
	}
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, filepath.Base(program)+": ") || !strings.Contains(last, sentence) {
		t.Errorf("%s %s said\n%s\nwant at last a sentence with %q", filepath.Base(program), strings.Join(args, " "), output, sentence)
	}
}

// replaced returns args with the value of a flag exchanged.
func replaced(args []string, flag, value string) []string {
	args = slices.Clone(args)
	args[slices.Index(args, flag)+1] = value
	return args
}

// TestBadInput is one clear sentence for each kind of mistake.
func TestBadInput(t *testing.T) {
	cell := newCell(t, proccell.Config{Replicas: 1, Lease: 5 * time.Second})
	running := cell.Replicas[0]
	free, err := proccell.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	nobody := []string{"--insecure", "--cell", "ny1=" + free[0], "--timeout", "1s"}
	elsewhere := []string{"--insecure", "--cell", "ny1=10.0.0.1:7420"}
	empty := filepath.Join(t.TempDir(), "data")
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "diary.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fresh := []string{"--cell", "ny1", "--name", "r1", "--data", empty, "--listen", free[0], "--insecure"}

	refuse(t, programs.Lockfsd, nil, 2, "--cell, --name and --data are required")
	refuse(t, programs.Lockfsd, []string{"--colour"}, 2, "unknown flag: --colour")
	refuse(t, programs.Lockfsd, replaced(fresh, "--cell", "NY 1"), 2, `bad name: "NY 1"`)
	refuse(t, programs.Lockfsd, replaced(fresh, "--listen", "10.0.0.1:7420"), 2, "--insecure is refused on 10.0.0.1:7420")
	refuse(t, programs.Lockfsd, append(fresh, "--lease", "soon"), 2, `invalid argument "soon" for "--lease"`)
	if _, err := os.Stat(empty); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lockfsd refused its flags and made a data folder: %v", err)
	}
	refuse(t, programs.Lockfsd, replaced(fresh, "--data", foreign), 1, "holds diary.txt and no identity.json")
	refuse(t, programs.Lockfsd, running.Args, 1, "address already in use")
	refuse(t, programs.Lockfsd, replaced(replaced(running.Args, "--listen", free[0]), "--http", ""), 1, "is in use by another lockfsd")

	if err := running.Process().Stop(proccell.StopTime); err != nil {
		t.Fatal(err)
	}
	refuse(t, programs.Lockfsd, replaced(running.Args, "--cell", "ny2"), 1, "belongs to cell ny1, not ny2")
	refuse(t, programs.Lockfsd, replaced(replaced(running.Args, "--name", "r9"), "--peers", "r9="+running.Address), 1, "belongs to replica r1, not r9")
	refuse(t, programs.Lockfsd, replaced(running.Args, "--peers", "r1="+running.Address+",r2="+free[0]), 1, "belongs to a cell of the members")
	refuse(t, programs.Lockfsd, replaced(running.Args, "--lease", "7s"), 1, "cell ny1 has a lease of 5s since its first start, which --lease 7s does not change")
	refuse(t, programs.Lockfsd, append(slices.Clone(running.Args), "--grace", "50s"), 1, "cell ny1 has a grace period of 45s since its first start")
	if err := running.Start(within(t, 30*time.Second)); err != nil { // and is none the worse for it
		t.Fatal(err)
	}

	refuse(t, programs.Lockfs, []string{"ls"}, 2, "--cell NAME=HOST:PORT,… or LOCKFS_CELL is required")
	refuse(t, programs.Lockfs, append(elsewhere, "ls"), 2, "--insecure is refused on 10.0.0.1:7420")
	refuse(t, programs.Lockfs, append(nobody, "get", "/ls/ny1/x"), 1, "get /ls/ny1/x: no master answers")
	refuse(t, programs.Lockfs, append(nobody, "status"), 1, "status of cell ny1: no master answers")
	refuse(t, programs.Lockfs, append(nobody, "put", "/ls/ny1/x", "y"), 1, "put /ls/ny1/x: no master answers")
	refuse(t, programs.Lockfs, append(cell.ClientFlags(), "get", "/ls/ny1/a/../b"), 2, `bad name: ".."`)
	refuse(t, programs.Lockfs, append(cell.ClientFlags(), "get", "/ls/ny1/x"), 1, "/ls/ny1/x: does not exist")
	refuse(t, programs.Lockfs, append(cell.ClientFlags(), "put", "/ls/ny1/d/x", "y"), 1, "/ls/ny1/d/x: does not exist")
	refuse(t, programs.Lockfs, append(cell.ClientFlags(), "rm", "/ls/ny1"), 1, "/ls/ny1: ")

	point := t.TempDir()
	refuse(t, programs.Mount, nil, 2, "")
	refuse(t, programs.Mount, append(elsewhere, point), 2, "--insecure is refused on 10.0.0.1:7420")
	refuse(t, programs.Mount, append(cell.ClientFlags(), "--lock-delay", "61s", point), 2, "--lock-delay")
	refuse(t, programs.Mount, append(cell.ClientFlags(), filepath.Join(point, "missing")), 1, "no such file or directory")
}

// TestTooLarge writes one byte more than a file can hold: the write itself fails, and nothing of it
// is ever seen.
func TestTooLarge(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	h.play(
		step{`head -c 262144 /dev/zero > $A/full; stat -c %s $B/full`, 0, "262144\n"},
		step{`head -c 262145 /dev/zero | cat 2>&1 > $A/full; stat -c %s $B/full`, 0, "cat: write error: File too large\n262144\n"},
		step{`echo >> $A/full`, 1, "bash: line 1: echo: write error: File too large\n"},
		step{`head -c 262145 /dev/zero | cat 2>&1 > $A/new; test -s $B/new; echo $?`, 0,
			"cat: write error: File too large\n1\n"},
		step{`stat -c %s $B/full`, 0, "262144\n"},
	)
	large := exec.Command(programs.Lockfs, append(h.cell.ClientFlags(), "put", "/ls/ny1/full")...)
	large.Stdin = strings.NewReader(strings.Repeat("x", 262145))
	output, err := proccell.Run(within(t, time.Minute), "lockfs put", large)
	if proccell.ExitCode(err) != 1 || !strings.HasPrefix(output, "lockfs: ") || !strings.Contains(output, "/ls/ny1/full: file too large") {
		t.Errorf("lockfs put of too much: %v: %s", err, output)
	}
}
