package raft

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

const (
	frameBytesMax = 1 << 20 // of messages in a frame; a single larger one goes alone

	// connectTime is how long the network may take to answer a connection at all.
	connectTime = time.Second
	// arrivalTime is how long it may take until what was sent has arrived.
	arrivalTime = 2 * time.Second
)

// accepted is the header by which a peer says that it takes what follows the greeting.
const accepted = "lockfs-accepted"

// connect holds a connection until it fails, which it says.
func (p *peer) connect(ctx context.Context) error {
	wire := &wire{dial: p.r.cfg.Dial}
	conn, err := wire.client(p.Address, p.r.cfg.Credentials)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p.asked.Store(0)
	p.setConnection(conn, ctx, cancel)
	var bulk sync.WaitGroup
	bulk.Go(func() { cancel(p.stream(ctx, conn, p.bulk, nil)) })
	cancel(p.stream(ctx, conn, p.urgent, func() { p.tell(nil) }))
	bulk.Wait()
	p.setConnection(nil, nil, nil)
	wire.cut()
	conn.Close()
	if err := wire.trouble(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func orInsecure(c credentials.TransportCredentials) credentials.TransportCredentials {
	if c == nil {
		return insecure.NewCredentials()
	}
	return c
}

// A wire is what gRPC keeps to itself of a connection.
type wire struct {
	dial func(ctx context.Context, address string) (net.Conn, error)
	mu   struct {
		sync.Mutex
		conn net.Conn
		err  error
	}
}

// client returns a connection that is dialled when it is first used.
func (w *wire) client(address string, c credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(w.open),
		grpc.WithTransportCredentials(orInsecure(c)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTime}))
}

func (w *wire) open(ctx context.Context, address string) (net.Conn, error) {
	conn, err := w.dial(ctx, address)
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = errors.Join(err, giveUpEarly(tcp))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.conn, w.mu.err = conn, err
	return conn, err
}

// giveUpEarly makes a connection fail when nothing of what was sent arrives any more. By itself TCP
// tries for a quarter of an hour, and after a cut as long again as that took.
func giveUpEarly(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(arrivalTime.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// cut ends the connection at once. Closing it, gRPC would say goodbye first, and wait for seconds
// where the network is gone.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.conn != nil {
		w.mu.conn.Close()
	}
}

// trouble returns what dialling failed with; gRPC only has it in the middle of a long sentence.
func (w *wire) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.err
}

// stream sends what comes into a lane until that fails, which it says. It calls open once the
// peer has accepted.
func (p *peer) stream(ctx context.Context, conn *grpc.ClientConn, l *queue[*raftpb.Message], open func()) error {
	s, err := raftrpc.NewPeerClient(conn).Messages(ctx)
	if err != nil {
		return plain(err)
	}
	if err := s.Send(&raftrpc.PeerFrame{Greeting: p.r.greeting(p.ID)}); err != nil {
		return plain(p.heed(reason(s, err)))
	}
	if header, err := s.Header(); err != nil || len(header.Get(accepted)) == 0 {
		return plain(p.heed(reason(s, err)))
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
				return plain(p.heed(reason(s, err)))
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
