package raft

import "sync"

// A queue is between the run goroutine, which must never wait, and one goroutine that works it
// off.
type queue[T any] struct {
	// max is how many items may wait; when more come the oldest are dropped. 0 is no bound, for
	// what raft itself bounds: see raftConfig and stalled.
	max int
	mu  struct {
		sync.Mutex
		items []T
	}
	wake chan struct{} // holds a token while there are items
}

func newQueue[T any](max int) *queue[T] { return &queue[T]{max: max, wake: make(chan struct{}, 1)} }

func (q *queue[T]) put(item T) {
	q.mu.Lock()
	if q.max > 0 && len(q.mu.items) >= q.max {
		q.mu.items = q.mu.items[1:]
	}
	q.mu.items = append(q.mu.items, item)
	q.mu.Unlock()
	wake(q.wake)
}

// take waits for items and returns all there are, or none once stop is closed.
func (q *queue[T]) take(stop <-chan struct{}) []T {
	for {
		select {
		case <-stop:
			return nil
		case <-q.wake:
		}
		if items := q.clear(); len(items) > 0 {
			return items
		}
	}
}

// clear returns all that waits.
func (q *queue[T]) clear() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.mu.items
	q.mu.items = nil
	return items
}

// wake puts a token into a channel of capacity one, where there is none.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
