package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// identity says whose data a folder holds. It stands in identity.json from before the first byte of
// data, and never changes: a replica that came up with the data of another, or with a different
// idea of who the members are, could vote twice.
type identity struct {
	Format  int      `json:"format"` // of the whole folder
	Cell    string   `json:"cell"`
	Replica string   `json:"replica"`
	Member  uint64   `json:"member,string"`  // the replica's id in the log
	Cluster uint64   `json:"cluster,string"` // the id that all members of a cell share
	Peers   []string `json:"peers"`          // NAME=HOST:PORT of every first member, sorted
}

const dataFormat = 1

// Names in a data folder.
const (
	identityFile = "identity.json"
	lockFile     = "lock"     // locked by the lockfsd that uses the folder
	stateFile    = "state.db" // store's
	walFolder    = "wal"      // raft's
)

// newIdentity derives the ids of a replica from what all members are started with, so that they
// agree on them without asking each other.
func newIdentity(cell, replica string, peers []string) identity {
	peers = slices.Sorted(slices.Values(peers))
	return identity{
		Format:  dataFormat,
		Cell:    cell,
		Replica: replica,
		Member:  memberID(cell, replica),
		Cluster: id(cell, strings.Join(peers, ",")),
		Peers:   peers,
	}
}

func memberID(cell, replica string) uint64 { return id(cell, replica) }

// id is a hash of the parts that is never 0, which means "none" wherever ids stand.
func id(parts ...string) uint64 {
	return max(1, xxhash.Sum64String(strings.Join(parts, "/")))
}

// claim makes the data folder this process's own until the returned function is called, and checks
// that it is want's, or new. A new folder becomes want's.
func claim(folder string, want identity) (release func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := lockFolder(folder)
	if err != nil {
		return nil, err
	}
	if err := identify(folder, want); err != nil {
		lock.Close()
		return nil, err
	}
	return func() { lock.Close() }, nil
}

// lockFolder fails where another process has the folder.
func lockFolder(folder string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data folder %s is in use by another lockfsd", folder)
		}
		return nil, fmt.Errorf("lock data folder %s: %w", folder, err)
	}
	return lock, nil
}

func identify(folder string, want identity) error {
	data, err := os.ReadFile(filepath.Join(folder, identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return initialize(folder, want)
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	var have identity
	if err := json.Unmarshal(data, &have); err != nil {
		return fmt.Errorf("%s in data folder %s is damaged: %w", identityFile, folder, err)
	}
	return compare(folder, have, want)
}

// compare says in one sentence why a folder is not the one that is wanted.
func compare(folder string, have, want identity) error {
	switch {
	case have.Format != want.Format:
		return fmt.Errorf("data folder %s has format %d, this lockfsd knows format %d", folder, have.Format, want.Format)
	case have.Cell != want.Cell:
		return fmt.Errorf("data folder %s belongs to cell %s, not %s", folder, have.Cell, want.Cell)
	case have.Replica != want.Replica:
		return fmt.Errorf("data folder %s belongs to replica %s, not %s", folder, have.Replica, want.Replica)
	case !slices.Equal(have.Peers, want.Peers):
		return fmt.Errorf("data folder %s belongs to a cell of the members %s, not %s",
			folder, strings.Join(have.Peers, ","), strings.Join(want.Peers, ","))
	case have.Member != want.Member || have.Cluster != want.Cluster:
		return fmt.Errorf("%s in data folder %s does not agree with itself", identityFile, folder)
	}
	return nil
}

// initialize makes an empty folder want's. A folder with anything in it is somebody else's.
func initialize(folder string, want identity) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	for _, entry := range entries {
		if name := entry.Name(); name != lockFile && name != identityFile+".new" {
			return fmt.Errorf("data folder %s holds %s and no %s: not a lockfsd's, and not empty", folder, name, identityFile)
		}
	}
	data, err := json.MarshalIndent(want, "", "\t")
	if err != nil {
		return err
	}
	if err := writeDurably(folder, identityFile, append(data, '\n')); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	// The folder itself may be new as well.
	return syncFolder(filepath.Dir(filepath.Clean(folder)))
}

// writeDurably makes a file appear whole, and only when it is on disk.
func writeDurably(folder, name string, data []byte) error {
	path := filepath.Join(folder, name)
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncFolder(folder)
}

func syncFolder(folder string) error {
	file, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
