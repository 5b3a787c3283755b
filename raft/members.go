package raft

import (
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lockfs/raft/raftrpc"
)

// guestsMax is how many may be answered to who are not known to be members yet.
const guestsMax = 16

// members are who is in the cell, as far as this replica has come in the log, and how to send to
// the others of them. They are changed by the run goroutine, and read by any.
type members struct {
	mu struct {
		sync.RWMutex
		configuration
		// Members by their own account, added further on in the log than this replica has come. The
		// one who leads it there may be among them.
		guests map[uint64]Member
		peers  map[uint64]*peer // of both
	}
}

// now returns the members as they are.
func (m *members) now() configuration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.configuration
}

func (m *members) peer(id uint64) (*peer, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.mu.peers[id]
	return p, ok
}

// Member returns a member of the cell, as far as this replica has come in the log.
func (r *Replica) Member(id uint64) (Member, bool) {
	m, ok := r.members.now().members[id]
	return m, ok
}

// Members returns the members of the cell by id, as far as this replica has come in the log.
func (r *Replica) Members() []Member { return sortedMembers(r.members.now().members) }

// setMembers begins to send to those who are new, and ceases to send to those who are not members
// any more, or no longer at the same address.
func (r *Replica) setMembers(now configuration) {
	r.members.mu.Lock()
	r.members.mu.configuration = now
	for id := range r.members.mu.guests {
		if _, known := now.members[id]; known || slices.Contains(now.removed, id) {
			delete(r.members.mu.guests, id)
		}
	}
	r.members.mu.Unlock()
	r.setPeers()
}

// leaveAll ceases to send to anybody.
func (r *Replica) leaveAll() {
	r.members.mu.Lock()
	r.members.mu.configuration, r.members.mu.guests = configuration{}, nil
	r.members.mu.Unlock()
	r.setPeers()
}

// meet makes m a guest.
func (r *Replica) meet(m Member) {
	r.members.mu.Lock()
	_, known := r.members.mu.members[m.ID]
	full := len(r.members.mu.guests) >= guestsMax
	if !known && !full {
		if r.members.mu.guests == nil {
			r.members.mu.guests = make(map[uint64]Member)
		}
		r.members.mu.guests[m.ID] = m
	}
	r.members.mu.Unlock()
	r.setPeers()
}

// setPeers makes the peers those of the members and of the guests.
func (r *Replica) setPeers() {
	r.members.mu.Lock()
	before, peers := r.members.mu.peers, make(map[uint64]*peer)
	for _, some := range []map[uint64]Member{r.members.mu.members, r.members.mu.guests} {
		for id, m := range some {
			p, ok := before[id]
			switch {
			case id == r.cfg.ID:
			case ok && p.Name == m.Name && p.Address == m.Address:
				peers[id] = p
			default:
				peers[id] = newPeer(r, m)
			}
		}
	}
	r.members.mu.peers = peers
	r.members.mu.Unlock()
	for id, p := range before {
		if peers[id] != p {
			p.leave()
			r.senders.Go(func() { <-p.ended })
		}
	}
}

func (r *Replica) greeting(to uint64) *raftrpc.Greeting {
	known := r.members.now().members
	g := &raftrpc.Greeting{ClusterId: r.cfg.ClusterID, From: r.cfg.ID, To: to,
		Incarnation: r.cfg.Incarnation, ToIncarnation: known[to].Incarnation}
	if self, ok := known[r.cfg.ID]; ok {
		g.Sender = memberInfo(self)
	}
	return g
}

// admit says whether to listen to the member that greets so, in words for its log. It is asked
// again while the member speaks: it may have been removed.
func (r *Replica) admit(g *raftrpc.Greeting) error {
	switch {
	case r.stopping():
		return status.Error(codes.Unavailable, "the replica is stopping")
	case g == nil:
		return refuse(raftrpc.Refusal_OTHER, "a stream must begin with a greeting")
	case g.ClusterId != r.cfg.ClusterID:
		return refuse(raftrpc.Refusal_OTHER, "this is a replica of cluster %x, not of %x", r.cfg.ClusterID, g.ClusterId)
	case g.To != r.cfg.ID:
		return refuse(raftrpc.Refusal_OTHER, "this is member %d, not %d", r.cfg.ID, g.To)
	}
	if err := r.recognize(g); err != nil {
		return err
	}
	if g.ToIncarnation != 0 && g.ToIncarnation != r.cfg.Incarnation {
		r.end(ErrReplaced)
		return refuse(raftrpc.Refusal_OTHER, "this member %d has lost the data folder that it took part with", r.cfg.ID)
	}
	return nil
}

// recognize says whether the sender is a member, with the data folder that it has always had.
func (r *Replica) recognize(g *raftrpc.Greeting) error {
	now := r.members.now()
	m, known := now.members[g.From]
	switch {
	case !known && slices.Contains(now.removed, g.From):
		// It is told so for good once that will be known here after a crash too. If it was told
		// earlier, and gone, this replica might need its vote to find that out again.
		why := raftrpc.Refusal_OTHER
		if r.lasting.Load() >= r.removal.Load() {
			why = raftrpc.Refusal_REMOVED
		}
		return refuse(why, "member %d was removed from this cell", g.From)
	case !known:
		return r.receiveGuest(g, now)
	case m.Incarnation != 0 && m.Incarnation != g.Incarnation:
		return refuse(raftrpc.Refusal_REPLACED,
			"the data folder of member %d is not the one it took part with: its disk was lost or replaced", g.From)
	}
	if p, ok := r.members.peer(g.From); ok && m.Incarnation == 0 && !p.isOf(g.Incarnation) {
		return refuse(raftrpc.Refusal_OTHER, "member %d was heard before, and then it had another data folder", g.From)
	}
	return nil
}

// receiveGuest listens to one who is not known to be a member, if that can be because this replica
// is behind in the log. A replica that the log did not tell of itself yet listens to everybody.
func (r *Replica) receiveGuest(g *raftrpc.Greeting, now configuration) error {
	_, selfKnown := now.members[r.cfg.ID]
	if g.GetSender().GetId() != g.From || selfKnown && g.Sender.Added <= r.reached.Load() {
		return refuse(raftrpc.Refusal_OTHER, "there is no member %d in this cell", g.From)
	}
	if p, ok := r.members.peer(g.From); !ok || p.Address != g.Sender.Address {
		guest := memberOf(g.Sender)
		r.call(func() { r.meet(guest) })
	}
	return nil
}

func refuse(why raftrpc.Refusal_Reason, format string, v ...any) error {
	s := status.Newf(codes.FailedPrecondition, format, v...)
	if why == raftrpc.Refusal_OTHER {
		return s.Err()
	}
	detailed, err := s.WithDetails(&raftrpc.Refusal{Reason: why})
	if err != nil {
		return s.Err() // it is refused all the same, and does not hear that it is for good
	}
	return detailed.Err()
}

// refusedForGood returns why a member refused this one for good, nil if it did not.
func refusedForGood(err error) error {
	for _, detail := range status.Convert(err).Details() {
		refusal, ok := detail.(*raftrpc.Refusal)
		switch {
		case ok && refusal.Reason == raftrpc.Refusal_REMOVED:
			return ErrRemoved
		case ok && refusal.Reason == raftrpc.Refusal_REPLACED:
			return ErrReplaced
		}
	}
	return nil
}

// heed ends this replica if err says that the peer refused it for good.
func (p *peer) heed(err error) error {
	if why := refusedForGood(err); why != nil {
		p.r.end(why)
	}
	return err
}
