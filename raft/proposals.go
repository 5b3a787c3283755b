package raft

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// Bounds of what waits to get into the log, and of an entry that is made of many proposals. A
// peer message carries an entry whole, and gRPC takes messages of up to 4 MiB.
const (
	proposalBytesMax = 2 << 20
	waitingMax       = 1 << 16
	waitingBytesMax  = 64 << 20
	batchMax         = 1024
	batchBytesMax    = 1 << 20
)

// proposals wait here for the run goroutine, which makes one entry of all it finds.
type proposals struct {
	wake chan struct{} // holds a token when there is something new
	mu   struct {
		sync.Mutex
		term  uint64 // in which this replica leads; 0 if it does not
		items [][]byte
		bytes int
	}
}

func (p *proposals) add(term uint64, data []byte) error {
	if len(data) > proposalBytesMax {
		return fmt.Errorf("%w: %d bytes, and %d are allowed", ErrTooLarge, len(data), proposalBytesMax)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if term == 0 || term != p.mu.term {
		return ErrNotLeader
	}
	if len(p.mu.items) >= waitingMax || p.mu.bytes+len(data) > waitingBytesMax {
		return ErrOverloaded
	}
	p.mu.items = append(p.mu.items, data)
	p.mu.bytes += len(data)
	wake(p.wake)
	return nil
}

// lead says in which term this replica leads from now on, 0 if in none. What waited was for the
// term before and is discarded.
func (p *proposals) lead(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.term, p.mu.items, p.mu.bytes = term, nil, 0
}

// take removes what makes the next entry, nil if nothing waits.
func (p *proposals) take() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.items) == 0 {
		return nil, nil
	}
	n, bytes := 0, 0
	for n < len(p.mu.items) && n < batchMax && (n == 0 || bytes+len(p.mu.items[n]) <= batchBytesMax) {
		bytes += len(p.mu.items[n])
		n++
	}
	entry, err := proto.Marshal(&raftrpc.EntryData{Proposals: p.mu.items[:n]})
	clear(p.mu.items[:n]) // the array behind them stays for a while, what it points to need not
	p.mu.items = p.mu.items[n:]
	p.mu.bytes -= bytes
	return entry, err
}
