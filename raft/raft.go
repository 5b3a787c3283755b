// Package raft keeps one log on several replicas: what a majority has written is never lost, and
// every replica feeds the same entries in the same order to its Machine.
//
// It is a shell around go.etcd.io/raft/v3 (in the comments here: raft), which decides everything
// and does nothing; here are the goroutines, the disk and the network that it needs. What the
// proposals say, and what the Machine makes of them, it does not know.
//
// # What a caller does
//
//  1. It loads its Machine from the last checkpoint, which has a position in it, and gives that to
//     Start with a Storage. From there the log is replayed. A new cell starts with the same list of
//     members on every replica, one that was restored from a backup with the same Seed.
//  2. It registers the replica on the server that the other members dial.
//  3. When Machine.Leadership says that this replica leads in a term, it proposes in that term.
//     A proposal is done when Apply gets it; if leadership is lost before, it may or may not be
//     done, and only the log will tell.
//  4. For an answer that is not out of date it asks ReadIndex after the question came, and waits
//     until Apply has come to that index.
//  5. It stops when Done is closed, for the reason that Err gives. Only a new start helps.
//
// # What becomes durable, and when
//
// A proposal is one of those in an entry: all that wait become one. An entry goes to the disk here
// and to the others at the same time; votes and acknowledgements leave only after what they speak
// of is durable, and no entry is applied before it is durable here.
//
// Now and then, and at a Stop in order, the Machine makes a checkpoint. When it is durable the log
// is told so by a mark, and what is before the mark goes, but for a tail, which spares members that
// were away for a short while a whole snapshot, and what a snapshot under way will need. So after a
// crash the Machine can be ahead of the last mark, but never before the beginning of the log.
//
// # Who is a member
//
// A new cell begins with a list of voters. From then on the members are what the log says:
// AddLearner adds one, the leader promotes it once it has the log, and removes the one whom it
// Replaces. Each of these steps follows from the members as all replicas have them, so it does not
// matter who leads, and when somebody dies. A member that was added starts with Config.Joining.
//
// A member is an id with one data folder, whose number, the incarnation, the log records when the
// leader first hears it. Another folder under the same id knows nothing of what the member voted
// and acknowledged: whoever has the record does not listen to it, and it ends with ErrReplaced.
// This works from the record on. Whoever loses its disk before, in the first moments of a cell, or
// asks those alone who were away since before, is not noticed.
//
// Who was removed may be the only one to know. It goes on, without a vote of its own, until one of
// the others tells it, and then ends with ErrRemoved.
//
// # What can go wrong
//
// A disk that reports an error ends the replica: nobody knows what it has. A disk that hangs makes
// it silent, so that the others elect one of them. A log with a hole or of another member is
// refused, and the way back is to be replaced by a new member. So it is where the leader counts on
// entries that this log had and has no more. A state that is damaged is got from another member,
// by FetchState, before Start.
// A leader that was cut off or frozen steps down within an election timeout of running again, and
// never confirms a read meanwhile.
package raft

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"lockfs/internal/clock"
)

// Errors that callers act on.
var (
	ErrNotLeader  = errors.New("raft: this replica does not lead")
	ErrOverloaded = errors.New("raft: too much waits already")
	ErrTooLarge   = errors.New("raft: the proposal is too large")
	ErrStopped    = errors.New("raft: the replica has stopped")
	ErrBusy       = errors.New("raft: another change of the membership is under way")
)

// Errors that a replica ends with, or does not start with, because it takes no part any more. The
// way back is a new member, under another id.
var (
	ErrRemoved  = errors.New("raft: this replica is no member of the cell any more: it was removed")
	ErrReplaced = errors.New("raft: the data folder is not the one that this member took part with: its disk was lost or replaced")
	// ErrGap is Start's: the state has to be got from another member first, see FetchState.
	ErrGap = errors.New("what was between the state and the log is gone")
	// ErrDamaged is OpenWAL's, of a log that has lost what was acknowledged: it says what is wrong.
	ErrDamaged = errors.New("it is damaged")
)

// A Machine is what the log is for. Its methods are called one at a time, by the replica's one
// apply goroutine, in the order of the log.
type Machine interface {
	// Apply takes the proposals of one entry, which may be none. An error stops the replica.
	// Every index is told, each one above the last, so whoever waits for one that ReadIndex
	// named hears of it.
	Apply(index uint64, proposals [][]byte) error
	// Checkpoint takes hold of the state as applied so far. The returned function makes that state
	// durable together with position, which is opaque to the machine and to be given to Start as
	// Config.Position; it runs in the background while Apply goes on. One is under way at a time,
	// and none during Restore.
	Checkpoint(position []byte) (save func() error)
	// Snapshot opens the last durable checkpoint. What it returns is used by another goroutine.
	Snapshot() (Snapshot, error)
	// Restore replaces the state, durably, by what a Snapshot's WriteTo wrote elsewhere, and
	// returns the position that was checkpointed with it and the index of the last proposals in it.
	// An error stops the replica.
	Restore(r io.Reader) (position []byte, applied uint64, err error)
	// Leadership tells every change of leader or term, possibly later than the fact. Propose
	// checks the term, so that nothing is proposed on a belief that is out of date.
	Leadership(l Leadership)
}

// Leadership is who leads, as far as this replica knows.
type Leadership struct {
	Term    uint64
	Leader  uint64 // a member's id, 0 if none is known
	Leading bool   // the leader is this replica
}

// A Snapshot is a state that stays as it is while it is read.
type Snapshot interface {
	Position() []byte // as given to Checkpoint
	WriteTo(w io.Writer) (int64, error)
	Close() error
}

// A Member is one replica of the cell. An id is never used again for another one.
type Member struct {
	ID      uint64
	Name    string
	Address string // what Config.Dial is given
	// Incarnation is the number of the data folder that this member takes part with; 0 until the
	// leader has heard it for the first time.
	Incarnation uint64
	Replaces    uint64 // the member that goes once this one votes; 0: none
	Added       uint64 // the entry of the log by which it came; 0: the cell began with it
}

// Config is what a replica starts with. The zero values of the fields marked optional stand for
// the defaults named there.
type Config struct {
	ClusterID uint64
	ID        uint64   // of this member
	Members   []Member // of a new cell, the same list on all; of no account once the log has begun
	// Incarnation is a random number made with the data folder, by which the others notice that
	// the folder is another one; optional, and then they cannot.
	Incarnation uint64
	// Joining is for a member that was added to a running cell: it has no Members and waits to be
	// told everything. Of no account once the log has begun.
	Joining  bool
	Machine  Machine
	Position []byte  // of the checkpoint that the machine was loaded from; nil: none
	Storage  Storage // closed by the replica

	Clock  clock.Clock
	Logger *slog.Logger
	// Dial connects to the address of a member.
	Dial        func(ctx context.Context, address string) (net.Conn, error)
	Credentials credentials.TransportCredentials // optional: none, plain connections

	Tick              time.Duration // optional: 50 ms. Heartbeats are sent every 2, elections begin after 10 to 19
	CheckpointEntries uint64        // optional: 20,000 entries applied are due for a checkpoint
	CheckpointBytes   uint64        // optional: 4 MiB applied are; more at once would be felt by appends meanwhile
	TailEntries       uint64        // optional: 10,000 entries before a checkpoint are kept for stragglers
	TailBytes         uint64        // optional: not more than 32 MiB of them
}

// Status is how a replica sees its cell.
type Status struct {
	ID        uint64
	Term      uint64
	Leader    uint64 // 0 if none is known
	Role      string // leader, follower, candidate, pre-candidate
	Committed uint64
	Applied   uint64
	Members   []MemberStatus // by id
}

// MemberStatus is how a replica sees a member. Only the leader knows Match.
type MemberStatus struct {
	Member  // its Incarnation is 0 while the leader did not hear of its data folder yet
	Learner bool
	Match   uint64 // the log of the member is known to agree with the leader's up to here
	Active  bool   // it was heard from within an election timeout; followers hear from the leader only
}
