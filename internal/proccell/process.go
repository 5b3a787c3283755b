package proccell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running program and all that it started: signals go to its whole process group, and
// its end ends the others.
type Process struct {
	Name string
	Log  *Log // its standard output and error, where the command had none
	cmd  *exec.Cmd
	done chan struct{} // closed when it was reaped
	err  error         // set before done is closed

	signalling sync.Mutex // held while the group is signalled, and while it ends
	reaped     bool       // guarded by signalling
}

// Launch starts cmd. It dies with this process, if that should end without ending it.
func Launch(name string, cmd *exec.Cmd, log *Log) (*Process, error) {
	if log == nil {
		log = new(Log)
	}
	for _, out := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		if *out == nil {
			*out = log
		}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	cmd.SysProcAttr.Setpgid = true // a Ctrl-C is for us alone; we end the others in order
	cmd.WaitDelay = time.Second    // for its output, should anyone outlive it
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, cmd: cmd, done: make(chan struct{})}
	go p.reap()
	return p, nil
}

// reap waits for the end of the process, and ends its group while the unreaped leader still keeps
// the group's number from being given to others.
func (p *Process) reap() {
	for {
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.signalling.Lock()
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.reaped = true
	p.err = p.cmd.Wait()
	p.signalling.Unlock()
	close(p.done)
}

// Pid is the leader's.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal signals the process and all that it started, unless it has ended.
func (p *Process) Signal(sig syscall.Signal) {
	p.signalling.Lock()
	defer p.signalling.Unlock()
	if !p.reaped {
		syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// Freeze stops the process as a hung host would, Thaw lets it go on.
func (p *Process) Freeze() { p.Signal(syscall.SIGSTOP) }
func (p *Process) Thaw()   { p.Signal(syscall.SIGCONT) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns what exec.Cmd.Wait does, or the end of ctx.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.Name, context.Cause(ctx))
	}
}

// untilEnd is ctx, ended with the process too, whose last words are waited for.
func (p *Process) untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("it has ended (%v)", p.err))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Kill kills the process and waits until it is gone; an error says that it is stuck.
func (p *Process) Kill() error {
	p.Signal(syscall.SIGKILL)
	select {
	case <-p.done:
		return nil
	case <-time.After(2 * time.Second):
		return fmt.Errorf("%s, process %d, is still there 2 s after kill -9", p.Name, p.Pid())
	}
}

// Stop ends the process by SIGTERM and returns how it ended. One that is not gone after limit is
// killed, which is an error.
func (p *Process) Stop(limit time.Duration) error {
	p.Signal(syscall.SIGTERM)
	p.Thaw()
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
	}
	return errors.Join(fmt.Errorf("%s has not ended %v after SIGTERM", p.Name, limit), p.Kill())
}

// Run runs a command to its end and returns what it said. It is killed at the end of ctx.
func Run(ctx context.Context, name string, cmd *exec.Cmd) (output string, err error) {
	p, err := Launch(name, cmd, nil)
	if err != nil {
		return "", err
	}
	if err = p.Wait(ctx); ctx.Err() != nil {
		err = errors.Join(err, p.Kill())
	}
	return p.Log.String(), err
}

// ExitCode is the exit code that err, from Wait or Run, stands for; -1 if it is none.
func ExitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode() // -1 where a signal ended it
	}
	return -1
}
