package proccell

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Locker is a program that wants the lock of a file: a shell that opens the file, takes the lock
// with flock(1), and keeps both until it is told what to do with them.
type Locker struct {
	*Process
	input io.WriteCloser
}

// The descriptor stays with the shell, so that it can still be used when the lock is lost.
const lockerScript = `exec 9<>"$1" && flock 9 && echo holding && read -r line && eval "$line"`

// Flock starts a locker. It may have to wait for the lock.
func Flock(path string) (*Locker, error) {
	cmd := exec.Command("bash", "-c", lockerScript, "locker", path)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	process, err := Launch("flock "+path, cmd, nil)
	if err != nil {
		return nil, err
	}
	return &Locker{process, input}, nil
}

// Holds waits until the locker has the lock.
func (l *Locker) Holds(ctx context.Context) error {
	if err := l.awaitSaying(ctx, "holding\n", 0); err != nil {
		return fmt.Errorf("%s: %w; it said %q", l.Name, err, l.Log)
	}
	return nil
}

// Tell gives a locker that holds the lock a last line of shell to run, with the file open as
// descriptor 9, waits for its end and returns what it said.
func (l *Locker) Tell(ctx context.Context, line string) (said string, err error) {
	if _, err := fmt.Fprintln(l.input, line); err != nil {
		return "", fmt.Errorf("%s: %w", l.Name, err)
	}
	err = l.Wait(ctx)
	_, said, _ = strings.Cut(l.Log.String(), "holding\n")
	if err != nil {
		return said, fmt.Errorf("%s: %w; it said %q", l.Name, err, said)
	}
	return said, nil
}

// Release lets the lock go and waits for the locker's end.
func (l *Locker) Release(ctx context.Context) error {
	_, err := l.Tell(ctx, "true")
	return err
}
