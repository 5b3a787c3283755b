package proccell

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func launch(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Launch("script", exec.Command("bash", "-c", script), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestLogAwait(t *testing.T) {
	p := launch(t, "echo one; sleep 0.05; echo two >&2; read -r _; echo three")
	for _, text := range []string{"one", "two"} {
		if err := p.Log.Await(within(t, 10*time.Second), text, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Log.Await(within(t, 20*time.Millisecond), "two", p.Log.Mark()); err == nil {
		t.Error("found what was said before the mark")
	}
}

// TestTalker asks a shell, and hears it out although it has ended.
func TestTalker(t *testing.T) {
	talker, err := Talk("shell", exec.Command("bash", "-c", `while read -r line; do echo "you said $line"; test "$line" != end || exit 3; done`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { talker.Kill() })
	for _, line := range []string{"one", "two"} {
		if rest, err := talker.Ask(within(t, 10*time.Second), line, "you said "); err != nil || rest != line {
			t.Errorf("told %s, it says %q, %v", line, rest, err)
		}
	}
	if err := talker.Say("end"); err != nil {
		t.Fatal(err)
	}
	<-talker.Done()
	if rest, err := talker.Hear(within(t, 10*time.Second), "you said e", 0); err != nil || rest != "nd" {
		t.Errorf("at the end it said %q, %v", rest, err)
	}
	if _, err := talker.Hear(within(t, 10*time.Second), "more", 0); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("heard more of who has ended: %v", err)
	}
}

func TestLogKeepsTheLatest(t *testing.T) {
	var l Log
	line := strings.Repeat("x", 999) + "\n"
	for range 4 * logBytes / len(line) {
		l.Write([]byte(line))
	}
	mark := l.Mark()
	l.Write([]byte("last\n"))
	if kept := l.String(); len(kept) > 2*logBytes || !strings.HasSuffix(kept, "last\n") {
		t.Errorf("%d bytes kept, ending with %q", len(kept), kept[len(kept)-10:])
	}
	if err := l.Await(within(t, time.Second), "last", mark); err != nil {
		t.Error(err)
	}
}

// TestEndTakesTheGroup kills a shell whose child would live for an hour, and expects the child to
// be gone as well: its end of a pipe closes.
func TestEndTakesTheGroup(t *testing.T) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	cmd := exec.Command("bash", "-c", "sleep 3600 & echo started; wait")
	cmd.ExtraFiles = []*os.File{theirs}
	p, err := Launch("script", cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if err := p.Log.Await(within(t, 10*time.Second), "started", 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.Pid(), unix.SIGKILL); err != nil { // the leader alone
		t.Fatal(err)
	}
	if err := p.Wait(within(t, 10*time.Second)); err == nil {
		t.Error("a killed process ended without an error")
	}
	ours.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := ours.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the child lives on: %v", err)
	}
}

func TestStop(t *testing.T) {
	for _, test := range []struct {
		script string
		limit  time.Duration
		ended  string
	}{
		{"trap 'exit 0' TERM; echo ready; while :; do :; done", 20 * time.Second, ""},
		{"trap 'exit 3' TERM; echo ready; while :; do :; done", 20 * time.Second, "exit status 3"},
		{"trap '' TERM; echo ready; while :; do :; done", 300 * time.Millisecond, "has not ended"},
	} {
		p := launch(t, test.script)
		if err := p.Log.Await(within(t, 10*time.Second), "ready", 0); err != nil {
			t.Fatal(err)
		}
		p.Freeze() // a frozen process is stopped all the same
		err := p.Stop(test.limit)
		if test.ended == "" && err != nil || test.ended != "" && (err == nil || !strings.Contains(err.Error(), test.ended)) {
			t.Errorf("%s: %v, want %q", test.script, err, test.ended)
		}
		p.Signal(syscall.SIGTERM) // to nobody
	}
}

func TestAwaitReadyTellsTheEnd(t *testing.T) {
	p := launch(t, "echo no such cell; exit 2")
	err := awaitReady(within(t, 10*time.Second), p, 0)
	if err == nil || !strings.Contains(err.Error(), "exit status 2") || !strings.Contains(err.Error(), "no such cell") {
		t.Errorf("error %v, want how it ended and what it said", err)
	}
}
