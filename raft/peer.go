package raft

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"

	"lockfs/internal/clock"
)

// laneMax is how many messages may wait for a stream. Raft says again what matters.
const laneMax = 512

// Pauses between one connection and the next.
const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 300 * time.Millisecond
)

// A peer is another member as this replica sends to it. Its goroutine holds a connection, one
// after the other, with two streams of messages: on one wait appends, which may be big, and all
// the rest goes on the other, so that a heartbeat never stands behind entries.
type peer struct {
	r *Replica
	Member
	urgent, bulk *queue[*raftpb.Message]
	ended        chan struct{} // closed when its goroutine has
	leave        context.CancelFunc

	heard atomic.Int64 // clock.Instant when a message from it last came
	// answered is when it last answered what this replica sent it as the leader. Who speaks and does
	// not hear, behind a wrong address, is no member that a majority can count on.
	answered atomic.Int64
	asked    atomic.Int64 // clock.Instant of the first message to it after that, 0 if there was none

	incarnation atomic.Uint64 // of the data folder that it was first heard with; 0: none yet

	mu struct {
		sync.Mutex
		conn   *grpc.ClientConn // nil while there is none
		ctx    context.Context  // of the connection
		cancel context.CancelCauseFunc
	}

	trouble         string // why it cannot be reached, as last logged; owned by its goroutine
	snapshotTrouble string // why it got no snapshot, likewise; owned by the run goroutine
}

// newPeer starts to hold a connection to m until leave is called.
func newPeer(r *Replica, m Member) *peer {
	ctx, leave := context.WithCancel(context.Background())
	p := &peer{r: r, Member: m, urgent: newQueue[*raftpb.Message](laneMax), bulk: newQueue[*raftpb.Message](laneMax), ended: make(chan struct{}), leave: leave}
	go p.run(ctx)
	return p
}

// send never waits, and promises nothing.
func (p *peer) send(m *raftpb.Message) {
	p.noticeSilence()
	if m.GetType() == raftpb.MsgApp {
		p.bulk.put(m)
	} else {
		p.urgent.put(m)
	}
}

// noticeSilence gives the connection up when a member has not answered for long: it may be one
// that the network has forgotten, and TCP would try for minutes before it said so.
func (p *peer) noticeSilence() {
	now := int64(p.r.cfg.Clock.Now())
	asked := p.asked.Load()
	if asked == 0 {
		p.asked.Store(now)
		return
	}
	if time.Duration(now-asked) > 4*electionTicks*p.r.cfg.Tick {
		p.asked.Store(0)
		p.disconnect(errors.New("it does not answer"))
	}
}

func (p *peer) hears() {
	p.heard.Store(int64(p.r.cfg.Clock.Now()))
	p.asked.Store(0)
}

// active reports whether it was heard from within an election timeout.
func (p *peer) active() bool {
	return p.lately(&p.heard)
}

// answers reports whether it answered the leader, who this is, within an election timeout.
func (p *peer) answers() bool { return p.lately(&p.answered) }

func (p *peer) lately(when *atomic.Int64) bool {
	at := when.Load()
	return at != 0 && p.r.cfg.Clock.Now().Sub(clock.Instant(at)) <= electionTicks*p.r.cfg.Tick
}

// isOf reports whether the member is heard with the same data folder as before.
func (p *peer) isOf(incarnation uint64) bool {
	return incarnation == 0 || p.incarnation.CompareAndSwap(0, incarnation) || p.incarnation.Load() == incarnation
}

func (p *peer) disconnect(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cancel != nil {
		p.mu.cancel(why)
	}
}

func (p *peer) setConnection(conn *grpc.ClientConn, ctx context.Context, cancel context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conn, p.mu.ctx, p.mu.cancel = conn, ctx, cancel
}

// connection returns the connection there is, and a context that ends with it.
func (p *peer) connection() (*grpc.ClientConn, context.Context, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn == nil {
		return nil, nil, errors.New("it is not connected")
	}
	return p.mu.conn, p.mu.ctx, nil
}

func (p *peer) run(ctx context.Context) {
	defer close(p.ended)
	pause := backoffMin
	for {
		began := p.r.cfg.Clock.Now()
		err := p.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		p.tell(err)
		p.urgent.clear()
		p.bulk.clear()
		p.r.call(func() { p.r.unreachable(p.ID) })
		if p.r.cfg.Clock.Now().Sub(began) > backoffMax {
			pause = backoffMin // it was a good connection
		}
		if !p.wait(ctx, pause) {
			return
		}
		pause = min(2*pause, backoffMax)
	}
}

func (p *peer) wait(ctx context.Context, d time.Duration) bool {
	timer := p.r.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// tell logs why the member cannot be reached, and with nil that it can, if that is news.
func (p *peer) tell(err error) {
	var trouble string
	if err != nil {
		trouble = err.Error()
	}
	if trouble == p.trouble {
		return
	}
	p.trouble = trouble
	if err != nil {
		p.r.log.Warn("cannot reach a member", "member", p.ID, "name", p.Name, "address", p.Address, "error", err)
	} else {
		p.r.log.Info("reached the member again", "member", p.ID, "name", p.Name, "address", p.Address)
	}
}
