package main

import (
	"crypto/rand"
	"encoding/binary"
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
	Peers   []string `json:"peers"`          // NAME=HOST:PORT of every first member, sorted; where it joined, of those then
	Joined  bool     `json:"joined,omitempty"`
	// Restored: the cell began with a backup, and has a cluster id of its own.
	Restored bool `json:"restored,omitempty"`
	// Incarnation is a random number that was drawn when the log was begun. A folder that lost its
	// log draws another, and so the cell knows it from the one that took part.
	Incarnation uint64 `json:"incarnation,string"`
}

const dataFormat = 1

// Names in a data folder.
const (
	identityFile = "identity.json"
	lockFile     = "lock"     // locked by the lockfsd that uses the folder
	stateFile    = "state.db" // store's
	asideSuffix  = ".aside"   // of a state file that is not used any more
	newSuffix    = ".new"     // of a file that is not whole yet
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

// claim makes the data folder this process's own until the returned function is called, and returns
// whose it is. A new folder becomes that of who found returns; of another one, check says whether it
// is the right one.
func claim(folder string, check func(have identity) error, found func() (identity, error)) (who identity, release func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return who, nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := lockFolder(folder)
	if err != nil {
		return who, nil, err
	}
	who, err = identify(folder, check, found)
	if err == nil {
		err = incarnate(folder, &who)
	}
	if err != nil {
		lock.Close()
		return who, nil, err
	}
	return who, func() { lock.Close() }, nil
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

func identify(folder string, check func(have identity) error, found func() (identity, error)) (identity, error) {
	var have identity
	data, err := os.ReadFile(filepath.Join(folder, identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return initialize(folder, found)
	}
	if err != nil {
		return have, fmt.Errorf("data folder: %w", err)
	}
	if err := json.Unmarshal(data, &have); err != nil {
		return have, fmt.Errorf("%s in data folder %s is damaged (%w): it is restored from a copy of that file, "+
			"or the folder emptied and the member begun anew by lockfs member replace", identityFile, folder, err)
	}
	if have.Format != dataFormat {
		return have, fmt.Errorf("data folder %s has format %d, this lockfsd knows format %d", folder, have.Format, dataFormat)
	}
	return have, check(have)
}

// compare says in one sentence why a folder is not the one that the options are for.
func (o *options) compare(have identity) error {
	want := newIdentity(o.cell, o.name, o.peers)
	switch {
	case have.Cell != want.Cell:
		return fmt.Errorf("data folder %s belongs to cell %s, not %s", o.data, have.Cell, want.Cell)
	case have.Replica != want.Replica:
		return fmt.Errorf("data folder %s belongs to replica %s, not %s", o.data, have.Replica, want.Replica)
	case len(o.join) > 0: // the log knows who the members are
		return nil
	case have.Joined:
		return fmt.Errorf("data folder %s belongs to a replica that joined a running cell: it is started with --join, not --peers", o.data)
	case !slices.Equal(have.Peers, want.Peers) && !o.peersGiven:
		return fmt.Errorf("data folder %s belongs to a cell of several members: --peers %s is missing", o.data, strings.Join(have.Peers, ","))
	case !slices.Equal(have.Peers, want.Peers):
		return fmt.Errorf("data folder %s belongs to a cell of the members %s, not %s",
			o.data, strings.Join(have.Peers, ","), strings.Join(want.Peers, ","))
	case have.Member != want.Member || have.Cluster != want.Cluster && !have.Restored:
		return fmt.Errorf("%s in data folder %s does not agree with itself", identityFile, o.data)
	}
	return nil
}

// initialize makes an empty folder that of who found returns. A folder with anything in it is
// somebody else's.
func initialize(folder string, found func() (identity, error)) (identity, error) {
	if err := checkEmpty(folder); err != nil {
		return identity{}, err
	}
	who, err := found()
	if err != nil {
		return who, err
	}
	if err := writeIdentity(folder, who); err != nil {
		return who, err
	}
	// The folder itself may be new as well.
	return who, syncFolder(filepath.Dir(filepath.Clean(folder)))
}

func checkEmpty(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if name == stateFile || name == walFolder {
			return fmt.Errorf("data folder %s holds %s and no %s, which says whose it is: that was lost, or a restore was not finished. "+
				"Empty the folder; a member then begins anew by lockfs member replace", folder, name, identityFile)
		}
		if name != lockFile && name != identityFile+newSuffix {
			return fmt.Errorf("data folder %s holds %s and no %s: not a lockfsd's, and not empty", folder, name, identityFile)
		}
	}
	return nil
}

func writeIdentity(folder string, who identity) error {
	data, err := json.MarshalIndent(who, "", "\t")
	if err == nil {
		err = writeDurably(folder, identityFile, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

// incarnate draws the number of a folder that has none, or whose log is gone.
func incarnate(folder string, who *identity) error {
	_, err := os.Stat(filepath.Join(folder, walFolder))
	if err == nil && who.Incarnation != 0 {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data folder: %w", err)
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	who.Incarnation = max(1, binary.BigEndian.Uint64(b[:]))
	return writeIdentity(folder, *who)
}

// writeDurably makes a file appear whole, and only when it is on disk.
func writeDurably(folder, name string, data []byte) error {
	path := filepath.Join(folder, name)
	file, err := os.OpenFile(path+newSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
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
