package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"lockfs"
	"lockfs/store/storepb"
)

// A Lock is the lock of a node.
type Lock struct {
	Mode       lockfs.Mode
	Generation uint64   // of the last time that it went from free to held, or to another mode
	Holders    []Holder // in order of their grants
}

// A Holder is an owner who holds a lock.
type Holder struct {
	Session, Owner uint64
	Since          time.Time
	LockDelay      time.Duration // for how long the lock is delayed after his session expired
	Note           string        // for people who ask who holds it
}

// A Session is what is known of a client's session.
type Session struct {
	ID             uint64
	Identity, Host string
	Created        time.Time
	Caches         bool
}

// Held is one lock that an owner of a session holds.
type Held struct {
	Node       NodeID
	Owner      uint64
	Mode       lockfs.Mode
	Generation uint64
}

// Stat returns what is known of a node; instance 0 is any. It fails with ErrNotExist, ErrNotDir
// (what should be a directory above it is a file), ErrStale (the named instance is gone) or ErrCell.
func (s *State) Stat(p lockfs.Path, instance uint64) (lockfs.Stat, error) {
	n, err := s.find("stat", p, instance)
	if err != nil {
		return lockfs.Stat{}, err
	}
	return s.stat(n), nil
}

// Contents returns the contents of a file, and its stat. It fails as Stat does, or with ErrIsDir.
func (s *State) Contents(p lockfs.Path, instance uint64) ([]byte, lockfs.Stat, error) {
	n, err := s.find("read", p, instance)
	if err != nil {
		return nil, lockfs.Stat{}, err
	}
	if n.kind == lockfs.Dir {
		return nil, lockfs.Stat{}, &lockfs.Error{Op: "read", Path: p, Kind: lockfs.ErrIsDir}
	}
	return n.content, s.stat(n), nil
}

// listingsMax is how many listings are kept. Sorting the names of a large directory takes tens of
// milliseconds, which many hosts that look at the same one together should not all pay.
const listingsMax = 64

// List returns the names in a directory, in order, and its stat. The entries are shared and must
// not be changed: while the names stay, later calls return the same. It fails as Stat does, or with
// ErrNotDir.
func (s *State) List(p lockfs.Path, instance uint64) ([]lockfs.Entry, lockfs.Stat, error) {
	n, err := s.find("list", p, instance)
	if err != nil {
		return nil, lockfs.Stat{}, err
	}
	if n.kind != lockfs.Dir {
		return nil, lockfs.Stat{}, &lockfs.Error{Op: "list", Path: p, Kind: lockfs.ErrNotDir}
	}
	entries, ok := s.listings[p]
	if !ok {
		if len(s.listings) >= listingsMax {
			clear(s.listings)
		}
		entries = s.listing(p)
		s.listings[p] = entries
	}
	return entries, s.stat(n), nil
}

func (s *State) listing(dir lockfs.Path) []lockfs.Entry {
	entries := make([]lockfs.Entry, 0, len(s.children[dir]))
	for child := range s.children[dir] {
		c := s.nodes[child]
		entries = append(entries, lockfs.Entry{Name: child.Base(), Type: c.kind, Instance: c.instance})
	}
	slices.SortFunc(entries, func(a, b lockfs.Entry) int { return cmp.Compare(a.Name, b.Name) })
	return entries
}

// Lock returns the lock of a node. It fails as Stat does.
func (s *State) Lock(p lockfs.Path, instance uint64) (Lock, error) {
	n, err := s.find("lock", p, instance)
	if err != nil {
		return Lock{}, err
	}
	l := Lock{Mode: n.mode, Generation: n.lockGeneration}
	for _, h := range n.holders {
		l.Holders = append(l.Holders, Holder{h.session, h.owner, instant(h.since), millis(h.delayMS), h.note})
	}
	return l, nil
}

// LockedBelow returns the nodes whose lock is held among p and all below it, in order.
func (s *State) LockedBelow(p lockfs.Path) []lockfs.Path {
	var below []lockfs.Path
	for q := range s.locked {
		if q == p || strings.HasPrefix(string(q), string(p)+"/") {
			below = append(below, q)
		}
	}
	slices.Sort(below)
	return below
}

// Session returns a live session.
func (s *State) Session(id uint64) (Session, bool) {
	ses := s.sessions[id]
	if ses == nil {
		return Session{}, false
	}
	return ses.known(), true
}

// Sessions returns all live sessions by id.
func (s *State) Sessions() []Session {
	list := make([]Session, 0, len(s.sessions))
	for _, ses := range s.sessions {
		list = append(list, ses.known())
	}
	slices.SortFunc(list, func(a, b Session) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

func (s *session) known() Session {
	return Session{s.id, s.identity, s.host, instant(s.created), s.caches}
}

// HeldBy returns the locks of a session by path and owner.
func (s *State) HeldBy(session uint64) []Held {
	var list []Held
	for owner, paths := range s.held[session] {
		for p := range paths {
			n := s.nodes[p]
			list = append(list, Held{n.id(), owner, n.mode, n.lockGeneration})
		}
	}
	slices.SortFunc(list, func(a, b Held) int {
		return cmp.Or(a.Node.compare(b.Node), cmp.Compare(a.Owner, b.Owner))
	})
	return list
}

// Delays returns all marks that holders left by expiry, by path and mode.
func (s *State) Delays() []Delay {
	var list []Delay
	for _, p := range slices.Sorted(maps.Keys(s.delays)) {
		list = append(list, s.DelaysOf(p)...)
	}
	return list
}

// DelaysOf returns the marks of one name by mode, whether there is a node of this name or not.
func (s *State) DelaysOf(p lockfs.Path) []Delay {
	var list []Delay
	for _, m := range s.marks(p) {
		list = append(list, delayOf(p, m))
	}
	return list
}

func delayOf(p lockfs.Path, m mark) Delay { return Delay{p, m.mode, millis(m.delayMS), m.index} }

// Orphans returns the ephemeral nodes of ended sessions that can be deleted now, by path. A
// directory with children is not among them; deleting the last child tells of it in the effects.
func (s *State) Orphans() []NodeID {
	var list []NodeID
	for session, paths := range s.ephemeral {
		if s.sessions[session] != nil {
			continue
		}
		for p := range paths {
			if len(s.children[p]) == 0 {
				list = append(list, s.nodes[p].id())
			}
		}
	}
	slices.SortFunc(list, NodeID.compare)
	return list
}

func (s *State) size(n *node) int64 {
	if n.kind == lockfs.Dir {
		return int64(len(s.children[n.path]))
	}
	return int64(len(n.content))
}

func (s *State) stat(n *node) lockfs.Stat {
	return lockfs.Stat{
		Path: n.path, Type: n.kind, Ephemeral: n.ownerSession != 0, OwnerSession: n.ownerSession,
		Instance: n.instance, ContentGeneration: n.contentGeneration,
		LockGeneration: n.lockGeneration, ACLGeneration: n.aclGeneration,
		Checksum: n.checksum, Size: s.size(n), ACL: *n.acl, Mtime: instant(n.mtime),
	}
}

func (s *State) statMessage(n *node) *storepb.Stat {
	return &storepb.Stat{
		Path: string(n.path), Type: uint32(n.kind), OwnerSession: n.ownerSession,
		Instance: n.instance, ContentGeneration: n.contentGeneration,
		LockGeneration: n.lockGeneration, AclGeneration: n.aclGeneration,
		Checksum: n.checksum, Size: s.size(n), Acl: aclMessage(n.acl), Mtime: n.mtime,
	}
}

func instant(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds) }

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
