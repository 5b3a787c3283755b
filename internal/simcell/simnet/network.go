// Package simnet is a network between the hosts of a test, all in one process. It can lose the way
// between any two hosts, stop a host altogether, and take its time; connections behave as TCP's do:
// what was written arrives in order, late perhaps, or never.
//
// A connection is one of bufconn, so inside testing/synctest waiting for the network lets time jump.
package simnet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// buffer is what a connection holds for a reader that does not read, as a socket does.
const buffer = 256 << 10

// Network is the network. Hosts have one address each, which is their name.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	cut       map[way]bool
	frozen    map[string]bool
	open      map[*conn]bool
	delay     time.Duration
	random    *rand.Rand
	changed   chan struct{} // closed and replaced at every change
}

// way is between two hosts, whichever is named first.
type way struct{ a, b string }

func between(a, b string) way { return way{min(a, b), max(a, b)} }

// New returns a network without hosts. seed decides over delays.
func New(seed uint64) *Network {
	return &Network{
		listeners: make(map[string]*bufconn.Listener), cut: make(map[way]bool), frozen: make(map[string]bool),
		open: make(map[*conn]bool), random: rand.New(rand.NewPCG(seed, 0)), changed: make(chan struct{}),
	}
}

// Listen makes a host reachable.
func (n *Network) Listen(host string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[host] = bufconn.Listen(buffer)
	return n.listeners[host]
}

// Unlisten makes a host refuse connections, and resets those it has with anybody: its process is
// gone.
func (n *Network) Unlisten(host string) {
	n.mu.Lock()
	listener := n.listeners[host]
	delete(n.listeners, host)
	var gone []*conn
	for c := range n.open {
		if c.way.a == host || c.way.b == host {
			gone = append(gone, c)
		}
	}
	n.mu.Unlock()
	if listener != nil {
		listener.Close()
	}
	for _, c := range gone {
		c.Close()
	}
}

// Cut loses the way between two hosts, and Heal finds it again. Meanwhile nothing arrives, and
// nobody is told.
func (n *Network) Cut(a, b string)  { n.change(func() { n.cut[between(a, b)] = true }) }
func (n *Network) Heal(a, b string) { n.change(func() { delete(n.cut, between(a, b)) }) }

// Freeze stops a host: nothing comes from it or is taken by it until Thaw.
func (n *Network) Freeze(host string) { n.change(func() { n.frozen[host] = true }) }
func (n *Network) Thaw(host string)   { n.change(func() { delete(n.frozen, host) }) }

// Delay makes every write take up to d.
func (n *Network) Delay(d time.Duration) { n.change(func() { n.delay = d }) }

func (n *Network) change(how func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	how()
	close(n.changed)
	n.changed = make(chan struct{})
}

// pass waits until the way is open.
func (n *Network) pass(w way, stop <-chan struct{}) error {
	for {
		n.mu.Lock()
		shut, changed := n.cut[w] || n.frozen[w.a] || n.frozen[w.b], n.changed
		n.mu.Unlock()
		if !shut {
			return nil
		}
		select {
		case <-changed:
		case <-stop:
			return net.ErrClosed
		}
	}
}

// Dialer is what a host connects to others with.
func (n *Network) Dialer(from string) func(ctx context.Context, to string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		w := between(from, to)
		if err := n.pass(w, ctx.Done()); err != nil {
			return nil, fmt.Errorf("dial %s: %w", to, context.Cause(ctx))
		}
		n.mu.Lock()
		listener := n.listeners[to]
		n.mu.Unlock()
		if listener == nil {
			return nil, fmt.Errorf("dial %s: connection refused", to)
		}
		raw, err := listener.DialContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", to, err)
		}
		c := &conn{Conn: raw, network: n, way: w, closed: make(chan struct{})}
		n.mu.Lock()
		n.open[c] = true
		n.mu.Unlock()
		return c, nil
	}
}

// conn is the dialling end of a connection. What goes either way passes through it.
type conn struct {
	net.Conn
	network *Network
	way     way
	once    sync.Once
	closed  chan struct{}
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.network.mu.Lock()
		delete(c.network.open, c)
		c.network.mu.Unlock()
	})
	return c.Conn.Close()
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if lost := c.travel(); lost != nil {
		return 0, lost
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.travel(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// travel takes the time of the way, and waits until it is open.
func (c *conn) travel() error {
	c.network.mu.Lock()
	var d time.Duration
	if c.network.delay > 0 {
		d = time.Duration(c.network.random.Int64N(int64(c.network.delay)))
	}
	c.network.mu.Unlock()
	if d > 0 {
		time.Sleep(d)
	}
	return c.network.pass(c.way, c.closed)
}
