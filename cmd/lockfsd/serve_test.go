package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockfs/internal/command"
	"lockfs/internal/proccell"
)

// replica runs the program in this process until end is called.
func replica(t *testing.T, args ...string) (log *proccell.Log, end func() error) {
	t.Helper()
	log = new(proccell.Log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, args, io.Discard, log) }()
	end = func() error {
		cancel()
		select {
		case err := <-done:
			done <- err
			return err
		case <-time.After(proccell.StopTime):
			t.Fatalf("has not ended %v after it was told to; it said\n%s", proccell.StopTime, log)
		}
		return nil
	}
	t.Cleanup(func() { end() })
	return log, end
}

// TestServe is the embedded default: a replica that is a cell of its own, started twice.
func TestServe(t *testing.T) {
	addresses, err := proccell.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--cell", "ny1", "--name", "r1", "--insecure", "--listen", addresses[0],
		"--data", filepath.Join(t.TempDir(), "data"), "--http", addresses[1], "--lease", "5s"}
	for range 2 {
		log, end := replica(t, args...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := log.Await(ctx, "ready", 0); err != nil {
			t.Fatalf("%v; it said\n%s", err, log)
		}
		if said := log.String(); !strings.Contains(said, "leader=r1") || strings.Contains(said, "majority") || strings.Contains(said, "another port") {
			t.Errorf("it said\n%s", said)
		}
		answer, err := http.Get("http://" + addresses[1] + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || string(body) != "ok\n" || err != nil {
			t.Errorf("/healthz: %s, %q, %v", answer.Status, body, err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}

	// The cell keeps its lease, whatever a later start says, and says so.
	var stderr strings.Builder
	err = run(t.Context(), append(args[:len(args)-1], "6s"), io.Discard, io.Discard)
	if code := command.Report("lockfsd", err, &stderr); code != command.ExitFailed ||
		stderr.String() != "lockfsd: cell ny1 has a lease of 5s since its first start, which --lease 6s does not change\n" {
		t.Errorf("another --lease: exit code %d, saying %q", code, stderr.String())
	}
}

// TestSilentCaller stops a replica to which somebody has connected who says nothing.
func TestSilentCaller(t *testing.T) {
	addresses, err := proccell.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	log, end := replica(t, "--cell", "ny1", "--name", "r1", "--insecure", "--listen", addresses[0], "--data", filepath.Join(t.TempDir(), "data"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := log.Await(ctx, "ready", 0); err != nil {
		t.Fatalf("%v; it said\n%s", err, log)
	}
	for range 3 {
		conn, err := net.Dial("tcp", addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if err := end(); err != nil { // within the time that it has
		t.Error(err)
	}
}

// TestFailedStart fails where it cannot listen, and leaves no data folder that would hold the next
// start to its flags.
func TestFailedStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := proccell.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ listen, http, peers, says string }{
		{taken.Addr().String(), free[0], "r1=" + free[0], "--listen: "},
		{free[0], taken.Addr().String(), "r1=" + free[0], "--http: "},
		{free[0], free[0], "r2=" + free[0], "--peers does not name this replica, r1"},
	} {
		folder := filepath.Join(t.TempDir(), "data")
		err := run(t.Context(), []string{"--cell", "ny1", "--name", "r1", "--insecure", "--data", folder,
			"--listen", test.listen, "--http", test.http, "--peers", test.peers}, io.Discard, io.Discard)
		if err == nil || !strings.HasPrefix(err.Error(), test.says) {
			t.Errorf("%v, want %q", err, test.says)
		}
		if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: there is a data folder: %v", test.says, err)
		}
	}
}

// TestWaiting is a replica whose fellows are away, and that listens where they would not look.
func TestWaiting(t *testing.T) {
	t.Parallel()
	addresses, err := proccell.FreeAddresses(4)
	if err != nil {
		t.Fatal(err)
	}
	log, end := replica(t, "--cell", "ny1", "--name", "r1", "--insecure", "--listen", addresses[0],
		"--data", filepath.Join(t.TempDir(), "data"),
		"--peers", "r1="+addresses[1]+",r2="+addresses[2]+",r3="+addresses[3])
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := log.Await(ctx, "another port", 0); err != nil {
		t.Error(err)
	}
	if err := log.Await(ctx, "no master is known: waiting for a majority", 0); err != nil {
		t.Errorf("%v; it said\n%s", err, log)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	for _, missing := range []string{"r2=" + addresses[2], "r3=" + addresses[3]} {
		if said := log.String(); !strings.Contains(said[strings.Index(said, "majority"):], missing) {
			t.Errorf("it does not miss %s; it said\n%s", missing, said)
		}
	}
}
