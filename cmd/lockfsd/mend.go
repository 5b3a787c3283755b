package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"lockfs/raft"
	"lockfs/store"
)

// mendTime is how long a replica waits before it asks the others for a state again.
const mendTime = 2 * time.Second

// errGone is of a replica that put its state aside and ended before it had another.
var errGone = errors.New("the state file is gone, and the log has not all that was in it")

// openState opens the state file, or makes it where the log has everything from the first entry on.
func (d *daemon) openState(log raft.Storage) (*store.DB, error) {
	path := filepath.Join(d.data, stateFile)
	first, err := log.FirstIndex()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if first > 1 && (errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0) {
		return nil, errGone
	}
	return store.OpenDB(path)
}

// mend makes a state file anew in place of one that cannot be trusted. The file is only a cache of
// the log: what the log has no more of, another member has. The log is kept, because in it is what
// this replica has promised to the others, and it begins with the state only when that is whole.
func (d *daemon) mend(ctx context.Context, log raft.Storage, why error) (*store.DB, error) {
	d.log.Error("the state on disk cannot be trusted: it is put aside, and made anew", "error", why)
	path := filepath.Join(d.data, stateFile)
	if err := os.Rename(path, path+asideSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("put the state aside: %w", err)
	}
	first, err := log.FirstIndex()
	if err == nil && first > 1 {
		err = d.fetchFile(ctx, path, first-1)
	}
	if err != nil {
		return nil, err
	}
	return store.OpenDB(path)
}

// fetchFile makes the state file of another member's state at or after entry least. The file gets
// its name when it is whole: the next start goes on with whatever has it.
func (d *daemon) fetchFile(ctx context.Context, path string, least uint64) error {
	fresh := path + newSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := store.OpenDB(fresh)
	if err != nil {
		return err
	}
	if err := errors.Join(d.fetch(ctx, db, least), db.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncFolder(d.data)
}

// fetch has the state of another member, at or after entry least, saved as this one's.
func (d *daemon) fetch(ctx context.Context, db *store.DB, least uint64) error {
	pause := time.NewTicker(mendTime)
	defer pause.Stop()
	for {
		err := d.fetchOnce(ctx, db, least)
		if err == nil || errors.Is(err, errAlone) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		d.log.Warn("no other member gave its state yet", "error", err)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errAlone = errors.New("the state is damaged or gone, the log does not begin at the beginning, and the cell has no other member: " +
	"restore a backup into a new folder with lockfsd restore")

func (d *daemon) fetchOnce(ctx context.Context, db *store.DB, least uint64) error {
	known, err := parseMembers(d.cell, d.who.Peers)
	if err != nil {
		return err
	}
	var addresses []string
	for _, m := range known {
		if m.Name != d.name {
			addresses = append(addresses, m.Address)
		}
	}
	if addresses = append(addresses, d.join...); len(addresses) == 0 {
		return errAlone
	}
	answer, err := askJoin(ctx, addresses, d.toPeers, d.cell, d.name)
	if err != nil {
		return err
	}
	_, err = raft.FetchState(ctx, raft.FetchConfig{
		ClusterID: d.who.Cluster, ID: d.who.Member, Incarnation: d.who.Incarnation, Members: membersOf(answer),
		Dial: dialTCP, Credentials: d.toPeers, Logger: d.log, Least: least,
	}, func(r io.Reader) ([]byte, error) {
		_, position, err := db.Restore(r, d.cell)
		return position, err
	})
	return err
}
