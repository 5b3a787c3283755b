package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// play is what a player is asked to do: an operation of so many clients on the files of folders,
// among which the clients are spread.
type play struct {
	Op      string
	Clients int
	Folders []string
	Time    time.Duration
}

// play measures an operation by system calls, which another process makes.
func (s *stage) play(op string, clients int, folders func() []string) func(context.Context, time.Duration) (figures, error) {
	return func(ctx context.Context, d time.Duration) (f figures, err error) {
		err = ask(ctx, s.player, play{Op: op, Clients: clients, Folders: folders(), Time: d}, &f)
		return f, err
	}
}

// servePlays is the worker that plays.
func servePlays() error {
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		var p play
		if err := json.Unmarshal(input.Bytes(), &p); err != nil {
			return err
		}
		f, err := p.run()
		if err != nil {
			return err
		}
		if err := answer(f); err != nil {
			return err
		}
	}
	return nil
}

func (p *play) run() (figures, error) {
	switch p.Op {
	case "write":
		return p.load(func(client int) error { return writeFile(p.path(client, fileName(client))) })
	case "read":
		return p.load(func(client int) error { return readFile(p.path(client, fileName(client))) })
	case "lock":
		return p.withOpen(fileName, func(fds []int) (figures, error) {
			return p.load(func(client int) error {
				if err := flock(fds[client], unix.LOCK_EX); err != nil {
					return err
				}
				return flock(fds[client], unix.LOCK_UN)
			})
		})
	case "hand-off":
		passed := func(int) string { return passedName }
		return p.withOpen(passed, func(fds []int) (figures, error) {
			acquire := func(client int) error { return flock(fds[client], unix.LOCK_EX) }
			release := func(client int) error { return flock(fds[client], unix.LOCK_UN) }
			return passRound(p.Clients, p.Time, acquire, release)
		})
	}
	return figures{}, fmt.Errorf("nobody plays %q", p.Op)
}

// load measures until it is over; whoever wants it to end before ends this process.
func (p *play) load(op func(client int) error) (figures, error) {
	return load(context.Background(), p.Clients, p.Time, op)
}

func (p *play) path(client int, name string) string {
	return filepath.Join(p.Folders[client%len(p.Folders)], name)
}

// withOpen calls f with an open file for each client.
func (p *play) withOpen(name func(client int) string, f func(fds []int) (figures, error)) (measured figures, err error) {
	var fds []int
	defer func() {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	for client := range p.Clients {
		path := p.path(client, name(client))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return figures{}, fmt.Errorf("open %s: %w", path, err)
		}
		fds = append(fds, fd)
	}
	return f(fds)
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

// writeFile is what echo > path does.
func writeFile(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	n, err := unix.Write(fd, contents)
	if err == nil && n != len(contents) {
		err = fmt.Errorf("%d bytes", n)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func readFile(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	buffer := make([]byte, 2*len(contents))
	n, err := unix.Read(fd, buffer)
	if err == nil && n != len(contents) {
		err = fmt.Errorf("%d bytes", n)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
