package fusetest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Screen is what a program prints. It calls At for each write, with all that was said so far, before
// the program goes on.
type Screen struct {
	strings.Builder
	At func(said string)
}

func (s *Screen) Write(p []byte) (int, error) {
	n, err := s.Builder.Write(p)
	s.At(s.String())
	return n, err
}

// NothingLeft fails the test where a program that was given temp as TMPDIR has left files in it, mounts
// below it, or processes that were started with it or name it.
func NothingLeft(t testing.TB, temp string) {
	t.Helper()
	if entries, err := os.ReadDir(temp); err != nil || len(entries) != 0 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), temp) {
		t.Errorf("mounts are left, or unknown (%v):\n%s", err, mounts)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes { // this one has the environment that it was started with
		line, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		environment, _ := os.ReadFile(filepath.Join(process, "environ"))
		if bytes.Contains(line, []byte(temp)) || bytes.Contains(environment, []byte("TMPDIR="+temp)) {
			t.Errorf("a process is left: %q", line)
		}
	}
}
