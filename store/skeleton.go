// Package store is the state of a lockfs cell.
package store

import (
	"io"
	"time"

	"lockfs"
	"lockfs/store/storepb"
)

type State struct{}

type Outcome struct {
	Refused bool
	Results []*storepb.Result
	Effects Effects
}

type Lock struct {
	Mode       lockfs.Mode
	Generation uint64
	Holders    []Holder
}
type Holder struct {
	Session, Owner uint64
	Since          time.Time
	LockDelay      time.Duration
	Note           string
}
type Session struct {
	ID             uint64
	Identity, Host string
	Created        time.Time
	Caches         bool
}
type Held struct {
	Node       NodeID
	Owner      uint64
	Mode       lockfs.Mode
	Generation uint64
}

func New(cell string) *State                                              { return &State{} }
func (s *State) Apply(index uint64, p *storepb.Proposal) (Outcome, error) { return Outcome{}, nil }

func (s *State) Stat(p lockfs.Path, instance uint64) (lockfs.Stat, error) {
	return lockfs.Stat{}, nil
}
func (s *State) Contents(p lockfs.Path, instance uint64) ([]byte, lockfs.Stat, error) {
	return nil, lockfs.Stat{}, nil
}
func (s *State) List(p lockfs.Path, instance uint64) ([]lockfs.Entry, lockfs.Stat, error) {
	return nil, lockfs.Stat{}, nil
}
func (s *State) Lock(p lockfs.Path, instance uint64) (Lock, error)   { return Lock{}, nil }
func (s *State) LockedBelow(p lockfs.Path) []lockfs.Path             { return nil }
func (s *State) Session(id uint64) (Session, bool)                   { return Session{}, false }
func (s *State) Sessions() []Session                                 { return nil }
func (s *State) HeldBy(session uint64) []Held                        { return nil }
func (s *State) Done(session, number uint64) (*storepb.Result, bool) { return nil, false }
func (s *State) Delays() []Delay                                     { return nil }
func (s *State) DelaysOf(p lockfs.Path) []Delay                      { return nil }
func (s *State) Orphans() []NodeID                                   { return nil }
func (s *State) Blocked(p lockfs.Path, instance, session, owner uint64, mode lockfs.Mode, elapsed uint64) error {
	return nil
}
func (s *State) Cell() string          { return "" }
func (s *State) ClusterID() uint64     { return 0 }
func (s *State) Epoch() uint64         { return 0 }
func (s *State) Lease() time.Duration  { return 0 }
func (s *State) Grace() time.Duration  { return 0 }
func (s *State) Limits() lockfs.Limits { return lockfs.Limits{} }
func (s *State) Level() uint32         { return 0 }
func (s *State) Nodes() int64          { return 0 }
func (s *State) Bytes() int64          { return 0 }
func (s *State) Applied() uint64       { return 0 }
func (s *State) Hash() uint64          { return 0 }

type Checkpoint struct{}

func (s *State) Checkpoint(position []byte) *Checkpoint             { return &Checkpoint{} }
func (s *State) WriteSnapshot(w io.Writer, position []byte) error   { return nil }
func ReadSnapshot(r io.Reader, cell string) (*State, []byte, error) { return nil, nil, nil }

type DB struct{}

func OpenDB(path string) (*DB, error)                                   { return &DB{}, nil }
func (db *DB) Load(cell string) (*State, []byte, error)                 { return nil, nil, nil }
func (db *DB) Save(c *Checkpoint) error                                 { return nil }
func (db *DB) Snapshot() (*Snapshot, error)                             { return nil, nil }
func (db *DB) Restore(r io.Reader, cell string) (*State, []byte, error) { return nil, nil, nil }
func (db *DB) Close() error                                             { return nil }

type Snapshot struct{}

func (s *Snapshot) Applied() uint64                    { return 0 }
func (s *Snapshot) Position() []byte                   { return nil }
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return 0, nil }
func (s *Snapshot) Close() error                       { return nil }
