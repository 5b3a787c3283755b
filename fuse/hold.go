package fuse

import (
	"context"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/sequencer"
)

// lockKind is by which call a program locked.
type lockKind uint8

const (
	flockLock lockKind = iota // flock(2): of an open file
	fcntlLock                 // fcntl(2): of a process, or of an open file (F_OFD_SETLK), by the kernel's owner
)

// claimKey tells whose lock is meant.
type claimKey struct {
	file  *file
	kind  lockKind
	owner uint64 // of fcntlLock: the kernel's
}

// hold is one owner at the cell, with the claims that it serves: at most one flock, and the fcntl
// locks of one process, through whichever open files. A program that locks a file both ways, as
// some do to be sure, gets both, through one open file or two: as on a local file system, where the
// two kinds know nothing of each other, it does not wait for itself. Two programs exclude each other.
//
// It is guarded by its table's mutex, but for what never changes.
type hold struct {
	owner    uint64
	path     lockfs.Path
	instance uint64
	gone     chan struct{} // closed when the cell knows, or will know first, that this is over

	flock     *file // who has the flock, or wants it
	flockMode lockfs.Mode
	flocker   process            // which asked for the flock
	process   uint64             // whose fcntl locks these are
	locker    process            // the same, as others see it
	files     map[*file]struct{} // through which it has them, or wants them; empty where there is none
	ranges    ranges

	mode      lockfs.Mode // what the cell has granted
	sequencer sequencer.Sequencer
	attempt   *attempt
	touched   bool          // the cell may know the owner
	ending    bool          // being released: nobody joins any more
	keepUntil clock.Instant // a ticket's end
	ticketed  bool          // somebody looks after the ticket

	pid     uint32 // who locked last, for people
	command string
}

// attempt is one Acquire of a hold's owner.
type attempt struct {
	mode   lockfs.Mode
	joined map[*lockRequest]struct{} // who waits for it; guarded by the table's mutex
	over   bool                      // given up, and soon at its end: nobody joins any more; likewise
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

// giveUp has the attempt end. The table's mutex is held.
func (a *attempt) giveUp() {
	a.over = true
	a.cancel()
}

// lockRequest is what the kernel asks for.
type lockRequest struct {
	claimKey
	byteRange // with the mode that is wanted
	wait      bool
	process   process
	command   string
	lockDelay time.Duration
}

func newHold(f *file, owner uint64) *hold {
	return &hold{owner: owner, path: f.path, instance: f.instance, gone: make(chan struct{})}
}

// serves reports whether the claim is one of the hold's.
func (h *hold) serves(key claimKey) bool {
	if key.kind == flockLock {
		return h.flock == key.file
	}
	return len(h.files) > 0 && h.process == key.owner
}

// canServe reports whether r's claim, which no hold serves, could be one of this hold's: the other
// kind of lock, by the same open file or the same process.
func (h *hold) canServe(r *lockRequest) bool {
	known := r.process != process{}
	if r.kind == flockLock {
		_, through := h.files[r.file]
		return h.flock == nil && (through || known && len(h.files) > 0 && h.locker == r.process)
	}
	return len(h.files) == 0 && (h.flock == r.file || known && h.flock != nil && h.flocker == r.process)
}

// enter writes down that the claim is made, granted or not.
func (h *hold) enter(r *lockRequest) {
	if r.kind == flockLock {
		h.flock, h.flocker = r.file, r.process
		return
	}
	if h.files == nil {
		h.files = make(map[*file]struct{})
	}
	h.files[r.file], h.process, h.locker = struct{}{}, r.owner, r.process
}

// want is the mode that the hold needs once r is granted.
func (h *hold) want(r *lockRequest) lockfs.Mode {
	if r.kind == flockLock {
		return max(r.mode, h.ranges.mode())
	}
	return max(h.flockMode, h.ranges.with(r.byteRange).mode())
}

// need is the mode of the strongest claim.
func (h *hold) need() lockfs.Mode { return max(h.flockMode, h.ranges.mode()) }

// set changes what a claim has locked, or unlocked.
func (h *hold) set(key claimKey, b byteRange) {
	if key.kind == flockLock {
		h.flockMode = b.mode
	} else {
		h.ranges = h.ranges.with(b)
	}
}

// prune forgets claims that have nothing.
func (h *hold) prune() {
	if h.flockMode == lockfs.Free {
		h.flock = nil
	}
	if len(h.ranges) == 0 {
		h.files = nil
	}
}

// leave forgets all that was claimed through an open file, and reports whether anything was.
func (h *hold) leave(f *file) bool {
	_, through := h.files[f]
	if h.flock != f && !through {
		return false
	}
	if h.flock == f {
		h.flock, h.flockMode = nil, lockfs.Free
	}
	if delete(h.files, f); len(h.files) == 0 {
		h.ranges = nil
	}
	return true
}

// locks reports whether anything is locked through an open file.
func (h *hold) locks(f *file) bool {
	_, through := h.files[f]
	return h.flock == f && h.flockMode != lockfs.Free || through && len(h.ranges) > 0
}
