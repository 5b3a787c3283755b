package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lockfs"
	"lockfs/internal/clock"
)

// TestPatience interrupts requests of a thread that lives on, and of one that does not.
func TestPatience(t *testing.T) {
	alive, dead := uint32(os.Getpid()), uint32(1<<31-1)
	for _, test := range []struct {
		name string
		how  patience
		tid  uint32
		ends time.Duration // after the interrupt; less than 0 is never
	}{
		{"a lock", atOnce, alive, 0},
		{"a stat", briefly, alive, graceOfSignal},
		{"a stat of a killed process", briefly, dead, 0},
		{"a close", whileAlive, alive, -1},
		{"a close of a killed process", whileAlive, dead, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cancel := make(chan struct{})
				r := begin(cancel, test.tid, test.how, clock.NewVirtual())
				start := time.Now()
				close(cancel)
				select {
				case <-r.Done():
					if took := time.Since(start); took != test.ends {
						t.Errorf("ended after %v, want %v", took, test.ends)
					}
				case <-time.After(time.Minute):
					if test.ends >= 0 {
						t.Errorf("not ended after a minute, want %v", test.ends)
					}
				}
				interrupted := test.ends >= 0
				want := map[bool]syscall.Errno{true: syscall.EINTR, false: syscall.EIO}[interrupted]
				if number := r.errno(context.Canceled, errno(context.Canceled)); number != want {
					t.Errorf("errno %v, want %v", number, want)
				}
				r.end()
			})
		})
	}
}

// TestOnlyInterruptsAreEINTR is 2.2 of the facts.
func TestOnlyInterruptsAreEINTR(t *testing.T) {
	unknown := fmt.Errorf("edit: %w: %w", lockfs.ErrUnknown, context.Canceled)
	for _, test := range []struct {
		err         error
		interrupted bool
		want        syscall.Errno
	}{
		{context.Canceled, true, syscall.EINTR},
		{context.Canceled, false, syscall.EIO},
		{lockfs.ErrGivenUp, true, syscall.EINTR},
		{lockfs.ErrGivenUp, false, syscall.EIO},
		{lockfs.ErrUnavailable, true, syscall.EIO},
		{unknown, true, syscall.EIO},
		{lockfs.ErrStale, true, syscall.ESTALE},
		{nil, true, 0},
	} {
		r := begin(nil, 0, atOnce, clock.NewVirtual())
		r.interrupted.Store(test.interrupted)
		if number := r.errno(test.err, errno(test.err)); number != test.want {
			t.Errorf("%v, interrupted %v: %v, want %v", test.err, test.interrupted, number, test.want)
		}
		r.end()
	}
}

func TestFatalSignals(t *testing.T) {
	const none = "0000000000000000"
	status := func(thread, process, blocked, ignored, caught string) string {
		return fmt.Sprintf("Name:\tx\nSigQ:\t0/100\nSigPnd:\t%s\nShdPnd:\t%s\nSigBlk:\t%s\nSigIgn:\t%s\nSigCgt:\t%s\n",
			thread, process, blocked, ignored, caught)
	}
	const kill, quit, child, stop = "0000000000000100", "0000000000000004", "0000000000010000", "0000000000040000"
	for _, test := range []struct {
		name, status string
		fatal        bool
	}{
		{"nothing", status(none, none, none, none, none), false},
		{"SIGKILL", status(kill, none, none, none, none), true},
		{"SIGKILL of the process", status(none, kill, none, none, none), true},
		{"SIGQUIT", status(none, quit, none, none, none), true},
		{"SIGQUIT, handled", status(none, quit, none, none, quit), false},
		{"SIGQUIT, blocked", status(none, quit, quit, none, none), false},
		{"SIGQUIT, ignored", status(none, quit, none, quit, none), false},
		{"SIGCHLD", status(none, child, none, none, none), false},
		{"SIGSTOP", status(none, stop, none, none, none), false},
	} {
		if got := fatal(test.status); got != test.fatal {
			t.Errorf("%s: fatal %v, want %v", test.name, got, test.fatal)
		}
	}
	if dying(uint32(os.Getpid())) {
		t.Error("this process is dying")
	}
}

func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := within(t.Context(), time.Second, clock.NewVirtual())
		defer cancel()
		start := time.Now()
		<-ctx.Done()
		if took := time.Since(start); took != time.Second || !errors.Is(context.Cause(ctx), lockfs.ErrUnavailable) {
			t.Errorf("ended after %v because of %v", took, context.Cause(ctx))
		}
	})
}

func TestSameProcess(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	self := uint32(os.Getpid())
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		var tid uint32
		fmt.Sscan(thread.Name(), &tid)
		if !sameProcess(self, tid) || sameProcess(tid, uint32(child.Process.Pid)) {
			t.Errorf("thread %d: is ours %v, is the child's %v", tid, sameProcess(self, tid), sameProcess(tid, uint32(child.Process.Pid)))
		}
	}
	if sameProcess(1<<31-1, 1<<31-2) {
		t.Error("threads that are not there are of one process")
	}
}
