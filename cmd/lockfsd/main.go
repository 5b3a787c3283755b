// Lockfsd is one replica of a lockfs cell. It keeps its part of the cell in the folder --data, and
// serves clients and its fellow replicas on one port.
//
//	lockfsd --cell ny1 --name r1 --data /var/lib/lockfs \
//	        --listen 10.0.0.1:7420 --peers r1=10.0.0.1:7420,r2=10.0.0.2:7420,r3=10.0.0.3:7420 \
//	        --cert r1.pem --key r1.key --ca ca.pem
//
// All members of a cell are started with the same --cell and --peers, from which they derive the
// ids that tell them from members of any other cell. Without --peers a replica is a cell of its
// own. A lockfsd runs in the foreground, logs to standard error, says "ready" once a master of its
// cell is known, and ends within ten seconds of SIGTERM, handing mastership over before.
//
// At --http, which must be a loopback address, it answers /healthz, for those who watch over daemons,
// and below /debug/pprof/ with the profiles of Go's net/http/pprof, for those who ask where its time goes.
//
// A replica that is added to a cell that runs is started with --join and the addresses of some of
// its members in place of --peers, after lockfs member add or replace. An empty folder of a member
// that has taken part before is refused.
//
// # What it does about a bad disk
//
// Where little is free it hands mastership over, and where nothing is it steps aside, until there is
// room again. A state.db that is damaged, or that is not what the other replicas have, is put aside
// as state.db.aside and made anew of the log or of another member's. A log that is damaged elsewhere
// than at its end, which a crash tears, is refused: what this replica has promised to the others is
// in it. The way back is lockfs member replace and an empty folder.
//
// # Backups
//
// Of a backup made by lockfs snapshot save, lockfsd restore makes the data folders of a new cell, and
// lockfsd drill tries whether that would succeed.
//
// # The data folder
//
//	identity.json  whose data this is; written first, compared at each start
//	lock           locked while a lockfsd uses the folder
//	state.db       the state at the last checkpoint, see package store
//	wal/           the log since then, see package raft
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"lockfs/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(command.Report("lockfsd", err, os.Stderr))
}

// run is the program: it serves until ctx ends, or until the replica stops of itself.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	cmd := &cobra.Command{
		Use:   "lockfsd --cell NAME --name NAME --data DIR",
		Short: "Lockfsd is one replica of a lockfs cell.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.leaseGiven = cmd.Flags().Changed("lease")
			o.graceGiven = cmd.Flags().Changed("grace")
			return serve(cmd.Context(), &o, slog.New(slog.NewTextHandler(stderr, nil)))
		},
	}
	o.addFlags(cmd.Flags())
	cmd.SetOut(stdout)
	cmd.AddCommand(restoreCommand(stdout, stderr), drillCommand(stdout))
	return command.Run(ctx, cmd, args)
}
