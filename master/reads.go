package master

import (
	"cmp"
	"context"
	"slices"
	"time"

	"lockfs"
	"lockfs/lockpb"
	"lockfs/store"
)

// read answers a read once it is sure that this replica led after the read was asked for. mu is
// held.
func (r *Replica) read(s *stream, c *lockpb.Call) {
	r.confirmThen(func(at moment) {
		if s.over() {
			return
		}
		var a *lockpb.Answer
		err := r.sessionOf(s, c)
		if err == nil {
			a, err = r.readNow(at, c)
		}
		if err != nil {
			a = failure(c.GetId(), err)
		}
		a.Id = c.GetId()
		r.answer(s, a)
	})
}

// sessionOf returns an error if the call's session has ended; a plain read has none.
func (r *Replica) sessionOf(s *stream, c *lockpb.Call) error {
	if c.GetSession() == 0 {
		return nil
	}
	return r.mu.machine.session(c.GetSession(), s.identity)
}

// target is what all reads name.
type target interface {
	GetPath() string
	GetInstance() uint64
}

func (r *Replica) readNow(at moment, c *lockpb.Call) (*lockpb.Answer, error) {
	switch op := c.GetOp().(type) {
	case *lockpb.Call_Stat:
		path, err := r.path(op.Stat)
		if err != nil {
			return nil, err
		}
		st, err := r.mu.state.Stat(path, op.Stat.GetInstance())
		return &lockpb.Answer{Result: &lockpb.Answer_Stat{Stat: lockpb.StatToWire(st)}}, err
	case *lockpb.Call_Read:
		path, err := r.path(op.Read)
		if err != nil {
			return nil, err
		}
		content, st, err := r.mu.state.Contents(path, op.Read.GetInstance())
		return &lockpb.Answer{Result: &lockpb.Answer_File{File: &lockpb.FileContents{Stat: lockpb.StatToWire(st), Content: content}}}, err
	case *lockpb.Call_List:
		path, err := r.path(op.List)
		if err != nil {
			return nil, err
		}
		entries, st, err := r.mu.state.List(path, op.List.GetInstance())
		return &lockpb.Answer{Result: &lockpb.Answer_Listing{Listing: &lockpb.Listing{
			Stat: lockpb.StatToWire(st), Entries: r.entriesToWire(entries)}}}, err
	case *lockpb.Call_LockState:
		path, err := r.path(op.LockState)
		if err != nil {
			return nil, err
		}
		info, err := r.lockInfo(at, path, op.LockState.GetInstance())
		return &lockpb.Answer{Result: &lockpb.Answer_Lock{Lock: info}}, err
	}
	return nil, invalid("a read of a kind that this replica does not know")
}

// entriesToWire converts a listing. The last one is kept, since many who list a directory do so
// together, and converting a large one takes longer than anything else that a read may want.
func (r *Replica) entriesToWire(entries []lockfs.Entry) []*lockpb.Entry {
	if last := r.mu.listing; len(entries) == 0 || len(last.entries) != len(entries) || &last.entries[0] != &entries[0] {
		r.mu.listing = listing{entries, lockpb.EntriesToWire(entries)}
	}
	return r.mu.listing.wire
}

// listing is a directory's names as the state gave them, and as they are sent.
type listing struct {
	entries []lockfs.Entry
	wire    []*lockpb.Entry
}

func (r *Replica) path(t target) (lockfs.Path, error) {
	return lockfs.Path(t.GetPath()), r.checkPaths(t.GetPath())
}

// lockInfo is who has and who wants the lock of a node. mu is held.
func (r *Replica) lockInfo(at moment, path lockfs.Path, instance uint64) (*lockpb.LockInfo, error) {
	st, err := r.mu.state.Stat(path, instance)
	if err != nil {
		return nil, err
	}
	lock, err := r.mu.state.Lock(path, st.Instance)
	if err != nil {
		return nil, err
	}
	info := &lockpb.LockInfo{Path: string(path), Instance: st.Instance, Mode: uint32(lock.Mode), Generation: lock.Generation}
	for _, h := range lock.Holders {
		who, _ := r.mu.state.Session(h.Session)
		info.Holders = append(info.Holders, &lockpb.Holder{
			Session: h.Session, Owner: h.Owner, Identity: who.Identity, Host: who.Host, Note: h.Note,
			Since: lockpb.TimeToWire(h.Since), LockDelayMs: h.LockDelay.Milliseconds()})
	}
	info.Waiters = r.waitersToWire(at, path)
	info.Delays = r.delaysLeft(at, path)
	return info, nil
}

func (r *Replica) waitersToWire(at moment, path lockfs.Path) []*lockpb.Waiter {
	q, ok := r.mu.machine.queues[path]
	if !ok {
		return nil
	}
	var waiters []*lockpb.Waiter
	for _, w := range q.waiters {
		who, _ := r.mu.state.Session(w.session)
		waiters = append(waiters, &lockpb.Waiter{
			Session: w.session, Owner: w.owner, Identity: who.Identity, Host: who.Host,
			Note: w.call.mutation.GetAcquire().GetNote(), Mode: uint32(w.mode), WaitedMs: at.now.Sub(w.since).Milliseconds()})
	}
	return waiters
}

func (r *Replica) delaysLeft(at moment, path lockfs.Path) []*lockpb.DelayLeft {
	var left []*lockpb.DelayLeft
	for _, d := range r.mu.state.DelaysOf(path) {
		if end, ok := r.mu.machine.delays.at(delayKey{path, d.Mode}); ok {
			left = append(left, &lockpb.DelayLeft{Mode: uint32(d.Mode), LeftMs: max(end.Sub(at.now), 0).Milliseconds()})
		}
	}
	return left
}

// ---- Admin -------------------------------------------------------------------------------------

// Status is what this replica knows of itself and, if it leads, of the others.
func (r *Replica) Status(context.Context, *lockpb.StatusRequest) (*lockpb.StatusAnswer, error) {
	s := r.raft.Status()
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.mu.state
	a := &lockpb.StatusAnswer{
		Cell: r.cfg.Cell, ClusterId: r.cfg.ClusterID, Replica: r.cfg.Self.Name, Role: s.Role,
		Epoch: state.Epoch(), Term: s.Term, Committed: s.Committed, Applied: r.mu.applied,
		LeaseMs: state.Lease().Milliseconds(), GraceMs: state.Grace().Milliseconds(),
		Nodes: state.Nodes(), Bytes: state.Bytes(), Sessions: int64(len(state.Sessions())),
		Hash: state.Hash(), HashNotes: notesToWire(state.HashNotes()),
		Level: state.Level(), KnownLevel: state.Knows(), MemberId: r.cfg.Self.ID,
	}
	if r.cfg.Disk != nil {
		disk := r.cfg.Disk()
		a.Disk = &lockpb.Disk{Free: disk.Free, Total: disk.Total, Low: disk.Low}
	}
	if r.mu.machine.inOffice {
		a.Role = "master"
	}
	for _, m := range s.Members {
		a.Members = append(a.Members, memberToWire(s, m))
	}
	return a, nil
}

// ListLocks returns all locks of a node and below it that are held, waited for or in lock-delay.
func (r *Replica) ListLocks(ctx context.Context, q *lockpb.ListLocksRequest) (*lockpb.ListLocksAnswer, error) {
	path, err := lockfs.CellRoot(r.cfg.Cell)
	if q.GetPath() != "" {
		path, err = lockfs.Path(q.GetPath()), r.checkPaths(q.GetPath())
	}
	if err != nil {
		return nil, lockpb.StatusOf(err)
	}
	a := new(lockpb.ListLocksAnswer)
	err = r.confirmed(ctx, func(at moment) {
		for _, p := range r.concerned(path) {
			if info, err := r.lockInfo(at, p, 0); err == nil {
				a.Locks = append(a.Locks, info)
			} else { // a lock-delay outlives its node
				a.Locks = append(a.Locks, &lockpb.LockInfo{Path: string(p), Delays: r.delaysLeft(at, p)})
			}
		}
	})
	return a, lockpb.StatusOf(err)
}

// concerned returns the nodes at and below path that have a lock, a queue or a delay. mu is held.
func (r *Replica) concerned(path lockfs.Path) []lockfs.Path {
	paths := r.mu.state.LockedBelow(path)
	for p, q := range r.mu.machine.queues {
		if len(q.waiters) > 0 && under(path, p) {
			paths = append(paths, p)
		}
	}
	for _, d := range r.mu.state.Delays() {
		if under(path, d.Path) {
			paths = append(paths, d.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// under reports whether p is top or lies below it.
func under(top, p lockfs.Path) bool {
	return p == top || len(p) > len(top) && p[:len(top)] == top && p[len(top)] == '/'
}

// ListSessions returns all sessions.
func (r *Replica) ListSessions(ctx context.Context, _ *lockpb.ListSessionsRequest) (*lockpb.ListSessionsAnswer, error) {
	a := new(lockpb.ListSessionsAnswer)
	err := r.confirmed(ctx, func(at moment) {
		for _, s := range r.mu.state.Sessions() {
			a.Sessions = append(a.Sessions, r.sessionToWire(at, s))
		}
	})
	slices.SortFunc(a.Sessions, func(x, y *lockpb.SessionInfo) int { return cmp.Compare(x.Session, y.Session) })
	return a, lockpb.StatusOf(err)
}

func (r *Replica) sessionToWire(at moment, s store.Session) *lockpb.SessionInfo {
	left := time.Duration(0)
	if end, ok := r.mu.machine.leases.at(s.ID); ok {
		left = max(end.Sub(at.now), 0)
	}
	return &lockpb.SessionInfo{
		Session: s.ID, Identity: s.Identity, Host: s.Host, Created: lockpb.TimeToWire(s.Created),
		LeaseLeftMs: left.Milliseconds(), Locks: int64(len(r.mu.state.HeldBy(s.ID))), Caches: s.Caches}
}
