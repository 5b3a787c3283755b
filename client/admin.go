package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"lockfs"
	"lockfs/lockpb"
)

// ReplicaStatus is what one address answered, or why it did not.
type ReplicaStatus struct {
	Address string
	Status  *lockpb.StatusAnswer // nil where Err is not
	Err     error
}

// SessionInfo is a session as the master sees it.
type SessionInfo struct {
	ID             uint64
	Identity, Host string
	Created        time.Time
	LeaseLeft      time.Duration
	Locks          int
	Caches         bool
}

// Status asks every address of Config what it is, all at once, and the members that their answers
// name too. It returns what they say in the order of Config, then by address, each replica once. Who
// does not answer within Config.Timeout has an error; so has who is of another cell, lockfs.ErrCell.
func (c *Client) Status(ctx context.Context) []ReplicaStatus {
	answers := make(chan ReplicaStatus)
	var asked []string
	var work sync.WaitGroup
	ask := func(address string) {
		if !slices.Contains(asked, address) {
			asked = append(asked, address)
			work.Go(func() { answers <- c.statusOf(ctx, address) })
		}
	}
	for _, address := range c.cfg.Addresses {
		ask(address)
	}
	given := len(asked)
	var all []ReplicaStatus
	for len(all) < len(asked) {
		a := <-answers
		all = append(all, a)
		for _, m := range a.Status.GetMembers() {
			ask(m.GetAddress())
		}
	}
	work.Wait()
	slices.Sort(asked[given:])
	slices.SortFunc(all, func(a, b ReplicaStatus) int {
		return cmp.Compare(slices.Index(asked, a.Address), slices.Index(asked, b.Address))
	})
	return eachOnce(all)
}

// eachOnce leaves out what a replica has answered by another of its addresses before.
func eachOnce(all []ReplicaStatus) []ReplicaStatus {
	seen := make(map[string]bool)
	return slices.DeleteFunc(all, func(a ReplicaStatus) bool {
		name := a.Status.GetReplica()
		again := a.Err == nil && seen[name]
		seen[name] = true
		return again
	})
}

// statusOf asks one replica.
func (c *Client) statusOf(ctx context.Context, address string) ReplicaStatus {
	var a *lockpb.StatusAnswer
	err := c.unary(ctx, address, "status", "", func(ctx context.Context, cell lockpb.CellClient) (err error) {
		a, err = cell.Status(ctx, &lockpb.StatusRequest{})
		return err
	})
	if err == nil && a.GetCell() != c.cfg.Cell {
		err = &lockfs.Error{Op: "status", Kind: lockfs.ErrCell, Detail: fmt.Sprintf("it is a replica of cell %q", a.GetCell())}
	}
	if err != nil {
		return ReplicaStatus{Address: address, Err: err}
	}
	return ReplicaStatus{Address: address, Status: a}
}

// Locks returns the locks of a node and all below it that are held, waited for or in delay, by path.
func (c *Client) Locks(ctx context.Context, path lockfs.Path) ([]LockState, error) {
	if err := c.inCell(path); err != nil {
		return nil, err
	}
	var locks []LockState
	err := c.atMaster(ctx, "list locks", path, func(ctx context.Context, cell lockpb.CellClient) error {
		a, err := cell.ListLocks(ctx, &lockpb.ListLocksRequest{Path: string(path)})
		for _, l := range a.GetLocks() {
			locks = append(locks, lockStateOf(l))
		}
		return err
	})
	return locks, err
}

// Sessions returns the sessions of the cell, by id.
func (c *Client) Sessions(ctx context.Context) ([]SessionInfo, error) {
	var sessions []SessionInfo
	err := c.atMaster(ctx, "list sessions", "", func(ctx context.Context, cell lockpb.CellClient) error {
		a, err := cell.ListSessions(ctx, &lockpb.ListSessionsRequest{})
		for _, s := range a.GetSessions() {
			sessions = append(sessions, SessionInfo{
				ID: s.GetSession(), Identity: s.GetIdentity(), Host: s.GetHost(),
				Created: lockpb.TimeFromWire(s.GetCreated()), LeaseLeft: milliseconds(s.GetLeaseLeftMs()),
				Locks: int(s.GetLocks()), Caches: s.GetCaches(),
			})
		}
		return err
	})
	return sessions, err
}

// atMaster makes a unary call of the master, and of the next one if that ceases to be it, as long
// as Config.Timeout allows.
func (c *Client) atMaster(ctx context.Context, op string, path lockfs.Path, call func(context.Context, lockpb.CellClient) error) error {
	deadline := c.cfg.Clock.Now().Add(c.cfg.Timeout)
	for {
		if _, err := c.do(ctx, newCall(wantMaster, nil, op, path, nil)); err != nil {
			return err
		}
		err := c.unary(ctx, c.masterAddress(), op, path, call)
		kind := lockfs.KindOf(err)
		again := kind == lockfs.ErrUnavailable || kind == lockfs.ErrNotMaster
		if !again || ctx.Err() != nil || c.cfg.Clock.Now() >= deadline {
			return err
		}
		if err := c.pause(ctx, lastPause/4); err != nil {
			return err
		}
	}
}

// pause waits until d has passed or ctx ends.
func (c *Client) pause(ctx context.Context, d time.Duration) error {
	timer := c.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unary makes one call of one replica on a connection of its own, within Config.Timeout.
func (c *Client) unary(ctx context.Context, address, op string, path lockfs.Path, call func(context.Context, lockpb.CellClient) error) error {
	conn, err := c.clientConn(address)
	if err != nil {
		return &lockfs.Error{Op: op, Path: path, Kind: lockfs.ErrInvalid, Detail: err.Error()}
	}
	defer conn.Close()
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	err = within(c.cfg.Clock, c.cfg.Timeout, cancel, func() error { return call(bounded, lockpb.NewCellClient(conn)) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && bounded.Err() != nil {
		return &lockfs.Error{Op: op, Path: path, Kind: lockfs.ErrUnavailable, Detail: address + " did not answer in time"}
	}
	return lockpb.FromStatus(err, op, path)
}
