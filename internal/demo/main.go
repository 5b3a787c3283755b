// Demo plays the story of a lock before one's eyes, with real processes: three replicas, two mounts
// that stand for two hosts, and the programs that every Linux has, cat, echo and flock. It checks
// each step and ends with exit code 0 only if all of them were as told. It needs root, for the
// mounts, works in a scratch folder, and leaves nothing behind, whatever happens.
//
//	go run ./internal/demo [-bin FOLDER]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"lockfs/internal/proccell"
)

// Short times, so that nobody has to wait long for what happens when a host is gone. The defaults
// are 12 s and 30 s.
const (
	lease     = 4 * time.Second
	lockDelay = 2 * time.Second
)

// limit is how long the whole play may take.
const limit = 60 * time.Second

func main() {
	bin := flag.String("bin", "", "`folder` of the built commands; without it they are built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *bin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run plays everything in a scratch folder and takes it away again.
func run(ctx context.Context, bin string, out io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("mounting needs root")
	}
	scratch, err := os.MkdirTemp("", "lockfs-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()

	programs := proccell.In(bin)
	if bin == "" {
		if programs, err = proccell.Build(ctx, scratch); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the demo takes longer than %v", limit))
	defer cancel()
	cell, err := proccell.New(proccell.Config{Programs: programs, Dir: scratch, Lease: lease})
	if err != nil {
		return err
	}
	s := &stage{cell: cell, out: out, began: time.Now()}
	defer func() { err = errors.Join(err, s.clear(err)) }()
	return s.play(ctx)
}
