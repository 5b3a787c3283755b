package client

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

const (
	dialTimeout = 2 * time.Second // for a replica to accept a connection and say who it is
	userTimeout = 4 * time.Second // for the peer's kernel to acknowledge what was sent
	maxMessage  = 64 << 20        // a listing of a directory at its bound has some 30 MiB

	// How much may be under way unread, of a call and of all. Without a fixed size gRPC measures the
	// connection to find one, with pings beside every small answer: a third of a read's time.
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// dialTCP is the default of Config.Dial. A host that has gone without a word shows by what it does
// not acknowledge, which by default TCP would wait a quarter of an hour for.
func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if failed := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		}); failed != nil {
			return failed
		}
		return err
	}}
	return d.DialContext(ctx, "tcp", address)
}

// clientConn prepares a connection to one replica. It is made and thrown away whole: gRPC's own
// reconnecting knows nothing of masters.
func (c *Client) clientConn(address string) (*grpc.ClientConn, error) {
	return c.clientConnBy(c.cfg.Dial, address)
}

func (c *Client) clientConnBy(dial func(context.Context, string) (net.Conn, error), address string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if c.cfg.TLS != nil {
		creds = credentials.NewTLS(c.cfg.TLS)
	}
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(dial),
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(creds),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
}

// connection is two streams to one master: for calls, and for keep-alives, so that no long answer
// stands before one of those.
type connection struct {
	address string
	welcome *lockpb.Welcome
	calls   *stream
	keeps   *stream
}

func (l *connection) cancel() {
	l.calls.cancel()
	l.keeps.cancel()
}

// stream is one gRPC connection with one Session stream on it.
type stream struct {
	conn    *grpc.ClientConn
	session lockpb.Cell_SessionClient
	cancel  context.CancelFunc

	mu     sync.Mutex
	raw    net.Conn              // below conn
	queue  []*lockpb.ClientFrame // bounded by the machine's open calls
	signal chan struct{}         // the queue is not empty; holds one
}

// open connects to a replica and greets it. Without an error the stream is to be closed.
func (c *Client) open(ctx context.Context, address string, cluster uint64) (*stream, *lockpb.Welcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{cancel: cancel, signal: make(chan struct{}, 1)}
	var err error
	if s.conn, err = c.clientConnBy(s.dialer(c.cfg.Dial), address); err != nil {
		cancel()
		return nil, nil, &lockfs.Error{Op: "connect to " + address, Kind: lockfs.ErrInvalid, Detail: err.Error()}
	}
	var welcome *lockpb.Welcome
	err = within(c.cfg.Clock, dialTimeout, cancel, func() error {
		welcome, err = s.greet(ctx, &lockpb.Hello{Cell: c.cfg.Cell, ClusterId: cluster})
		return err
	})
	if err != nil {
		s.close()
		return nil, nil, lockpb.FromStatus(err, "connect to "+address, "")
	}
	return s, welcome, nil
}

func (s *stream) greet(ctx context.Context, h *lockpb.Hello) (*lockpb.Welcome, error) {
	var err error
	if s.session, err = lockpb.NewCellClient(s.conn).Session(ctx); err != nil {
		return nil, err
	}
	if err := s.session.Send(&lockpb.ClientFrame{Frame: &lockpb.ClientFrame_Hello{Hello: h}}); err != nil {
		_, err = s.session.Recv() // has the reason
		return nil, err
	}
	f, err := s.session.Recv()
	if err != nil {
		return nil, err
	}
	if f.GetWelcome() == nil {
		return nil, &lockfs.Error{Kind: lockfs.ErrInternal, Detail: "its first frame is not a welcome"}
	}
	return f.GetWelcome(), nil
}

// within calls cancel if do takes longer than d.
func within(k clock.Clock, d time.Duration, cancel context.CancelFunc, do func() error) error {
	timer := k.NewTimer(d)
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-timer.C():
			cancel()
		case <-done:
		}
	})
	err := do()
	close(done)
	watch.Wait()
	timer.Stop()
	return err
}

// dialer is dial, which keeps the connection for close.
func (s *stream) dialer(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dial(ctx, address)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.raw = conn
		return conn, err
	}
}

// close ends the stream at once. gRPC would first say good-bye, for which it waits some seconds where
// the peer takes nothing any more; meanwhile nobody would look for a master that lives.
func (s *stream) close() {
	s.cancel()
	s.mu.Lock()
	if s.raw != nil {
		s.raw.Close()
	}
	s.mu.Unlock()
	s.conn.Close()
}

// push queues frames for sending, and never waits.
func (s *stream) push(frames []*lockpb.ClientFrame) {
	if len(frames) == 0 {
		return
	}
	s.mu.Lock()
	s.queue = append(s.queue, frames...)
	s.mu.Unlock()
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// send sends what is queued until the stream ends. What cannot be encoded, a string that is no UTF-8,
// is given to refuse: it is the fault of one call, and the stream is that of all.
func (s *stream) send(refuse func(*lockpb.ClientFrame, error)) {
	for {
		select {
		case <-s.session.Context().Done():
			return
		case <-s.signal:
		}
		s.mu.Lock()
		frames := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, f := range frames {
			var encoded grpc.PreparedMsg
			if err := encoded.Encode(s.session, f); err != nil {
				refuse(f, err)
			} else if s.session.SendMsg(&encoded) != nil {
				return // receive learns why
			}
		}
	}
}

// receive hands each frame to take until the stream ends, and returns why it did.
func (s *stream) receive(take func(*lockpb.ServerFrame)) error {
	for {
		f, err := s.session.Recv()
		if err != nil {
			return err
		}
		take(f)
	}
}
