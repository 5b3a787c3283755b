package main

import (
	"context"
	"io"
	"net/http"
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
	go func() { done <- run(ctx, args, log) }()
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
	err = run(t.Context(), append(args[:len(args)-1], "6s"), io.Discard)
	if code := command.Report("lockfsd", err, &stderr); code != command.ExitFailed ||
		stderr.String() != "lockfsd: cell ny1 has a lease of 5s since its first start, which --lease 6s does not change\n" {
		t.Errorf("another --lease: exit code %d, saying %q", code, stderr.String())
	}
}
