package proccell

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Locker is a program that wants the lock of a file: a shell that opens the file, takes the lock
// with flock(1), and keeps both until it is told what to do with them.
type Locker struct{ *Talker }

// The descriptor stays with the shell, so that it can still be used when the lock is lost.
const lockerScript = `exec 9<>"$1" && flock 9 && echo holding && read -r line && eval "$line"`

// Flock starts a locker. It may have to wait for the lock.
func Flock(path string) (*Locker, error) {
	talker, err := Talk("flock "+path, exec.Command("bash", "-c", lockerScript, "locker", path))
	if err != nil {
		return nil, err
	}
	return &Locker{talker}, nil
}

// Holds waits until the locker has the lock.
func (l *Locker) Holds(ctx context.Context) error {
	_, err := l.Hear(ctx, "holding", 0)
	return err
}

// Tell gives a locker that holds the lock a last line of shell to run, with the file open as
// descriptor 9, waits for its end and returns what it said.
func (l *Locker) Tell(ctx context.Context, line string) (said string, err error) {
	if err := l.Say(line); err != nil {
		return "", err
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
