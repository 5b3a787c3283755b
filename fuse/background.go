package fuse

import (
	"context"
	"sync"
)

// background is the goroutines that no kernel request waits for. Once it is ended, none starts.
type background struct {
	ctx    context.Context // ends with it
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		ended bool
	}
	running sync.WaitGroup
}

func newBackground() *background {
	b := new(background)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// start runs f in a goroutine of its own, or returns false. f ends soon after b.ctx.
func (b *background) start(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.ended {
		return false
	}
	b.running.Go(f)
	return true
}

// end ends all and waits for it.
func (b *background) end() {
	b.mu.Lock()
	b.mu.ended = true
	b.mu.Unlock()
	b.cancel()
	b.running.Wait()
}
