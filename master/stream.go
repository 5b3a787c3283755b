package master

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"lockfs"
	"lockfs/lockpb"
)

// maxOpenCalls bounds the calls of one stream whose answers are not sent yet; more are refused, and
// twice as many end the stream. So it bounds the stream's queue too, though its client does not
// read: a call has at most two frames there.
const maxOpenCalls = 16384

// stream is one client's connection, with the calls of any number of sessions on it.
type stream struct {
	identity string
	serial   uint64        // grows with each stream that this replica takes in
	open     atomic.Int64  // calls whose answers are not sent
	ended    chan struct{} // closed by end
	once     sync.Once
	reason   error // why it ended; written before ended is closed

	mu     sync.Mutex
	queue  []*lockpb.ServerFrame
	signal chan struct{} // the queue is not empty; holds one
}

// send queues a frame, and never waits.
func (s *stream) send(f *lockpb.ServerFrame) {
	s.mu.Lock()
	s.queue = append(s.queue, f)
	s.mu.Unlock()
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// end makes the stream's handler return, and tells the client why, if there is anything to tell.
func (s *stream) end(why error) {
	s.once.Do(func() {
		s.reason = lockpb.StatusOf(why)
		close(s.ended)
	})
}

// Session is the service's stream. This goroutine sends; another one receives.
func (r *Replica) Session(server lockpb.Cell_SessionServer) error {
	first, err := server.Recv()
	if err != nil {
		return err
	}
	welcome, err := r.greet(first.GetHello())
	if err != nil {
		return err
	}
	s := &stream{identity: identityOf(server.Context()), ended: make(chan struct{}), signal: make(chan struct{}, 1)}
	if !r.enter(s, welcome) {
		return server.Send(&lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Welcome{Welcome: welcome}})
	}
	defer r.exit(s)
	r.work.Go(func() {
		defer s.end(nil)
		r.receive(s, server)
	})
	return s.serve(server)
}

// over reports whether nobody hears what is sent any more.
func (s *stream) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// serve sends what is queued until the stream ends.
func (s *stream) serve(server lockpb.Cell_SessionServer) error {
	for {
		select {
		case <-server.Context().Done():
			return nil
		case <-s.ended:
			return s.reason
		case <-s.signal:
		}
		s.mu.Lock()
		frames := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, f := range frames {
			if err := server.Send(f); err != nil {
				return err
			}
			if f.GetAnswer() != nil {
				s.open.Add(-1)
			}
		}
	}
}

// receive takes the client's frames until the stream breaks.
func (r *Replica) receive(s *stream, server lockpb.Cell_SessionServer) {
	for {
		f, err := server.Recv()
		if err != nil {
			return
		}
		r.mu.Lock()
		switch f := f.GetFrame().(type) {
		case *lockpb.ClientFrame_Call:
			r.call(s, f.Call)
		case *lockpb.ClientFrame_KeepAlive:
			r.keepAlive(s, f.KeepAlive)
		}
		r.flush()
		r.mu.Unlock()
	}
}

// greet checks that the client means this cell.
func (r *Replica) greet(h *lockpb.Hello) (*lockpb.Welcome, error) {
	if h == nil {
		return nil, lockpb.StatusOf(&lockfs.Error{Kind: lockfs.ErrInvalid, Detail: "the first frame of a session stream is Hello"})
	}
	if h.GetCell() != r.cfg.Cell {
		return nil, lockpb.StatusOf(&lockfs.Error{Kind: lockfs.ErrCell,
			Detail: fmt.Sprintf("this is a replica of cell %q, not of %q", r.cfg.Cell, h.GetCell())})
	}
	if h.GetClusterId() != 0 && h.GetClusterId() != r.cfg.ClusterID {
		return nil, lockpb.StatusOf(&lockfs.Error{Kind: lockfs.ErrCell, Detail: fmt.Sprintf(
			"this is cluster %x of cell %q, not %x: the cell was made anew, and its mounts and other clients have to be started anew", r.cfg.ClusterID, r.cfg.Cell, h.GetClusterId())})
	}
	return &lockpb.Welcome{Cell: r.cfg.Cell, ClusterId: r.cfg.ClusterID, Replica: r.cfg.Self.Name}, nil
}

// enter completes the welcome and, where this replica is in office, takes the stream in with the
// welcome as its first frame.
func (r *Replica) enter(s *stream, w *lockpb.Welcome) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.machine.inOffice || r.mu.stopping {
		if leader, ok := r.raft.Member(r.mu.leadership.Leader); ok && !r.mu.leadership.Leading {
			w.MasterName, w.MasterAddress = leader.Name, leader.Address
		}
		return false
	}
	w.Master, w.Epoch = true, r.mu.machine.epoch
	w.LeaseMs, w.GraceMs = r.mu.state.Lease().Milliseconds(), r.mu.state.Grace().Milliseconds()
	w.MasterName, w.MasterAddress = r.cfg.Self.Name, r.cfg.Self.Address
	w.Limits = lockpb.LimitsToWire(r.mu.state.Limits())
	r.mu.serial++
	s.serial = r.mu.serial
	s.send(&lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Welcome{Welcome: w}})
	r.mu.streams[s] = true
	return true
}

func (r *Replica) exit(s *stream) {
	r.mu.Lock()
	delete(r.mu.streams, s)
	r.mu.Unlock()
}

// endStreams sends every client away. mu is held.
func (r *Replica) endStreams() {
	for s := range r.mu.streams {
		s.end(&lockfs.Error{Kind: lockfs.ErrNotMaster, Detail: "this replica is no longer the master"})
	}
}

// insecure is everybody's identity where there are no certificates.
const insecure = "insecure"

// identityOf is the client's name by its certificate: a URI of its alternative names first, then a
// DNS name, then the common name.
func identityOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return insecure
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return insecure
	}
	return nameOf(info.State.PeerCertificates[0])
}

func nameOf(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	}
	return c.Subject.CommonName
}

// answer queues the answer to a call.
func (r *Replica) answer(s *stream, a *lockpb.Answer) {
	s.send(&lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Answer{Answer: a}})
}

func failure(id uint64, err error) *lockpb.Answer {
	kind, detail := lockpb.FailureOf(err)
	return &lockpb.Answer{Id: id, Kind: kind, Detail: detail}
}

var errOpenCalls = &lockfs.Error{Kind: lockfs.ErrLimit, Detail: "too many open calls on one connection"}
