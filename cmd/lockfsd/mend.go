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
	if err != nil {
		return nil, err
	}
	db, err := store.OpenDB(path)
	if err != nil || first == 1 { // all of it is in the log
		return db, err
	}
	if err := d.fetch(ctx, db, first-1); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
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

var errAlone = errors.New("the state is damaged, the log does not begin at the beginning, and the cell has no other member: " +
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
