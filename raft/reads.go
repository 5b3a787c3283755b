package raft

import (
	"context"
	"encoding/binary"
	"sync"

	etcdraft "go.etcd.io/raft/v3"
)

// readsMax is how many calls of ReadIndex may wait for the next round.
const readsMax = 1 << 16

// reads wait here until the run goroutine begins the next round for all of them.
type reads struct {
	wake chan struct{} // holds a token when there is something new
	mu   struct {
		sync.Mutex
		leading bool
		waiting []chan readAnswer // each of capacity one, and answered once
	}
}

type readAnswer struct {
	index uint64
	err   error
}

func (r *reads) add() (<-chan readAnswer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.leading {
		return nil, ErrNotLeader
	}
	if len(r.mu.waiting) >= readsMax {
		return nil, ErrOverloaded
	}
	answer := make(chan readAnswer, 1)
	r.mu.waiting = append(r.mu.waiting, answer)
	wake(r.wake)
	return answer, nil
}

func (r *reads) take() []chan readAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := r.mu.waiting
	r.mu.waiting = nil
	return waiting
}

// lead says whether this replica leads from now on. Whoever waited for the leadership of before
// is told that it has ended.
func (r *reads) lead(leading bool) {
	r.mu.Lock()
	r.mu.leading = leading
	r.mu.Unlock()
	answerAll(r.take(), readAnswer{err: ErrNotLeader})
}

func answerAll(waiting []chan readAnswer, answer readAnswer) {
	for _, w := range waiting {
		w <- answer
	}
}

// A readRound is one question to the majority. One is under way at a time, so that under load all
// who came while it was share the next.
type readRound struct {
	number  uint64
	waiting []chan readAnswer
}

// beginRead starts a round if there is reason and none is under way. Before an entry of this term
// is committed raft cannot know what was committed before it: the calls wait for that.
func (r *Replica) beginRead() {
	if len(r.round.waiting) > 0 || !r.leadership.Leading || r.committedTerm != r.leadership.Term {
		return
	}
	if r.round.waiting = r.reads.take(); len(r.round.waiting) > 0 {
		r.round.number++
		r.node.ReadIndex(binary.BigEndian.AppendUint64(nil, r.round.number))
	}
}

// endRead answers a round. States of rounds that were given up may still come; they are nobody's.
func (r *Replica) endRead(states []etcdraft.ReadState) {
	for _, s := range states {
		if binary.BigEndian.Uint64(s.RequestCtx) == r.round.number {
			answerAll(r.round.waiting, readAnswer{index: s.Index})
			r.round.waiting = nil
		}
	}
}

// ReadIndex returns an index such that a state to which it is applied shows everything that was
// committed anywhere when ReadIndex was called: a majority confirmed after the call that this
// replica leads. It fails with ErrNotLeader at once where it does not, or ceases to.
func (r *Replica) ReadIndex(ctx context.Context) (uint64, error) {
	answer, err := r.reads.add()
	if err != nil {
		return 0, err
	}
	select {
	case a := <-answer:
		return a.index, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
