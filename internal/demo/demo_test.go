package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// screen is the demo's output. It calls at once for each write.
type screen struct {
	strings.Builder
	at func(said string)
}

func (s *screen) Write(p []byte) (int, error) {
	n, err := s.Builder.Write(p)
	s.at(s.String())
	return n, err
}

// TestDemo plays the demo twice: to its end, and interrupted by Ctrl-C where most is going on.
// Either way nothing may be left behind.
func TestDemo(t *testing.T) {
	fusetest.Need(t)
	programs, err := proccell.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, interruptAt string }{
		{"to its end", ""},
		{"interrupted", "host A freezes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			out := &screen{at: func(said string) {
				if test.interruptAt != "" && strings.Contains(said, test.interruptAt) {
					interrupt()
				}
			}}
			err := run(ctx, filepath.Dir(programs.Lockfsd), out)
			if test.interruptAt == "" && err != nil || test.interruptAt != "" && err == nil {
				t.Errorf("error %v", err)
			}
			if t.Failed() || testing.Verbose() {
				t.Log(out.String())
			}
			wantNothingLeft(t, temp)
		})
	}
}

// wantNothingLeft looks for files, mounts and processes of a folder.
func wantNothingLeft(t *testing.T, folder string) {
	t.Helper()
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), folder) {
		t.Errorf("mounts are left, or unknown (%v):\n%s", err, mounts)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		if line, err := os.ReadFile(command); err == nil && bytes.Contains(line, []byte(folder)) {
			t.Errorf("a process is left: %q", line)
		}
	}
}
