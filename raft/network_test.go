package raft

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// A network connects the hosts of a test. It can cut the way between two of them: then, as with
// lost packets, nothing arrives, and whoever writes waits, until it is healed or gives up.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	cut       map[[2]string]bool
	changed   chan struct{} // closed and replaced at every change
	delay     time.Duration // of each write, at most
	random    *rand.Rand
}

func newNetwork(seed uint64) *network {
	return &network{
		listeners: make(map[string]*bufconn.Listener), cut: make(map[[2]string]bool),
		changed: make(chan struct{}), random: rand.New(rand.NewPCG(seed, 1)),
	}
}

// listen makes a host reachable, instead of what listened there before.
func (n *network) listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = bufconn.Listen(1 << 20)
	return n.listeners[address]
}

func way(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// set cuts or heals the way between two hosts.
func (n *network) set(a, b string, cut bool) {
	n.change(func() { n.cut[way(a, b)] = cut })
}

func (n *network) change(how func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	how()
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *network) slow(delay time.Duration) { n.change(func() { n.delay = delay }) }

// pass waits until the way is open, or stop is closed.
func (n *network) pass(way [2]string, stop <-chan struct{}) error {
	for {
		n.mu.Lock()
		cut, changed := n.cut[way], n.changed
		n.mu.Unlock()
		if !cut {
			return nil
		}
		select {
		case <-changed:
		case <-stop:
			return net.ErrClosed
		}
	}
}

// dial is what the host from dials with.
func (n *network) dial(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		if err := n.pass(way(from, address), ctx.Done()); err != nil {
			return nil, err
		}
		n.mu.Lock()
		listener := n.listeners[address]
		n.mu.Unlock()
		if listener == nil {
			return nil, errors.New("connection refused")
		}
		conn, err := listener.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		return &link{Conn: conn, n: n, way: way(from, address), closed: make(chan struct{})}, nil
	}
}

// A link is the dialling end of a connection; both directions pass through it.
type link struct {
	net.Conn
	n      *network
	way    [2]string
	once   sync.Once
	closed chan struct{}
}

func (l *link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if blocked := l.n.pass(l.way, l.closed); blocked != nil {
		return 0, blocked
	}
	return n, err
}

func (l *link) Write(b []byte) (int, error) {
	l.n.mu.Lock()
	var delay time.Duration
	if l.n.delay > 0 {
		delay = time.Duration(l.n.random.Int64N(int64(l.n.delay)))
	}
	l.n.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
	if err := l.n.pass(l.way, l.closed); err != nil {
		return 0, err
	}
	return l.Conn.Write(b)
}
