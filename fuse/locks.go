package fuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/clock"
	"lockfs/sequencer"
)

// ticketTime is how long a waiter whose wait was interrupted keeps its place, so that a signal
// handler, or a SIGSTOP, does not send it to the end of the queue. The kernel asks again when the
// handler has returned.
const ticketTime = 5 * time.Second

// ghostTime is how long an attempt that would not wait gives a lock of this host to go. The kernel
// tells of a last close after close(2) has returned, so a lock that its program has given up can
// still be here.
const ghostTime = 2 * time.Millisecond

// lockTable is the locks that open files have, or wait for, under one session. It turns claims,
// which the kernel tells of, into holds, which the cell knows. Claims are kept by open file: the
// kernel's owner alone tells nothing, since it is given to the next file as soon as one is closed.
//
// Nothing here waits with the mutex held. Who waits for a lock waits for an attempt, which calls
// the cell from a goroutine of its own and can outlive an interrupted wait.
type lockTable struct {
	session    *client.Session
	clock      clock.Clock
	background *background

	mu struct {
		sync.Mutex
		nodes map[uint64][]*hold // by instance
	}
}

func newLockTable(s *client.Session, clock clock.Clock, background *background) *lockTable {
	l := &lockTable{session: s, clock: clock, background: background}
	l.mu.nodes = make(map[uint64][]*hold)
	return l
}

// lock gets the lock that r asks for, or fails with lockfs.ErrBusy or ErrLockDelay at once if it is
// not to wait. If ctx ends first the wait is given up; but where ticket reports that the program
// lives on, its place is kept for a while.
func (l *lockTable) lock(ctx context.Context, r *lockRequest, ticket func() bool) error {
	err := l.try(ctx, r, ticket)
	switch {
	case errors.Is(err, lockfs.ErrBusy) && l.awaitGhost(ctx, r):
		return l.try(ctx, r, ticket)
	case errors.Is(err, lockfs.ErrDeadlock) && r.kind == flockLock:
		// Two shared holders both want the lock for themselves. As on a local file system, who
		// comes second loses the shared lock and queues up.
		if err := l.unlock(ctx, r.claimKey, wholeFile); err != nil {
			return err
		}
		return l.try(ctx, r, ticket)
	}
	return err
}

func (l *lockTable) try(ctx context.Context, r *lockRequest, ticket func() bool) error {
	for {
		h, a, joined, err := l.join(r)
		if err != nil {
			return err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			if !joined || l.leave(h, a, r, ticket) {
				return ctx.Err()
			}
			<-a.done // it has ended at the same moment
		}
		if joined {
			return a.err
		}
	}
}

// join makes r part of the attempt of its hold. Where another has to end first, it returns that.
func (l *lockTable) join(r *lockRequest) (*hold, *attempt, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holdOfLocked(r)
	want := h.want(r)
	a := h.attempt
	switch {
	case len(h.ranges) > rangesMax:
		return nil, nil, false, lockfs.ErrLimit
	case a == nil:
		a = l.startLocked(h, want, r)
	case a.over || a.mode != want || !r.wait && len(a.joined) == 0:
		if len(a.joined) == 0 {
			a.giveUp() // a ticket whose program came back for something else
		}
		return h, a, false, nil
	case !r.wait:
		return nil, nil, false, lockfs.ErrBusy // somebody waits with the same descriptor
	}
	a.joined[r] = struct{}{}
	return h, a, true, nil
}

// holdOfLocked returns the hold that serves r's claim, one that can, or a new one.
func (l *lockTable) holdOfLocked(r *lockRequest) *hold {
	h := l.servingLocked(r.claimKey)
	if h == nil {
		holds := l.mu.nodes[r.file.instance]
		if i := slices.IndexFunc(holds, func(h *hold) bool { return !h.ending && h.canServe(r) }); i >= 0 {
			h = holds[i]
		} else {
			h = newHold(r.file, l.session.NewOwner())
			l.mu.nodes[r.file.instance] = append(holds, h)
		}
	}
	h.enter(r)
	return h
}

func (l *lockTable) servingLocked(key claimKey) *hold {
	for _, h := range l.mu.nodes[key.file.instance] {
		if !h.ending && h.serves(key) {
			return h
		}
	}
	return nil
}

// startLocked asks the cell for a mode of the hold's owner.
func (l *lockTable) startLocked(h *hold, mode lockfs.Mode, r *lockRequest) *attempt {
	ctx, cancel := context.WithCancel(l.background.ctx)
	a := &attempt{mode: mode, joined: make(map[*lockRequest]struct{}), cancel: cancel, done: make(chan struct{})}
	h.attempt = a
	h.pid, h.command = r.process.pid, r.command
	acquire := client.Acquire{
		Path: h.path, Instance: h.instance, Owner: h.owner, Mode: mode,
		Wait: r.wait, LockDelay: r.lockDelay, Note: note(h.pid, h.command),
	}
	if !l.background.start(func() { l.run(ctx, h, a, acquire) }) {
		cancel()
		a.err = lockfs.ErrSession
		h.attempt = nil
		close(a.done)
	}
	return a
}

// note says to people who holds a lock; it is true of who asked, which may have passed it on. What a
// process is called is its own choice, and may be meant for a terminal.
func note(pid uint32, command string) string {
	return fmt.Sprintf("pid %d %s", pid, strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, command))
}

// run is an attempt.
func (l *lockTable) run(ctx context.Context, h *hold, a *attempt, acquire client.Acquire) {
	defer a.cancel()
	granted, err := l.session.Acquire(ctx, acquire)
	l.mu.Lock()
	h.attempt = nil
	a.err = err
	if err == nil {
		h.mode, h.sequencer, h.touched = a.mode, granted, true
		for r := range a.joined {
			h.set(r.claimKey, r.byteRange)
		}
	} else {
		h.touched = h.touched || !refused(err)
		h.keepUntil = 0
		h.prune()
	}
	lower := err != nil && h.mode != lockfs.Free // that was it, and it failed: leave it so
	l.mu.Unlock()
	close(a.done)
	if !lower {
		l.tidy(h)
	}
}

// refused reports whether an Acquire that failed so has surely left nothing at the cell.
func refused(err error) bool {
	switch lockfs.KindOf(err) {
	case lockfs.ErrBusy, lockfs.ErrLockDelay, lockfs.ErrDeadlock, lockfs.ErrPermission, lockfs.ErrStale, lockfs.ErrNotExist:
		return true
	}
	return false
}

// leave takes r out of an attempt that goes on, or reports that it has ended.
func (l *lockTable) leave(h *hold, a *attempt, r *lockRequest, ticket func() bool) bool {
	keep := ticket()
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.attempt != a {
		return false
	}
	delete(a.joined, r)
	switch {
	case len(a.joined) > 0:
	case keep && r.wait && h.need() == lockfs.Free && l.keepTicketLocked(h):
	default:
		a.giveUp()
	}
	return true
}

// keepTicketLocked lets the attempt go on without a program that waits for it, for ticketTime.
func (l *lockTable) keepTicketLocked(h *hold) bool {
	h.keepUntil = l.clock.Now().Add(ticketTime)
	if h.ticketed {
		return true
	}
	h.ticketed = l.background.start(func() { l.lookAfterTicket(h) })
	return h.ticketed
}

func (l *lockTable) lookAfterTicket(h *hold) {
	for left := ticketTime; left > 0; left = l.ticketLeft(h) {
		timer := l.clock.NewTimer(left)
		select {
		case <-timer.C():
		case <-h.gone:
		case <-l.background.ctx.Done():
		}
		timer.Stop()
		if l.background.ctx.Err() != nil {
			return
		}
	}
	l.tidy(h)
}

// ticketLeft is how long the ticket is still good for; at its end, and if nobody came for it, the
// attempt is given up.
func (l *lockTable) ticketLeft(h *hold) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := h.keepUntil.Sub(l.clock.Now())
	if left > 0 && !h.ending {
		return left
	}
	h.ticketed, h.keepUntil = false, 0
	if h.attempt != nil && len(h.attempt.joined) == 0 {
		h.attempt.giveUp()
	}
	return 0
}

// tidy ends a hold that serves nobody, and lowers one that has more than it needs.
func (l *lockTable) tidy(h *hold) {
	l.mu.Lock()
	need := h.need()
	busy := h.ending || h.attempt != nil || h.keepUntil > l.clock.Now()
	switch {
	case busy || need == h.mode && need != lockfs.Free:
	case need == lockfs.Free:
		h.ending = true
		l.mu.Unlock()
		l.end(h, false)
		return
	default:
		l.lowerLocked(h, need)
	}
	l.mu.Unlock()
}

// lowerLocked asks for a weaker mode, which is granted at once.
func (l *lockTable) lowerLocked(h *hold, mode lockfs.Mode) *attempt {
	return l.startLocked(h, mode, &lockRequest{process: process{pid: h.pid}, command: h.command})
}

// end takes a hold that is ending out of the table, after its owner is closed unless the cell has
// released it already. It never waits.
func (l *lockTable) end(h *hold, released bool) {
	l.mu.Lock()
	touched := h.touched
	l.mu.Unlock()
	if touched && !released {
		l.session.CloseOwner(h.owner)
	}
	l.mu.Lock()
	holds := slices.DeleteFunc(l.mu.nodes[h.instance], func(other *hold) bool { return other == h })
	if l.mu.nodes[h.instance] = holds; len(holds) == 0 {
		delete(l.mu.nodes, h.instance)
	}
	l.mu.Unlock()
	close(h.gone)
}

// awaitGhost waits a moment if another hold of this host is in r's way, and reports whether that
// one went.
func (l *lockTable) awaitGhost(ctx context.Context, r *lockRequest) bool {
	ghost := l.inTheWay(r)
	if ghost == nil {
		return false
	}
	timer := l.clock.NewTimer(ghostTime)
	defer timer.Stop()
	select {
	case <-ghost.gone:
		return true
	case <-timer.C():
	case <-ctx.Done():
	}
	return false
}

func (l *lockTable) inTheWay(r *lockRequest) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.mu.nodes[r.file.instance] {
		if !h.serves(r.claimKey) && h.mode.Conflicts(r.mode) {
			return h
		}
	}
	return nil
}

// unlock gives up a range, all of it for a flock. It waits for the cell's answer; where none comes
// before ctx ends the lock is given up in the background. It fails with lockfs.ErrStale or
// ErrSession where the lock was lost before.
func (l *lockTable) unlock(ctx context.Context, key claimKey, b byteRange) error {
	b.mode = lockfs.Free
	l.mu.Lock()
	h := l.servingLocked(key)
	if h == nil {
		l.mu.Unlock()
		return nil
	}
	h.set(key, b)
	if h.attempt == nil {
		h.prune()
	} else if len(h.attempt.joined) == 0 {
		h.attempt.giveUp() // a ticket
	}
	need := h.need()
	switch {
	case need == h.mode:
		l.mu.Unlock()
		return nil
	case need != lockfs.Free:
		return l.lowerNow(ctx, h, need)
	}
	ending := h.attempt == nil
	if h.ending = ending; !ending {
		h.mode = lockfs.Free // another thread waits with the same descriptor
	}
	l.mu.Unlock()
	err := l.session.Release(ctx, h.path, h.instance, h.owner)
	if ending {
		l.end(h, err == nil)
	}
	return lostOrNil(err)
}

// lowerNow waits until a weaker mode is granted. It is called with the mutex held and lets go of it.
func (l *lockTable) lowerNow(ctx context.Context, h *hold, mode lockfs.Mode) error {
	if h.attempt != nil { // which, when it ends, lowers what is too strong
		l.mu.Unlock()
		return nil
	}
	a := l.lowerLocked(h, mode)
	l.mu.Unlock()
	select {
	case <-a.done:
		return lostOrNil(a.err)
	case <-ctx.Done():
		return nil
	}
}

// lostOrNil keeps of a failed unlock what a program should know: that it had no lock any more. All
// else is made up for in the background.
func lostOrNil(err error) error {
	switch lockfs.KindOf(err) {
	case lockfs.ErrNotHeld, lockfs.ErrStale, lockfs.ErrNotExist:
		return lockfs.ErrStale
	case lockfs.ErrSession:
		return err
	}
	return nil
}

// release gives up all that was taken through an open file, without waiting.
func (l *lockTable) release(f *file) {
	var over []*hold
	l.mu.Lock()
	for _, h := range l.mu.nodes[f.instance] {
		if h.ending || !h.leave(f) {
			continue
		}
		switch need := h.need(); {
		case h.flock == nil && len(h.files) == 0:
			h.ending = true
			if h.attempt != nil {
				h.attempt.giveUp()
				h.touched = true
			}
			over = append(over, h)
		case need != lockfs.Free && need < h.mode && h.attempt == nil:
			l.lowerLocked(h, need)
		}
	}
	l.mu.Unlock()
	for _, h := range over {
		l.end(h, false)
	}
}

// through returns the open files that share the fcntl locks of a process with the given one.
func (l *lockTable) through(key claimKey) []*file {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.servingLocked(key)
	if h == nil {
		return nil
	}
	var files []*file
	for f := range h.files {
		files = append(files, f)
	}
	return files
}

// ownerOf is the owner at the cell of a claim, 0 where it has none.
func (l *lockTable) ownerOf(key claimKey) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.servingLocked(key); h != nil {
		return h.owner
	}
	return 0
}

// pidOf is the process that locked a node as that owner of the session, 0 where it is not known.
func (l *lockTable) pidOf(instance, owner uint64) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.mu.nodes[instance] {
		if h.owner == owner {
			return h.pid
		}
	}
	return 0
}

// guard is the sequencer of the exclusive lock that is held through an open file, or zero.
func (l *lockTable) guard(f *file) sequencer.Sequencer {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.mu.nodes[f.instance] {
		if !h.ending && h.mode == lockfs.Exclusive && h.locks(f) {
			return h.sequencer
		}
	}
	return sequencer.Sequencer{}
}

// locked reports whether any lock is held through an open file.
func (l *lockTable) locked(f *file) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.mu.nodes[f.instance], func(h *hold) bool { return !h.ending && h.locks(f) })
}

// heldLock is a lock that open files hold.
type heldLock struct {
	path      lockfs.Path
	owner     uint64 // at the cell
	sequencer sequencer.Sequencer
	pid       uint32
	command   string
}

// of returns the locks held on a node, held all there are.
func (l *lockTable) of(instance uint64) []heldLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heldLocked(l.mu.nodes[instance])
}

func (l *lockTable) held() []heldLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []heldLock
	for _, holds := range l.mu.nodes {
		all = append(all, l.heldLocked(holds)...)
	}
	return all
}

func (l *lockTable) heldLocked(holds []*hold) []heldLock {
	var held []heldLock
	for _, h := range holds {
		if !h.ending && h.need() != lockfs.Free {
			held = append(held, heldLock{h.path, h.owner, h.sequencer, h.pid, h.command})
		}
	}
	return held
}
