package fuse

import (
	"context"
	"sync"
	"time"

	"lockfs/internal/clock"
)

// lateCuts are files that an open cut to nothing and that were closed unwritten. The cut is
// committed at the last close, which the kernel tells of only after close(2) has returned; but who
// asks for the file then, on this host, expects to see it empty. So questions about such a file
// wait until it is, or until it has become clear that the close was of a copy of the descriptor.
type lateCuts struct {
	fs *fileSystem
	mu struct {
		sync.Mutex
		nodes map[uint64][]*lateCut // by nodeid
	}
}

type lateCut struct {
	file *file
	end  clock.Instant // when to wait no longer
	over chan struct{}
}

const (
	lateClose  = 2 * time.Millisecond // from a flush to the release
	lateCommit = time.Second
)

func newLateCuts(fs *fileSystem) *lateCuts {
	l := &lateCuts{fs: fs}
	l.mu.nodes = make(map[uint64][]*lateCut)
	return l
}

// expect says that a close of f may have been its last.
func (l *lateCuts) expect(f *file) { l.add(f, lateClose) }

func (l *lateCuts) add(f *file, d time.Duration) {
	cut := &lateCut{file: f, end: l.fs.clock.Now().Add(d), over: make(chan struct{})}
	id := f.nodeID()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(id, f)
	l.mu.nodes[id] = append(l.mu.nodes[id], cut)
}

// removeLocked takes f out, and whatever nobody needs to wait for any more.
func (l *lateCuts) removeLocked(id uint64, f *file) {
	now := l.fs.clock.Now()
	var kept []*lateCut
	for _, cut := range l.mu.nodes[id] {
		if cut.file != f && cut.end > now {
			kept = append(kept, cut)
			continue
		}
		close(cut.over)
	}
	if l.mu.nodes[id] = kept; len(kept) == 0 {
		delete(l.mu.nodes, id)
	}
}

// start commits the cut of a file that was closed for the last time.
func (l *lateCuts) start(f *file) {
	l.add(f, lateCommit)
	started := l.fs.background.start(func() {
		if err := f.commit(l.fs.background.ctx); err != nil {
			l.fs.log.Warn("closed, and not cut to nothing", "path", f.path, "error", err)
		}
		l.remove(f)
	})
	if !started {
		l.remove(f)
	}
}

// remove says that nothing is to be expected of f any more.
func (l *lateCuts) remove(f *file) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(f.nodeID(), f)
}

// await waits until no cut of the node is late but one by the file that asks, if it is one that does,
// and reports whether one was.
func (l *lateCuts) await(ctx context.Context, id uint64, asks *file) bool {
	waited := false
	for cut := l.of(id, asks); cut != nil; cut = l.of(id, asks) {
		waited = true
		left := cut.end.Sub(l.fs.clock.Now())
		timer := l.fs.clock.NewTimer(left)
		select {
		case <-cut.over:
		case <-timer.C():
			l.mu.Lock()
			l.removeLocked(id, nil)
			l.mu.Unlock()
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			break
		}
	}
	return waited
}

func (l *lateCuts) of(id uint64, asks *file) *lateCut {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cut := range l.mu.nodes[id] {
		if cut.file != asks {
			return cut
		}
	}
	return nil
}
