// Package client is the Go library of a lockfs cell: it finds the master by any of the cell's
// addresses and again after a failover, keeps a session alive, reads and changes nodes, and takes
// locks. The mount and the command line are its users; so is any Go program.
//
// # What it promises
//
// A mutation is done once or not at all, however often connections break: it is sent again under
// its number until its fate is known. A caller who stops waiting gives the number up through the
// log; only where no master can be asked does a call end with lockfs.ErrUnknown.
//
// A session's lease counts on the client's clock from when the renewal was sent, less a sixteenth
// for drift, so the client's view of it ends before the master's. When it has run out the session
// is in jeopardy: calls wait. Within the grace period it is either confirmed by a master, and all
// goes on, or it is lost: every later call on it fails with lockfs.ErrSession. A session is never
// revived; Client.Session makes a new one.
//
// The package knows nothing of FUSE.
package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/sequencer"
)

// Config says which cell a client is of, and what of the world it uses. The zero value of every
// field but Cell and Addresses works.
type Config struct {
	Cell      string
	Addresses []string // host:port of any of the replicas; the others are learnt from their answers
	TLS       *tls.Config
	Host      string        // shown to people who ask whose session this is; default the host's name
	Timeout   time.Duration // how long a call may go without any master that answers; default 10 s

	Clock  clock.Clock                                                 // default CLOCK_BOOTTIME
	Dial   func(ctx context.Context, address string) (net.Conn, error) // default TCP
	Logger *slog.Logger                                                // default discards
}

// Reader reads nodes. Instance, where not 0, is the node that the caller means; if the path leads
// to another one now, or to none that was made later, the answer is lockfs.ErrStale. Contents are
// shared and must not be changed. Every answer is what was last written anywhere.
type Reader interface {
	Stat(ctx context.Context, path lockfs.Path, instance uint64) (lockfs.Stat, error)
	Read(ctx context.Context, path lockfs.Path, instance uint64) ([]byte, lockfs.Stat, error)
	List(ctx context.Context, path lockfs.Path, instance uint64) ([]lockfs.Entry, lockfs.Stat, error)
	LockState(ctx context.Context, path lockfs.Path, instance uint64) (LockState, error)
}

// LockState is who has and who wants the lock of a node.
type LockState struct {
	Path       lockfs.Path
	Instance   uint64
	Mode       lockfs.Mode
	Generation uint64
	Holders    []Holder
	Waiters    []Waiter // in order of their turn
	Delays     []Delay
}

// Holder is one who holds a lock.
type Holder struct {
	Session, Owner       uint64
	Identity, Host, Note string
	Since                time.Time
	LockDelay            time.Duration
}

// Waiter is one who waits for a lock.
type Waiter struct {
	Session, Owner       uint64
	Identity, Host, Note string
	Mode                 lockfs.Mode
	Waited               time.Duration
}

// Delay says how long a lock-delay still keeps away what conflicts with Mode.
type Delay struct {
	Mode lockfs.Mode
	Left time.Duration
}

// Create describes a node to be made.
type Create struct {
	Path      lockfs.Path
	Type      lockfs.Type
	Ephemeral bool // deleted at the session's end
	Exclusive bool // fail with lockfs.ErrExist where the name is taken, else answer what is there
	Content   []byte
	ACL       lockfs.ACLNames // an empty name is the parent's
}

// Edit is a change of contents, decided at its place in the log.
type Edit struct {
	Path         lockfs.Path
	Instance     uint64 // 0 is any; else lockfs.ErrStale
	IfGeneration uint64 // 0 is any; else lockfs.ErrChanged
	Changes      []Change
	Guard        sequencer.Sequencer // zero is none; else lockfs.ErrSequencer unless it is valid then
}

// Change is one step of an Edit.
type Change struct {
	Kind   ChangeKind
	Offset int64 // of WriteAt; of Truncate the new size, of Extend the least
	Data   []byte
}

// ChangeKind is what a Change does.
type ChangeKind uint8

const (
	Append   ChangeKind = iota + 1
	WriteAt             // zeroes between the end and Offset
	Truncate            // zeroes where the file grows
	Extend              // to at least Offset bytes, by zeroes
)

// Rename moves a file, see store.
type Rename struct {
	From         lockfs.Path
	FromInstance uint64
	To           lockfs.Path
	ToInstance   uint64
	NoReplace    bool
}

// Acquire asks for a lock, or for another mode of one that the owner holds.
type Acquire struct {
	Path      lockfs.Path
	Instance  uint64
	Owner     uint64 // from Session.NewOwner
	Mode      lockfs.Mode
	Wait      bool // until it is granted, over failovers; else lockfs.ErrBusy or ErrLockDelay
	LockDelay time.Duration
	Note      string // for people who ask who holds it; what is no UTF-8 in it becomes "?"
}
