package client

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// callKind is what becomes of a call when nobody answers, or nobody waits for it any more.
type callKind uint8

const (
	read        callKind = iota // given up without a word
	mutation                    // numbered, and given up through the log once it was sent
	background                  // numbered, of this package itself: repeated until it is answered
	creation                    // CreateSession, on behalf of all who want a session
	closing                     // CloseSession: numbered; nobody asks how it ended
	wantSession                 // sends nothing, waits for a session
	wantMaster                  // sends nothing, waits for a master
)

// stage is how far a mutation has come.
type stage uint8

const (
	waiting   stage = iota // its caller waits
	givingUp               // its caller waits, but for no longer than the give-up may take
	abandoned              // its caller has left; the number's fate is still to be learnt
)

// call is something that a caller wants of the cell.
type call struct {
	kind    callKind
	op      string        // for errors
	path    lockfs.Path   // for errors
	wire    *lockpb.Call  // the operation and its guard; each sending adds the rest
	session *session      // nil of plain reads
	waits   bool          // an Acquire that waits as long as it takes
	owner   *owner        // of Acquire, Release and CloseOwner; set by start
	ready   chan struct{} // holds one: there is something to collect

	// Owned by the machine.
	seq      uint64  // calls are sent in this order
	number   uint64  // of a mutation; given at its first sending, so 0 is: surely not done
	confirms numbers // what it confirms, the same at each sending
	id       uint64  // on the current link; 0 is not sent there
	sent     clock.Instant
	taken    bool // the master has it: it waits for others, not for a master
	stage    stage
	parked   bool      // until its owner's earlier acquire is settled
	giveUp   *call     // that asks for the fate of this
	of       *call     // whose fate this asks for
	undoes   bool      // takes back the grant of an acquire that was abandoned
	before   *heldLock // of an Acquire that was granted: what its owner held before

	late     bool          // it waits no longer than for a round of asking that began after this one:
	round    int           // of that number
	deadline clock.Instant // 0 is none
	due      int           // place in the heap of deadlines

	// The outcome, for the caller. held: it must not be told before the session is confirmed.
	answer  *lockpb.Answer
	failure error
	told    bool
	held    bool
	why     error // of a call that is given up: the error of its context; nil is that time ran out
}

// newCall makes a call of a session, or of none.
func newCall(kind callKind, s *session, op string, path lockfs.Path, wire *lockpb.Call) *call {
	return &call{kind: kind, session: s, op: op, path: path, wire: wire, ready: make(chan struct{}, 1), due: -1}
}

func (c *call) numbered() bool {
	return c.kind == mutation || c.kind == background || c.kind == closing
}

// sends reports whether the call goes over the wire at all.
func (c *call) sends() bool { return c.kind != wantSession && c.kind != wantMaster }

// ownerID returns whose lock the call is about, 0 if it is not about a lock.
func (c *call) ownerID() uint64 {
	return c.wire.GetAcquire().GetOwner() + c.wire.GetRelease().GetOwner() // one of them is nil
}

// superseded reports whether the call need not be sent again, since another one asks for its fate.
func (c *call) superseded() bool {
	return c.giveUp != nil || c.wire.GetAcquire() != nil && c.number != 0 && c.owner.closer != nil
}

func (c *call) fail(kind lockfs.Kind, detail string) error {
	return &lockfs.Error{Op: c.op, Path: c.path, Kind: kind, Detail: detail}
}

// interrupted is what a caller gets whose context has ended.
func (c *call) interrupted(why error) error {
	if c.path == "" {
		return fmt.Errorf("%s: %w", c.op, why)
	}
	return fmt.Errorf("%s %s: %w", c.op, c.path, why)
}

// unknown is what a caller gets where the fate of the mutation could not be learnt in time.
func (c *call) unknown(detail string) error {
	err := c.fail(lockfs.ErrUnknown, detail)
	if c.why != nil {
		return fmt.Errorf("%w: %w", err, c.why)
	}
	return err
}

// frame is the call as it is sent on a link, in a message of its own: an earlier one may still be
// on its way to another replica.
func (c *call) frame(l *link) *lockpb.Call {
	f := &lockpb.Call{
		Id: c.id, ClusterId: l.cluster, Epoch: l.epoch,
		Number: c.number, Confirmed: c.confirms.wire(), Guard: c.wire.GetGuard(), Op: c.wire.GetOp(),
	}
	if c.session != nil {
		f.Session = c.session.id
	}
	return f
}

// inOrder returns calls in the order in which they are sent.
func inOrder(calls map[*call]struct{}) []*call {
	return slices.SortedFunc(maps.Keys(calls), func(a, b *call) int { return cmp.Compare(a.seq, b.seq) })
}

// ---- Deadlines -------------------------------------------------------------------------------

// dueHeap holds the calls that have a deadline, the earliest first.
type dueHeap []*call

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].deadline, h[j].deadline), cmp.Compare(h[i].seq, h[j].seq)) < 0
}
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].due, h[j].due = i, j
}
func (h *dueHeap) Push(x any) {
	c := x.(*call)
	c.due = len(*h)
	*h = append(*h, c)
}
func (h *dueHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil // a call may hold a whole file
	*h = old[:len(old)-1]
	c.due = -1
	return c
}

// arm gives c a deadline in place of the one it had.
func (m *machine) arm(c *call, at clock.Instant) {
	c.deadline = at
	if c.due >= 0 {
		heap.Fix(&m.due, c.due)
	} else {
		heap.Push(&m.due, c)
	}
}

func (m *machine) disarm(c *call) {
	c.deadline = 0
	if c.due >= 0 {
		heap.Remove(&m.due, c.due)
	}
}
