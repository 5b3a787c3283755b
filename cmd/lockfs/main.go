// Lockfs is the command line of a cell, for scripts and admins on hosts with a mount or without.
//
//	export LOCKFS_CELL=ny1=10.0.0.1:7420,10.0.0.2:7420,10.0.0.3:7420
//	export LOCKFS_CERT=admin.pem LOCKFS_KEY=admin.key LOCKFS_CA=ca.pem
//
//	lockfs status                  # every replica; fails where no master answers
//	lockfs ls /ls/ny1/orders-db    # names, directories with a slash
//	lockfs get /ls/ny1/orders-db/master
//	lockfs put /ls/ny1/orders-db/master 10.4.7.22:7000
//	lockfs locks                   # who holds, who waits, what is in its lock-delay
//	lockfs sessions
//	lockfs sequencer get /proc/self/fd/9 # of the lock that the caller holds through descriptor 9
//
// Paths are those of a mount, /ls/<cell>/…, where /ls/local is the cell that is asked. Only that of
// sequencer is a path on this host, since it asks a mount and no cell. Every command prints text for people and for cut and
// awk, and with -o json the same as one JSON object for programs. Numbers that name something,
// such as sessions and instances, are decimal in both.
//
// It makes no session to read. To write it makes one, for as long as the call takes.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"lockfs/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := run(ctx, os.Args[1:], world{os.Stdin, os.Stdout, os.Getenv})
	stop()
	os.Exit(command.Report("lockfs", err, os.Stderr))
}

// world is what the program has to do with.
type world struct {
	stdin  io.Reader
	stdout io.Writer
	getenv func(name string) string
}

func run(ctx context.Context, args []string, w world) error {
	root, err := newRoot(w)
	if err != nil {
		return err
	}
	return command.Run(ctx, root, args)
}
