package store

import (
	"lockfs"
)

type pathSet map[lockfs.Path]struct{}

// recordID is a key of the dirty set: a path and a session's id need no string made of them.
type recordID struct {
	kind byte
	path lockfs.Path
	id   uint64
}

// setNode puts next in place of the node at p; nil deletes it. It is undone if the command fails.
func (s *State) setNode(p lockfs.Path, next *node) {
	old := s.nodes[p]
	if next != nil {
		next.print = s.hasher.node(next)
	}
	s.swapNode(p, old, next)
	s.undo = append(s.undo, func() { s.swapNode(p, next, old) })
	s.effects.node(old, next)
	if next == nil {
		s.noteOrphan(p.Parent())
	}
}

// setDelay puts marks in place of those of the name p.
func (s *State) setDelay(p lockfs.Path, marks []mark) {
	old := s.delays[p]
	var next *delay
	if len(marks) > 0 {
		next = &delay{path: p, marks: marks}
		next.print = s.hasher.delay(next)
	}
	s.swapDelay(p, old, next)
	s.undo = append(s.undo, func() { s.swapDelay(p, next, old) })
}

// setSession puts next in place of the session; nil ends it, whose locks are free by then.
func (s *State) setSession(id uint64, next *session) {
	old := s.sessions[id]
	if next != nil {
		next.print = s.hasher.session(next)
	}
	s.swapSession(id, old, next)
	s.undo = append(s.undo, func() { s.swapSession(id, next, old) })
	if next == nil {
		s.effects.Ended = append(s.effects.Ended, id)
		for p := range s.ephemeral[id] {
			s.noteOrphan(p)
		}
	}
}

// noteOrphan tells the master of p if it is an ephemeral node of an ended session without children.
func (s *State) noteOrphan(p lockfs.Path) {
	if n := s.nodes[p]; n != nil && s.orphaned(n) && len(s.children[p]) == 0 {
		s.effects.Orphans = append(s.effects.Orphans, n.id())
	}
}

func (s *State) orphaned(n *node) bool {
	return n.ownerSession != 0 && s.sessions[n.ownerSession] == nil
}

// touched notes a record for the next checkpoint. While a state is loaded there is no set to note it
// in: all of it comes from one.
func (s *State) touched(id recordID) {
	if s.dirty != nil {
		s.dirty[id] = struct{}{}
	}
}

func (s *State) swapNode(p lockfs.Path, old, next *node) {
	s.touched(recordID{kind: nodeKey, path: p})
	if old != nil {
		s.print -= old.print
		s.cell.nodes--
		s.cell.bytes -= int64(len(old.content))
		delete(s.nodes, p)
	}
	if next != nil {
		s.print += next.print
		s.cell.nodes++
		s.cell.bytes += int64(len(next.content))
		s.nodes[p] = next
	}
	switch {
	case old == nil && next != nil:
		s.indexName(next)
	case old != nil && next == nil:
		s.unindexName(old)
	case old != nil && old.ownerSession != next.ownerSession:
		s.unindexName(old)
		s.indexName(next)
	}
	s.indexLock(p, old, next)
}

func (s *State) indexName(n *node) {
	if dir := n.path.Parent(); dir != "" {
		putInto(s.children, dir, n.path)
		delete(s.listings, dir)
	}
	if n.ownerSession != 0 {
		putInto(s.ephemeral, n.ownerSession, n.path)
	}
}

func (s *State) unindexName(n *node) {
	takeOut(s.children, n.path.Parent(), n.path)
	delete(s.listings, n.path.Parent())
	takeOut(s.ephemeral, n.ownerSession, n.path)
}

// indexLock skips the holders at both ends that stayed: of a lock shared by thousands, a command
// adds or removes one.
func (s *State) indexLock(p lockfs.Path, old, next *node) {
	gone, come := old.grants(), next.grants()
	for len(gone) > 0 && len(come) > 0 && gone[0].same(come[0]) {
		gone, come = gone[1:], come[1:]
	}
	for len(gone) > 0 && len(come) > 0 && gone[len(gone)-1].same(come[len(come)-1]) {
		gone, come = gone[:len(gone)-1], come[:len(come)-1]
	}
	for _, h := range gone {
		takeOut(s.held[h.session], h.owner, p)
		if len(s.held[h.session]) == 0 {
			delete(s.held, h.session)
		}
	}
	for _, h := range come {
		if s.held[h.session] == nil {
			s.held[h.session] = map[uint64]pathSet{}
		}
		putInto(s.held[h.session], h.owner, p)
	}
	if len(next.grants()) > 0 {
		s.locked[p] = struct{}{}
	} else {
		delete(s.locked, p)
	}
}

func (s *State) swapDelay(p lockfs.Path, old, next *delay) {
	s.touched(recordID{kind: delayKey, path: p})
	if old != nil {
		s.print -= old.print
		delete(s.delays, p)
	}
	if next != nil {
		s.print += next.print
		s.delays[p] = next
	}
}

func (s *State) swapSession(id uint64, old, next *session) {
	s.touched(recordID{kind: sessionKey, id: id})
	if old != nil {
		s.print -= old.print
		delete(s.sessions, id)
	}
	if next != nil {
		s.print += next.print
		s.sessions[id] = next
	}
}

func putInto[K comparable](index map[K]pathSet, key K, p lockfs.Path) {
	if index[key] == nil {
		index[key] = pathSet{}
	}
	index[key][p] = struct{}{}
}

func takeOut[K comparable](index map[K]pathSet, key K, p lockfs.Path) {
	delete(index[key], p)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}
