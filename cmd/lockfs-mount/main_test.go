package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lockfs/internal/command"
	"lockfs/internal/fusetest"
)

func TestBadArguments(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const cell = "--cell ny1=127.0.0.1:7420 "
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"--insecure " + dir, command.ExitUsage, "--cell is required"},
		{cell + dir, command.ExitUsage, "--insecure, or --cert, --key and --ca, is required"},
		{cell + "--insecure", command.ExitUsage, "the folder to mount at is missing"},
		{cell + "--insecure /ls /ls", command.ExitUsage, "it mounts at one folder, and there are 2 arguments"},
		{"--cell NY1=127.0.0.1:7420 --insecure " + dir, command.ExitUsage, "bad name"},
		{"--cell ny1 --insecure " + dir, command.ExitUsage, "not NAME=HOST:PORT"},
		{"--cell ny1=127.0.0.1 --insecure " + dir, command.ExitUsage, "not host:port"},
		{cell + cell + "--insecure " + dir, command.ExitUsage, "--cell names ny1 twice"},
		{"--cell ny1=10.0.0.1:7420 --insecure " + dir, command.ExitUsage, "--insecure is refused on 10.0.0.1:7420"},
		{cell + "--insecure --lock-delay 61s " + dir, command.ExitUsage, "--lock-delay is 1m1s, not between 0s and 1m0s"},
		{cell + "--insecure --lock-delay -1s " + dir, command.ExitUsage, "--lock-delay is -1s"},
		{cell + "--insecure --lock-delay x " + dir, command.ExitUsage, "--lock-delay"},
		{cell + "--insecure --timeout 0s " + dir, command.ExitUsage, "--timeout is 0s"},
		{cell + "--insecure --colour " + dir, command.ExitUsage, "unknown flag: --colour"},
		{cell + "--cert x --key y --ca z " + dir, command.ExitFailed, "certificate x"},
		{cell + "--insecure " + file, command.ExitFailed, "not a directory"},
		{cell + "--insecure " + file + "s", command.ExitFailed, "no such file"},
	} {
		var stderr strings.Builder
		err := run(t.Context(), strings.Fields(test.args), &stderr)
		code := command.Report("lockfs-mount", err, &stderr)
		if code != test.code || !strings.Contains(stderr.String(), test.says) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: exit code %d saying %q; want %d and %q in one line", test.args, code, stderr.String(), test.code, test.says)
		}
	}
}

// said is what the program says, from any goroutine.
type said struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // holds one after a write
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until the program has said text, or has ended.
func (s *said) await(t *testing.T, text string, ended <-chan error) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case err := <-ended:
			t.Fatalf("ended with %v before it said %q; it said %q", err, text, s)
		case <-limit:
			t.Fatalf("it did not say %q but %q", text, s)
		}
	}
}

// TestUnreachableCell mounts although the cell is away, says so, and ends when told to.
func TestUnreachableCell(t *testing.T) {
	fusetest.Need(t)
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stderr := &said{more: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--cell", "ny1=127.0.0.1:1", "--insecure", "--timeout", "1s", dir}, stderr)
	}()
	stderr.await(t, "ready", ended)
	if !strings.Contains(stderr.String(), "cell does not answer") {
		t.Errorf("it said %q", stderr)
	}
	// By another process: this one must not open files of its own mount.
	if names, err := exec.Command("ls", dir).Output(); err != nil || string(names) != "local\nny1\n" {
		t.Errorf("the mount lists %q, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ny1/x")); err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("stat in a cell that is away: %v", err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it has not ended")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("after the end the folder lists %v, %v", names, err)
	}
}
