package raft

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lockfs/internal/clock"
	"lockfs/raft/raftrpc"
)

const (
	// laneMax is how many messages may wait for a stream. Raft says again what matters.
	laneMax       = 512
	frameBytesMax = 1 << 20 // of messages in a frame; a single larger one goes alone

	backoffMin = 50 * time.Millisecond
	backoffMax = 300 * time.Millisecond
	// connectTime is how long the network may take to answer a connection at all.
	connectTime = time.Second
)

// accepted is the header by which a peer says that it takes what follows the greeting.
const accepted = "lockfs-accepted"

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
	asked atomic.Int64 // clock.Instant of the first message to it after that, 0 if there was none

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
	heard := p.heard.Load()
	return heard != 0 && p.r.cfg.Clock.Now().Sub(clock.Instant(heard)) <= electionTicks*p.r.cfg.Tick
}

func (p *peer) disconnect(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cancel != nil {
		p.mu.cancel(why)
	}
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

// connect holds a connection until it fails.
func (p *peer) connect(ctx context.Context) error {
	var refused atomic.Pointer[error] // what dialling failed with: gRPC only has it in a long sentence
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := p.r.cfg.Dial(ctx, address)
		if err != nil {
			refused.Store(&err)
		}
		return conn, err
	}
	conn, err := grpc.NewClient("passthrough:///"+p.Address,
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(orInsecure(p.r.cfg.Credentials)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTime}))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.mu.Lock()
	p.mu.conn, p.mu.ctx, p.mu.cancel = conn, ctx, cancel
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.mu.conn, p.mu.cancel = nil, nil
		p.mu.Unlock()
	}()

	both := make(chan struct{})
	go func() {
		defer close(both)
		cancel(p.stream(ctx, conn, p.bulk, nil))
	}()
	cancel(p.stream(ctx, conn, p.urgent, func() { p.tell(nil) }))
	<-both
	if err := refused.Load(); err != nil {
		return *err
	}
	return context.Cause(ctx)
}

func orInsecure(c credentials.TransportCredentials) credentials.TransportCredentials {
	if c == nil {
		return insecure.NewCredentials()
	}
	return c
}

// stream sends what comes into a lane until that fails, which it says. It calls open once the
// peer has accepted.
func (p *peer) stream(ctx context.Context, conn *grpc.ClientConn, l *queue[*raftpb.Message], open func()) error {
	s, err := raftrpc.NewPeerClient(conn).Messages(ctx)
	if err != nil {
		return plain(err)
	}
	if err := s.Send(&raftrpc.PeerFrame{Greeting: p.r.greeting(p.ID)}); err != nil {
		return plain(reason(s, err))
	}
	if header, err := s.Header(); err != nil || len(header.Get(accepted)) == 0 {
		return plain(reason(s, err))
	}
	if open != nil {
		open()
	}
	for {
		messages := l.take(ctx.Done())
		if messages == nil {
			return ctx.Err()
		}
		for len(messages) > 0 {
			var frame *raftrpc.PeerFrame
			if frame, messages, err = nextFrame(messages); err != nil {
				return err
			}
			if err := s.Send(frame); err != nil {
				return plain(reason(s, err))
			}
		}
	}
}

// nextFrame packs as many messages as a frame takes, and returns the others.
func nextFrame(messages []*raftpb.Message) (*raftrpc.PeerFrame, []*raftpb.Message, error) {
	frame, bytes := new(raftrpc.PeerFrame), 0
	for i, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, nil, err
		}
		if bytes += len(b); i > 0 && bytes > frameBytesMax {
			return frame, messages[i:], nil
		}
		frame.Messages = append(frame.Messages, b)
	}
	return frame, nil, nil
}

// closer is a stream that tells at its end why.
type closer interface {
	CloseAndRecv() (*raftrpc.PeerDone, error)
}

// reason returns why a stream has ended on which err was met: what the peer said, if it did.
func reason(s closer, err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := s.CloseAndRecv(); err != nil {
		return err
	}
	return errors.New("the peer ended the stream")
}

// plain makes one sentence of an error of gRPC.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return errors.New(s.Message())
	}
	return err
}
