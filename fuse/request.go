package fuse

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"lockfs"
	"lockfs/internal/clock"
)

// patience is how a request takes an interrupt.
type patience int

const (
	// atOnce ends a wait for a lock with the signal: it is made to be waited for, and the kernel
	// sends it again after a handler with SA_RESTART.
	atOnce patience = iota
	// briefly goes on for a moment if the process lives on. Programs do not expect EINTR of stat or
	// open, and a healthy cell answers before the moment is over.
	briefly
	// whileAlive ends only with the process, for what changes something. close(2) and a write cannot
	// be done again: a shell that is told that a child has ended, while it closes a file, would lose
	// what it wrote. And what the log has by the time of the signal is done, whatever is answered.
	whileAlive
)

// A signal ends a wait within 100 ms; these leave time to give up what was asked of the cell.
const (
	graceOfSignal = 50 * time.Millisecond
	lookAtDying   = 50 * time.Millisecond
)

// A request is the context of one kernel request: it ends when the kernel has interrupted it. The
// cancel channel is go-fuse's to use again after the answer, so nothing may keep it: end waits
// until nothing looks at it any more.
type request struct {
	context.Context
	cancel      context.CancelFunc
	interrupted atomic.Bool
	watched     chan struct{} // closed when watch has returned
}

func begin(cancel <-chan struct{}, tid uint32, how patience, clock clock.Clock) *request {
	ctx, stop := context.WithCancel(context.Background())
	r := &request{Context: ctx, cancel: stop, watched: make(chan struct{})}
	go r.watch(cancel, tid, how, clock)
	return r
}

func (r *request) watch(cancel <-chan struct{}, tid uint32, how patience, clock clock.Clock) {
	defer close(r.watched)
	select {
	case <-cancel:
	case <-r.Done():
		return
	}
	switch how {
	case briefly:
		if !dying(tid) && sleep(r, clock, graceOfSignal) != nil {
			return
		}
	case whileAlive:
		// A second signal is not told, so look for it.
		for !dying(tid) {
			if sleep(r, clock, lookAtDying) != nil {
				return
			}
		}
	}
	r.interrupted.Store(true)
	r.cancel()
}

func (r *request) end() {
	r.cancel()
	<-r.watched
}

// finish runs what must not be left half done, to its end: a close, or an unlock after the commit of
// what was written under the lock. If the request ends first, its process does, and what is to be
// done goes on in the background.
func (fs *fileSystem) finish(r *request, do func(ctx context.Context) error) error {
	done := make(chan error, 1)
	if !fs.background.start(func() { done <- do(fs.background.ctx) }) {
		return errClosing
	}
	select {
	case err := <-done:
		return err
	case <-r.Done():
		return r.Err()
	}
}

// errno is errno(err) with EINTR for what ended because the kernel interrupted, and only then: a
// program that is told EINTR without a signal sees errno 512, or asks again for ever. What was
// given up is not done; what cannot be known to be given up is not EINTR.
func (r *request) errno(err error, number syscall.Errno) syscall.Errno {
	ended := number == syscall.EINTR || errors.Is(err, lockfs.ErrGivenUp) || errors.Is(err, context.Canceled)
	if !ended || errors.Is(err, lockfs.ErrUnknown) {
		return number
	}
	if r.interrupted.Load() {
		return syscall.EINTR
	}
	return syscall.EIO
}

// sleep waits for d of clock's time, or fails when ctx ends.
func sleep(ctx context.Context, clock clock.Clock, d time.Duration) error {
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// within is ctx, ended after d of clock's time.
func within(ctx context.Context, d time.Duration, clock clock.Clock) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := clock.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel(lockfs.ErrUnavailable)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
