// Package relay is a TCP relay for tests with real processes: it stands between clients and a
// replica, or between replicas, and does to their connections what networks do.
//
//	relay, err := relay.New("127.0.0.1:7421") // give relay.Address() to whoever is to be disturbed
//	relay.Set(relay.Faults{Hang: true})       // nothing passes, nothing is closed
//	relay.Set(relay.Faults{})                 // healed
package relay

import (
	"context"
	"net"
	"sync"
	"time"
)

// Faults is what goes wrong. The zero Faults is a healthy network.
type Faults struct {
	Cut         bool          // connections are closed, new ones too
	Hang        bool          // connections stay open and nothing passes; what was sent passes later
	DropAnswers bool          // what the target sends is lost; what is sent to it arrives
	Delay       time.Duration // what is sent arrives this much later, in order
}

// A Relay carries connections to one target until it is closed.
type Relay struct {
	target   string
	listener net.Listener
	ctx      context.Context // ended by Close
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		faults  Faults
		changed chan struct{} // closed when faults is set anew
		links   map[*link]bool
	}
}

// link is one carried connection.
type link struct {
	client, server net.Conn
	// torn says that bytes of an answer were lost. Such a connection can only end: letting later
	// bytes through would show the client a stream that TCP never shows. Guarded by Relay.mu.
	torn bool
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// New starts a relay to target, host:port, on a free port of the loopback address.
func New(target string) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{target: target, listener: listener}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.mu.changed = make(chan struct{})
	r.mu.links = make(map[*link]bool)
	r.running.Go(r.accept)
	return r, nil
}

// Address is where the relay listens.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Set makes f the faults from now on. Connections that lost bytes are closed as soon as answers
// pass again.
func (r *Relay) Set(f Faults) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.faults = f
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
	for l := range r.mu.links {
		if f.Cut || l.torn && !f.DropAnswers {
			l.close()
		}
	}
}

// Close ends the relay and all its connections.
func (r *Relay) Close() {
	r.stop()
	r.listener.Close()
	r.mu.Lock()
	for l := range r.mu.links {
		l.close()
	}
	r.mu.Unlock()
	r.running.Wait()
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.carry(client) })
	}
}

// carry brings one connection to the target and back until either side ends it.
func (r *Relay) carry(client net.Conn) {
	defer client.Close()
	var dialer net.Dialer
	server, err := dialer.DialContext(r.ctx, "tcp", r.target)
	if err != nil {
		return
	}
	l := &link{client: client, server: server}
	defer l.close()
	if !r.enter(l) {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { r.pump(l, server, client, false) })
	pumps.Go(func() { r.pump(l, client, server, true) })
	pumps.Wait()
	r.leave(l)
}

func (r *Relay) enter(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.faults.Cut || r.ctx.Err() != nil {
		return false
	}
	r.mu.links[l] = true
	return true
}

func (r *Relay) leave(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.links, l)
}

// chunk is what was read at once, and when it arrived.
type chunk struct {
	data []byte
	read time.Time
}

// pump carries one direction. Reading runs ahead of writing, so that a delay holds up each byte and
// not the flow of bytes.
func (r *Relay) pump(l *link, to, from net.Conn, answers bool) {
	chunks := make(chan chunk, 256)
	ended := make(chan struct{}) // the writer's end
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(chunks)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				select {
				case chunks <- chunk{buffer[:n], time.Now()}:
				case <-ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		if r.passes(l, c, answers) {
			if _, err := to.Write(c.data); err != nil {
				l.close() // so that neither reader waits for a side that nobody serves
				break
			}
		}
	}
	close(ended)
	if half, ok := to.(*net.TCPConn); ok {
		half.CloseWrite()
	}
	reader.Wait()
}

// passes waits until the faults let c through, and reports false where they lose it.
func (r *Relay) passes(l *link, c chunk, answers bool) bool {
	for {
		r.mu.Lock()
		faults, changed := r.mu.faults, r.mu.changed
		if answers && faults.DropAnswers {
			l.torn = true
		}
		torn := l.torn
		r.mu.Unlock()

		wait := time.Until(c.read.Add(faults.Delay))
		switch {
		case answers && torn:
			return false
		case faults.Hang:
			wait = time.Hour // until changed
		case wait <= 0:
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-r.ctx.Done():
			timer.Stop()
			return false
		}
		timer.Stop()
	}
}
