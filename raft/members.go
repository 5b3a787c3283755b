package raft

import "sync"

// members are who is in the cell, and how to send to the others of them. They are changed by the
// run goroutine, and read by any.
type members struct {
	mu struct {
		sync.RWMutex
		known map[uint64]Member // never changed, only replaced
		peers map[uint64]*peer
	}
}

// all returns a map that is not to be changed.
func (m *members) all() map[uint64]Member {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.known
}

func (m *members) peer(id uint64) (*peer, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.mu.peers[id]
	return p, ok
}

// Member returns a member of the cell.
func (r *Replica) Member(id uint64) (Member, bool) {
	m, ok := r.members.all()[id]
	return m, ok
}

// setMembers begins to send to those who are new, and ceases to send to those who are not members
// any more, or no longer at the same address.
func (r *Replica) setMembers(known map[uint64]Member) {
	peers := make(map[uint64]*peer)
	for id, m := range known {
		if id == r.cfg.ID {
			continue
		}
		if p, ok := r.members.peer(id); ok && p.Member == m {
			peers[id] = p
		} else {
			peers[id] = newPeer(r, m)
		}
	}
	r.members.mu.Lock()
	before := r.members.mu.peers
	r.members.mu.known, r.members.mu.peers = known, peers
	r.members.mu.Unlock()
	for id, p := range before {
		if peers[id] != p {
			p.leave()
			r.senders.Go(func() { <-p.ended })
		}
	}
}
