package client

import (
	"context"
	"time"

	"lockfs"
	"lockfs/lockpb"
)

// reader reads at the master, in a session or without one.
type reader struct {
	client  *Client
	session *session // nil is plain
}

var (
	_ Reader = reader{}
	_ Reader = (*Session)(nil)
)

func (r reader) ask(ctx context.Context, op string, path lockfs.Path, wire *lockpb.Call) (*lockpb.Answer, error) {
	return r.client.do(ctx, newCall(read, r.session, op, path, wire))
}

// Stat returns what is known of a node.
func (r reader) Stat(ctx context.Context, path lockfs.Path, instance uint64) (lockfs.Stat, error) {
	a, err := r.ask(ctx, "stat", path, &lockpb.Call{Op: &lockpb.Call_Stat{Stat: &lockpb.StatNode{Path: string(path), Instance: instance}}})
	return lockpb.StatFromWire(a.GetStat()), err
}

// Read returns the contents of a file, and what is known of it with these contents.
func (r reader) Read(ctx context.Context, path lockfs.Path, instance uint64) ([]byte, lockfs.Stat, error) {
	a, err := r.ask(ctx, "read", path, &lockpb.Call{Op: &lockpb.Call_Read{Read: &lockpb.ReadFile{Path: string(path), Instance: instance}}})
	return a.GetFile().GetContent(), lockpb.StatFromWire(a.GetFile().GetStat()), err
}

// List returns the names in a directory, sorted, and what is known of it with these names.
func (r reader) List(ctx context.Context, path lockfs.Path, instance uint64) ([]lockfs.Entry, lockfs.Stat, error) {
	a, err := r.ask(ctx, "list", path, &lockpb.Call{Op: &lockpb.Call_List{List: &lockpb.ListDir{Path: string(path), Instance: instance}}})
	if err != nil {
		return nil, lockfs.Stat{}, err
	}
	return lockpb.EntriesFromWire(a.GetListing().GetEntries()), lockpb.StatFromWire(a.GetListing().GetStat()), nil
}

// LockState returns who has and who wants the lock of a node.
func (r reader) LockState(ctx context.Context, path lockfs.Path, instance uint64) (LockState, error) {
	a, err := r.ask(ctx, "lock state", path, &lockpb.Call{Op: &lockpb.Call_LockState{LockState: &lockpb.LockState{Path: string(path), Instance: instance}}})
	return lockStateOf(a.GetLock()), err
}

func lockStateOf(w *lockpb.LockInfo) LockState {
	l := LockState{
		Path: lockfs.Path(w.GetPath()), Instance: w.GetInstance(),
		Mode: lockfs.Mode(w.GetMode()), Generation: w.GetGeneration(),
	}
	for _, h := range w.GetHolders() {
		l.Holders = append(l.Holders, Holder{
			Session: h.GetSession(), Owner: h.GetOwner(),
			Identity: h.GetIdentity(), Host: h.GetHost(), Note: h.GetNote(),
			Since: lockpb.TimeFromWire(h.GetSince()), LockDelay: milliseconds(h.GetLockDelayMs()),
		})
	}
	for _, q := range w.GetWaiters() {
		l.Waiters = append(l.Waiters, Waiter{
			Session: q.GetSession(), Owner: q.GetOwner(),
			Identity: q.GetIdentity(), Host: q.GetHost(), Note: q.GetNote(),
			Mode: lockfs.Mode(q.GetMode()), Waited: milliseconds(q.GetWaitedMs()),
		})
	}
	for _, d := range w.GetDelays() {
		l.Delays = append(l.Delays, Delay{Mode: lockfs.Mode(d.GetMode()), Left: milliseconds(d.GetLeftMs())})
	}
	return l
}

// milliseconds is a duration of the wire.
func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
