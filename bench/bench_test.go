package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

func TestMain(m *testing.M) {
	if worker, ok := asWorker(); ok {
		exit(worker())
	}
	os.Exit(m.Run())
}

// TestBench measures everything, for so short that only its being there says something, and is
// interrupted where many wait for the lock of a mount. Either way nothing may be left behind.
func TestBench(t *testing.T) {
	fusetest.Need(t)
	programs, err := proccell.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(programs.Lockfsd)
	t.Run("to its end", func(t *testing.T) {
		profiles := t.TempDir()
		o := options{bin: bin, rounds: 1, time: 20 * time.Millisecond, rows: regexp.MustCompile(""), profile: profiles}
		results, said, err := start(t, o, "")
		if err != nil {
			t.Fatal(err)
		}
		wantAllRows(t, results, said)
		for _, row := range []string{"library-lock-1", fmt.Sprintf("library-lock-%d", crowd)} {
			wantProfiles(t, filepath.Join(profiles, row))
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		o := options{bin: bin, rounds: 1, time: 50 * time.Millisecond, rows: regexp.MustCompile("mount hand-off 8")}
		floors := strings.Repeat(".", len(choose(new(stage).rows(), o.rows))-1)
		if _, _, err := start(t, o, floors); !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	})
}

// start runs the program in a folder of its own, interrupts it where it has said interruptAt, unless
// that is empty, and looks for what it leaves.
func start(t *testing.T, o options, interruptAt string) (results []result, said string, err error) {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out := &fusetest.Screen{At: func(said string) {
		if interruptAt != "" && strings.Contains(said, interruptAt) {
			interrupt()
		}
	}}
	results, err = run(ctx, o, out)
	if err != nil || testing.Verbose() {
		t.Log(out.String())
	}
	fusetest.NothingLeft(t, temp)
	return results, out.String(), err
}

// wantProfiles looks for the profiles of a row: of the client and of three replicas.
func wantProfiles(t *testing.T, row string) {
	t.Helper()
	for who, number := range map[string]int{"client": 1, "master": 1, "follower-*": 2} {
		files, err := filepath.Glob(row + "-" + who + ".pprof")
		if err != nil || len(files) != number {
			t.Errorf("profiles %s, %s: %q, %v, want %d", row, who, files, err, number)
		}
		for _, file := range files {
			if data, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(data, []byte("\x1f\x8b")) {
				t.Errorf("%s is no profile: %q, %v", file, data, err)
			}
		}
	}
}

// wantAllRows looks for a figure of each row, and a ratio to each of its floors, in what was
// returned and in what was printed.
func wantAllRows(t *testing.T, results []result, said string) {
	t.Helper()
	measured := make(map[string]result)
	for _, r := range results {
		measured[r.name()] = r
	}
	for _, r := range new(stage).rows() {
		result, f := measured[r.name()], measured[r.name()].typical
		if f.Count < r.clients/2 || f.P50 <= 0 || f.P99 < f.P50 || f.Rate <= 0 {
			t.Errorf("%s: %+v", r.name(), f)
		}
		if !strings.Contains(said, "\n"+r.name()+" ") {
			t.Errorf("%s is not printed in\n%s", r.name(), said)
		}
		if len(result.ratios) != len(r.floors) {
			t.Errorf("%s: %d ratios, want %d", r.name(), len(result.ratios), len(r.floors))
		}
		for _, x := range result.ratios {
			if !(x.median > 0) || math.IsInf(x.median, 0) {
				t.Errorf("%s: %+v", r.name(), x)
			}
		}
	}
}

// TestChoose takes the floors along, and the floors of floors.
func TestChoose(t *testing.T) {
	for _, test := range []struct{ names, want string }{
		{"library read 1$", "floor tcp 1, floor stream 1, library read 1"},
		{"mount hand-off 2", "floor tcp 1, floor sync 1, floor stream 1, library hand-off 2, mount hand-off 2"},
		{"fuse", "fuse lock 1, fuse lock 64, fuse write 1, fuse write 64, fuse read 1, fuse read 64"},
		{"nothing", ""},
	} {
		var names []string
		for _, r := range choose(new(stage).rows(), regexp.MustCompile(test.names)) {
			names = append(names, r.name())
		}
		if got := strings.Join(names, ", "); got != test.want {
			t.Errorf("-rows %q chooses %q, want %q", test.names, got, test.want)
		}
	}
}

// TestSum takes the ratios of rounds, not the ratio of medians: in the second round all was slow.
func TestSum(t *testing.T) {
	rows := []row{
		{where: "floor", what: "tcp", clients: 1},
		{where: "library", what: "read", clients: 1, floors: []string{"floor tcp 1"}},
	}
	of := func(floor, row time.Duration) round {
		return round{"floor tcp 1": {P50: floor}, "library read 1": {P50: row, P99: 2 * row}}
	}
	read := sum(rows, []round{of(10, 20), of(1000, 4000), of(11, 33)})[1]
	if read.typical.P50 != 33 || read.typical.P99 != 66 {
		t.Errorf("the typical round is %+v, want that of 33 ns", read.typical)
	}
	if got, want := read.ratios[0], (ratio{"floor tcp 1", 2, 3, 4}); got != want {
		t.Errorf("ratio %+v, want %+v", got, want)
	}
}

// TestLoad has every call counted once, and one of each client at least.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = time.Millisecond
		calls := make([]int, 3)
		f, err := load(t.Context(), len(calls), time.Nanosecond, func(client int) error {
			calls[client]++
			time.Sleep(took)
			return nil
		})
		if err != nil || f.Count != len(calls) || f.P50 != took || f.P99 != took {
			t.Errorf("%+v, %v", f, err)
		}
		for client, n := range calls {
			if n != 2 { // the first began with the warming up
				t.Errorf("client %d was called %d times", client, n)
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := load(ctx, 2, time.Hour, func(int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("when it is interrupted: %v", err)
	}
	if _, err := load(t.Context(), 2, time.Hour, func(client int) error { return fmt.Errorf("client %d fails", client) }); err == nil {
		t.Error("calls that fail are figures")
	}
}

// TestPassRound counts from one client to another, and sees where a lock is none.
func TestPassRound(t *testing.T) {
	lock := make(chan struct{}, 1)
	acquire := func(int) error { lock <- struct{}{}; return nil }
	release := func(int) error { <-lock; return nil }
	f, err := passRound(4, time.Nanosecond, acquire, release)
	if err != nil || f.Count != 3 {
		t.Errorf("%+v, %v, want 3 hand-offs among 4 clients who hold once each", f, err)
	}

	b := baton{holder: nobody, last: nobody}
	if err := b.taken(0, time.Now()); err != nil {
		t.Error(err)
	}
	if err := b.taken(1, time.Now()); err == nil || err.Error() != "clients 0 and 1 hold the lock at once" {
		t.Errorf("two hold: %v", err)
	}
}

func TestShort(t *testing.T) {
	for _, test := range []struct {
		value float64
		want  string
	}{{0.0174, "0.017"}, {1.234, "1.23"}, {12.34, "12.3"}, {123.4, "123"}, {12345, "12345"}} {
		if got := short(test.value); got != test.want {
			t.Errorf("%v is shown as %s, want %s", test.value, got, test.want)
		}
	}
}
