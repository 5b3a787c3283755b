package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/internal/command"
	"lockfs/raft"
	"lockfs/store"
)

// restoreCommand makes a data folder of a backup.
func restoreCommand(stdout, stderr io.Writer) *cobra.Command {
	var o options
	var cluster string
	cmd := &cobra.Command{
		Use: "restore FILE --cell NAME --name NAME --data DIR --peers …", Args: command.Arguments(1, 1),
		Short: "Make a new data folder of a backup, for a replica of a new cell.",
		Long: "Make a new data folder of a backup that lockfs snapshot save made. All members of the new cell do\n" +
			"so, with the same backup, --cell and --peers: the first one prints a cluster id, which the others\n" +
			"are given as --cluster. When all have, and not before, each is started as ever.\n\n" +
			"The cell has the name and the contents of the old one, and none of its sessions, and all that\n" +
			"counts in it is so much higher that no sequencer, cache or session from before can pass. The\n" +
			"old cell must not run any more.",
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := parseCluster(cluster)
			if err != nil {
				return err
			}
			o.security.Insecure = true // nothing is called
			members, err := o.members()
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(stderr, nil))
			entry, err := restore(args[0], &o, members, id, log)
			if err != nil {
				return fmt.Errorf("restore %s: %w", args[0], err)
			}
			_, err = fmt.Fprintf(stdout, "restored entry %d into %s as cluster %016x; on the other members, add --cluster %016x\n", entry, o.data, id, id)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.cell, "cell", "", "`name` of the cell (required)")
	flags.StringVar(&o.name, "name", "", "`name` of this replica in its cell (required)")
	flags.StringVar(&o.data, "data", "", "`folder` for this replica's data, new or empty (required)")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:7420", "`address` for clients and peers, where there are no --peers")
	flags.StringSliceVar(&o.peers, "peers", nil, "all members of the new cell as `name=host:port,…`, this one too")
	flags.StringVar(&cluster, "cluster", "", "`id` of the new cell, as the first member printed it; default: a new one")
	o.lease, o.grace = lockfs.DefaultLease, lockfs.DefaultGrace // are in the backup
	return cmd
}

func parseCluster(text string) (uint64, error) {
	if text == "" {
		var b [8]byte
		rand.Read(b[:]) // never fails
		return max(1, binary.BigEndian.Uint64(b[:])), nil
	}
	id, err := strconv.ParseUint(text, 16, 64)
	if err != nil || id == 0 || len(text) != 16 {
		return 0, command.Usage("--cluster is %q, not the id that lockfsd restore printed", text)
	}
	return id, nil
}

// restore makes the data folder, and returns the entry that the backup was made at. What says whose
// it is comes last: a folder that was not finished is no lockfsd's.
func restore(backup string, o *options, members []raft.Member, cluster uint64, log *slog.Logger) (entry uint64, err error) {
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return 0, err
	}
	lock, err := lockFolder(o.data)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if _, err := os.Stat(filepath.Join(o.data, identityFile)); err == nil {
		return 0, fmt.Errorf("data folder %s is in use: it is restored into a new one", o.data)
	}
	if err := checkEmpty(o.data); err != nil {
		return 0, err
	}
	state, err := rebirth(backup, o.cell, cluster)
	if err != nil {
		return 0, err
	}
	who := newIdentity(o.cell, o.name, o.peers)
	who.Cluster, who.Restored = cluster, true
	if err := fill(o.data, who, state, members, log); err != nil {
		return 0, err
	}
	if err := incarnate(o.data, &who); err != nil {
		return 0, err
	}
	return state.Applied(), syncFolder(filepath.Dir(filepath.Clean(o.data)))
}

func rebirth(backup, cell string, cluster uint64) (*store.State, error) {
	file, err := os.Open(backup)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return store.Rebirth(bufio.NewReaderSize(file, 1<<20), cell, cluster)
}

// fill begins the log of the new cell, and saves the state with its place in it.
func fill(folder string, who identity, state *store.State, members []raft.Member, log *slog.Logger) error {
	db, err := store.OpenDB(filepath.Join(folder, stateFile))
	if err != nil {
		return err
	}
	wal, err := raft.OpenWAL(filepath.Join(folder, walFolder), who.Cluster, who.Member, log)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	position, err := raft.Seed(wal, members, state.Applied(), state.Epoch())
	if err == nil {
		err = db.Replace(state, position)
	}
	return errors.Join(err, wal.Close(), db.Close())
}
