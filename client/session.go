package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
	"lockfs/sequencer"
)

// Session is a session of the cell. It lives until it is closed, or lost; then every call of it
// fails with lockfs.ErrSession. It implements Reader.
//
// Every mutation is done once or not at all. It fails with lockfs.ErrUnavailable if no master
// answered in time and it surely is not done and never will be; with lockfs.ErrUnknown if not even
// that could be learnt. When its ctx ends it is given up through the log: if that shows within
// 100 ms that it was done already, its outcome is returned; if not, an error that is ctx's, and
// lockfs.ErrUnknown too where the outcome is open still.
type Session struct {
	client  *Client
	session *session
	reader
}

// ID returns the number by which the cell knows the session.
func (s *Session) ID() uint64 { return s.session.id }

// Lost returns a channel that is closed when the session has ended.
func (s *Session) Lost() <-chan struct{} { return s.session.ended }

// Err returns nil while the session lives, and then a lockfs.ErrSession that says why it ended.
func (s *Session) Err() error {
	var err error
	s.client.input(func(now clock.Instant) {
		s.client.machine.tick(now)
		err = s.session.err
	})
	return err
}

// Left returns how long the session is surely alive from now on, if nothing renews it: within that
// time nobody else is granted what it holds. It is 0 in jeopardy. A holder that may have been
// suspended asks this before it acts, and the sequencer protects the rest.
func (s *Session) Left() time.Duration {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if s.session.err != nil {
		return 0
	}
	return max(0, s.session.lease.end.Sub(s.client.cfg.Clock.Now()))
}

// Confirm returns nil if the session is surely alive: at once while its lease is valid; in jeopardy
// it waits until a master has renewed it. Otherwise it fails with lockfs.ErrSession, with
// lockfs.ErrUnavailable where no master answered in time, or when ctx ends.
func (s *Session) Confirm(ctx context.Context) error {
	if s.Left() > 0 {
		return nil
	}
	// What is read in a session is not told before the session is confirmed.
	root, err := lockfs.CellRoot(s.client.cfg.Cell)
	if err == nil {
		_, err = s.Stat(ctx, root, 0)
	}
	return err
}

// NewOwner returns an owner of locks that is not yet in use in the session.
func (s *Session) NewOwner() uint64 {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	s.session.lastOwner++
	return s.session.lastOwner
}

func (s *Session) mutate(ctx context.Context, op string, path lockfs.Path, wire *lockpb.Call) (*lockpb.Answer, error) {
	return s.client.do(ctx, newCall(mutation, s.session, op, path, wire))
}

// requestMax is more than any master takes in one request, and less than breaks a connection.
const requestMax = 16 << 20

func checkSize(op string, path lockfs.Path, size int) error {
	if size <= requestMax {
		return nil
	}
	return &lockfs.Error{Op: op, Path: path, Kind: lockfs.ErrTooLarge, Detail: fmt.Sprintf("%d bytes in one request", size)}
}

// Create makes a node. created says whether this call did: without Exclusive, what was there
// before is returned as it is.
func (s *Session) Create(ctx context.Context, create Create) (st lockfs.Stat, created bool, err error) {
	if err := checkSize("create", create.Path, len(create.Content)); err != nil {
		return lockfs.Stat{}, false, err
	}
	a, err := s.mutate(ctx, "create", create.Path, &lockpb.Call{Op: &lockpb.Call_Create{Create: &lockpb.Create{
		Path: string(create.Path), Type: uint32(create.Type), Ephemeral: create.Ephemeral, Exclusive: create.Exclusive,
		Content: create.Content, Acl: lockpb.ACLToWire(create.ACL),
	}}})
	if err != nil {
		return lockfs.Stat{}, false, err
	}
	return lockpb.StatFromWire(a.GetStat()), a.GetStat().GetCreated(), nil
}

// Delete removes a node, and ends its lock. typ, where not 0, is what the node must be, else the
// error is lockfs.ErrIsDir or lockfs.ErrNotDir.
func (s *Session) Delete(ctx context.Context, path lockfs.Path, instance uint64, typ lockfs.Type) error {
	_, err := s.mutate(ctx, "delete", path, &lockpb.Call{Op: &lockpb.Call_Delete{Delete: &lockpb.Delete{
		Path: string(path), Instance: instance, Type: uint32(typ),
	}}})
	return err
}

// Edit changes the contents of a file as they stand when its turn comes, and returns what is known
// of the file then. Without changes the same contents are written again.
func (s *Session) Edit(ctx context.Context, edit Edit) (lockfs.Stat, error) {
	changes := make([]*lockpb.Change, len(edit.Changes))
	size := 0
	for _, c := range edit.Changes {
		size += len(c.Data)
	}
	if err := checkSize("edit", edit.Path, size); err != nil {
		return lockfs.Stat{}, err
	}
	for i, c := range edit.Changes {
		var err error
		if changes[i], err = c.wire(); err != nil {
			return lockfs.Stat{}, err
		}
	}
	a, err := s.mutate(ctx, "edit", edit.Path, &lockpb.Call{
		Guard: lockpb.SequencerToWire(edit.Guard),
		Op: &lockpb.Call_Edit{Edit: &lockpb.Edit{
			Path: string(edit.Path), Instance: edit.Instance, IfGeneration: edit.IfGeneration, Changes: changes,
		}}})
	return lockpb.StatFromWire(a.GetStat()), err
}

func (c Change) wire() (*lockpb.Change, error) {
	switch c.Kind {
	case Append:
		return &lockpb.Change{Change: &lockpb.Change_Append{Append: c.Data}}, nil
	case WriteAt:
		return &lockpb.Change{Change: &lockpb.Change_WriteAt{WriteAt: &lockpb.WriteAt{Offset: c.Offset, Data: c.Data}}}, nil
	case Truncate:
		return &lockpb.Change{Change: &lockpb.Change_Truncate{Truncate: c.Offset}}, nil
	case Extend:
		return &lockpb.Change{Change: &lockpb.Change_Extend{Extend: c.Offset}}, nil
	}
	return nil, invalid("edit: there is no change of kind %d", c.Kind)
}

// SetACL changes the ACL names of a node; an empty one stays as it is.
func (s *Session) SetACL(ctx context.Context, path lockfs.Path, instance uint64, names lockfs.ACLNames) (lockfs.Stat, error) {
	a, err := s.mutate(ctx, "set acl", path, &lockpb.Call{Op: &lockpb.Call_SetAcl{SetAcl: &lockpb.SetACL{
		Path: string(path), Instance: instance, Acl: lockpb.ACLToWire(names),
	}}})
	return lockpb.StatFromWire(a.GetStat()), err
}

// SetPermanence makes a node ephemeral, so that it is deleted when this session ends, or permanent.
// It fails with lockfs.ErrInvalid where a permanent node would come to be in an ephemeral directory.
func (s *Session) SetPermanence(ctx context.Context, path lockfs.Path, instance uint64, ephemeral bool) (lockfs.Stat, error) {
	a, err := s.mutate(ctx, "set permanence", path, &lockpb.Call{Op: &lockpb.Call_SetPermanence{SetPermanence: &lockpb.SetPermanence{
		Path: string(path), Instance: instance, Ephemeral: ephemeral,
	}}})
	return lockpb.StatFromWire(a.GetStat()), err
}

// Rename moves a file, and returns what is known of it at its new place.
func (s *Session) Rename(ctx context.Context, rename Rename) (lockfs.Stat, error) {
	if err := s.client.inCell(rename.To); err != nil {
		return lockfs.Stat{}, err
	}
	a, err := s.mutate(ctx, "rename", rename.From, &lockpb.Call{Op: &lockpb.Call_Rename{Rename: &lockpb.Rename{
		From: string(rename.From), FromInstance: rename.FromInstance,
		To: string(rename.To), ToInstance: rename.ToInstance, NoReplace: rename.NoReplace,
	}}})
	return lockpb.StatFromWire(a.GetStat()), err
}

// Acquire takes a lock for an owner, or converts the one that it holds, and returns the sequencer
// that proves it. It returns nil only while the session is surely alive. With Wait it waits for as
// long as it takes, over failovers, and keeps its turn. When ctx ends it returns within 100 ms: the
// sequencer if the grant won the race; else the owner has what it had before, or will have soon,
// and its next Acquire or Release waits for that.
func (s *Session) Acquire(ctx context.Context, acquire Acquire) (sequencer.Sequencer, error) {
	if acquire.Mode != lockfs.Shared && acquire.Mode != lockfs.Exclusive || acquire.Owner == 0 {
		return sequencer.Sequencer{}, &lockfs.Error{Op: "acquire", Path: acquire.Path, Kind: lockfs.ErrInvalid,
			Detail: fmt.Sprintf("in mode %v for owner %d", acquire.Mode, acquire.Owner)}
	}
	c := newCall(mutation, s.session, "acquire", acquire.Path, &lockpb.Call{Op: &lockpb.Call_Acquire{Acquire: &lockpb.Acquire{
		Path: string(acquire.Path), Instance: acquire.Instance, Owner: acquire.Owner, Mode: uint32(acquire.Mode),
		Wait: acquire.Wait, LockDelayMs: acquire.LockDelay.Milliseconds(),
		Note: strings.ToValidUTF8(acquire.Note, "?"),
	}}})
	c.waits = acquire.Wait
	a, err := s.client.do(ctx, c)
	if err != nil {
		return sequencer.Sequencer{}, err
	}
	g := a.GetGranted()
	return sequencer.Sequencer{Path: acquire.Path, Mode: lockfs.Mode(g.GetMode()), Generation: g.GetGeneration()}, nil
}

// Release lets go of a lock. It fails with lockfs.ErrNotHeld if the owner has none there.
func (s *Session) Release(ctx context.Context, path lockfs.Path, instance, owner uint64) error {
	_, err := s.mutate(ctx, "release", path, &lockpb.Call{Op: &lockpb.Call_Release{Release: &lockpb.Release{
		Path: string(path), Instance: instance, Owner: owner,
	}}})
	return err
}

// CloseOwner lets go of all that the owner holds and ends its acquires with lockfs.ErrReleased. It
// returns at once; whatever is called on the session after it comes after it in the cell too. It is
// repeated until it is done, or the session has ended. The owner is not to be used again.
func (s *Session) CloseOwner(owner uint64) {
	s.client.input(func(now clock.Instant) { s.client.machine.closeOwner(now, s.session, owner) })
}

// Close ends the session: its locks are free at once, but for those of the owners in expired, whose
// programs still run and do not know: these are left as by an expiry, with their lock-delay. It
// waits for the cell no longer than ctx and Config.Timeout. Whatever the error, the session has ended here;
// where the cell has not heard of it, it ends there with its lease.
func (s *Session) Close(ctx context.Context, expired []uint64) error {
	c := newCall(closing, s.session, "close session", "", &lockpb.Call{Op: &lockpb.Call_CloseSession{
		CloseSession: &lockpb.CloseSession{ExpiredOwners: expired}}})
	s.client.input(func(clock.Instant) { s.session.closing = true })
	_, err := s.client.do(ctx, c)
	s.client.input(func(now clock.Instant) { s.client.machine.end(now, s.session, err) })
	return err
}
