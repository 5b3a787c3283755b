package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
	"lockfs/sequencer"
)

// stage is what the story plays on.
type stage struct {
	cell  *proccell.Cell
	a, b  *proccell.Mount
	out   io.Writer
	began time.Time

	processes []*proccell.Process // that may still run
}

// say tells what happens now, and when.
func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.2f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// title opens a chapter.
func (s *stage) title(text string) { fmt.Fprintf(s.out, "\n%s\n", text) }

// clear ends all that was started. After a failure it shows what the daemons said.
func (s *stage) clear(failed error) error {
	if failed != nil {
		fmt.Fprintf(s.out, "\n%s\n", s.cell.Logs())
	}
	var errs []error
	for _, p := range s.processes {
		p.Signal(unix.SIGKILL) // before the mounts whose files they hold
	}
	errs = append(errs, s.cell.Close())
	for _, p := range s.processes {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// shell runs a command line on a host, in the cell's folder there, as a user would.
func (s *stage) shell(ctx context.Context, host *proccell.Mount, line string) (output string, err error) {
	s.say("%s$ %s", host.Name, line)
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir = host.Path("")
	output, err = proccell.Run(ctx, line, cmd)
	for said := range strings.Lines(output) {
		s.say("   %s", strings.TrimSuffix(said, "\n"))
	}
	return output, err
}

// must runs a command line that has to succeed and to print exactly want.
func (s *stage) must(ctx context.Context, host *proccell.Mount, line, want string) error {
	output, err := s.shell(ctx, host, line)
	if err != nil {
		return fmt.Errorf("%s$ %s: %w", host.Name, line, err)
	}
	if output != want {
		return fmt.Errorf("%s$ %s: printed %q, not %q", host.Name, line, output, want)
	}
	return nil
}

// refused checks that a lock cannot be had from a host, as flock -n says it: with exit code 1.
func (s *stage) refused(ctx context.Context, host *proccell.Mount) error {
	line := "flock -n " + file + " true"
	_, err := s.shell(ctx, host, line)
	if code := proccell.ExitCode(err); code != 1 {
		return fmt.Errorf("%s$ %s: exit code %d, not 1", host.Name, line, code)
	}
	s.say("   exit code 1: another one has it")
	return nil
}

// lock starts a program on a host that wants the lock.
func (s *stage) lock(host *proccell.Mount) (*proccell.Locker, error) {
	locker, err := proccell.Flock(host.Path(file))
	if err == nil {
		s.processes = append(s.processes, locker.Process)
	}
	return locker, err
}

// waiting waits until the cell knows somebody who waits for the lock.
func (s *stage) waiting(ctx context.Context) error {
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		listing, err := s.cell.Lockfs(ctx, "locks")
		if err == nil && strings.Contains(listing, " waits ") {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("nobody waits: %w; lockfs locks: %v\n%s", context.Cause(ctx), err, listing)
		}
	}
}

// sequencer reads from a mount what it holds.
func (s *stage) sequencer(ctx context.Context, host *proccell.Mount) (sequencer.Sequencer, error) {
	type answer struct {
		seq sequencer.Sequencer
		err error
	}
	answers := make(chan answer, 1)
	go func() { // ends with the mount at the latest
		value := make([]byte, 2048)
		n, err := unix.Getxattr(host.Path(file), "user.lockfs.sequencer", value)
		if err != nil {
			answers <- answer{err: fmt.Errorf("attribute user.lockfs.sequencer on host %s: %w", host.Name, err)}
			return
		}
		seq, err := sequencer.Parse(string(value[:n]))
		answers <- answer{seq, err}
	}()
	select {
	case a := <-answers:
		return a.seq, a.err
	case <-ctx.Done():
		return sequencer.Sequencer{}, context.Cause(ctx)
	}
}
