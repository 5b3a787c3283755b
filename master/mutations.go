package master

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"lockfs"
	"lockfs/lockpb"
	"lockfs/store"
	"lockfs/store/storepb"
)

// This is the edge where what a client sent becomes a command: paths are parsed here, once, and
// arguments that no state could make right are refused.

// mutation converts a call to a command of the log.
func (r *Replica) mutation(c *lockpb.Call) (*storepb.Mutation, error) {
	if c.GetSession() == 0 || c.GetNumber() == 0 {
		return nil, invalid("a mutation needs a session and a number")
	}
	m := &storepb.Mutation{Session: c.GetSession(), Number: c.GetNumber()}
	for _, n := range c.GetConfirmed() {
		if n.GetFirst() == 0 || n.GetFirst() > n.GetLast() {
			return nil, invalid("a range of confirmed numbers is empty")
		}
		m.Confirmed = append(m.Confirmed, &storepb.Range{First: n.GetFirst(), Last: n.GetLast()})
	}
	if g := c.GetGuard(); g != nil {
		if err := r.checkPaths(g.GetPath()); err != nil {
			return nil, err
		}
		m.Guard = &storepb.Guard{Path: g.GetPath(), Mode: g.GetMode(), Generation: g.GetGeneration()}
	}
	if err := r.operation(m, c); err != nil {
		return nil, err
	}
	if size := proto.Size(m); size > mutationBytesMax {
		return nil, &lockfs.Error{Kind: lockfs.ErrTooLarge,
			Detail: fmt.Sprintf("a request has at most %d bytes, this one %d", mutationBytesMax, size)}
	}
	return m, nil
}

// mutationBytesMax bounds one request of a client. It is well over the largest file, and under
// what raft takes for one proposal, together with the grants behind a release.
const mutationBytesMax = 1 << 20

func (r *Replica) operation(m *storepb.Mutation, c *lockpb.Call) error {
	switch op := c.GetOp().(type) {
	case *lockpb.Call_Create:
		return r.create(m, op.Create)
	case *lockpb.Call_Delete:
		d := op.Delete
		m.Op = &storepb.Mutation_Delete{Delete: &storepb.Delete{Path: d.GetPath(), Instance: d.GetInstance(), Type: d.GetType()}}
		return r.checkPaths(d.GetPath())
	case *lockpb.Call_Edit:
		return r.edit(m, op.Edit)
	case *lockpb.Call_SetAcl:
		a := op.SetAcl
		m.Op = &storepb.Mutation_SetAcl{SetAcl: &storepb.SetACL{Path: a.GetPath(), Instance: a.GetInstance(), Acl: aclOf(a.GetAcl())}}
		return r.checkPaths(append(aclPaths(a.GetAcl()), a.GetPath())...)
	case *lockpb.Call_SetPermanence:
		p := op.SetPermanence
		m.Op = &storepb.Mutation_SetPermanence{SetPermanence: &storepb.SetPermanence{
			Path: p.GetPath(), Instance: p.GetInstance(), Ephemeral: p.GetEphemeral()}}
		return r.checkPaths(p.GetPath())
	case *lockpb.Call_Rename:
		n := op.Rename
		m.Op = &storepb.Mutation_Rename{Rename: &storepb.Rename{From: n.GetFrom(), FromInstance: n.GetFromInstance(),
			To: n.GetTo(), ToInstance: n.GetToInstance(), NoReplace: n.GetNoReplace()}}
		return r.checkPaths(n.GetFrom(), n.GetTo())
	case *lockpb.Call_Acquire:
		return r.acquire(m, op.Acquire)
	case *lockpb.Call_Release:
		l := op.Release
		m.Op = &storepb.Mutation_Release{Release: &storepb.Release{Path: l.GetPath(), Instance: l.GetInstance(), Owner: l.GetOwner()}}
		return r.checkPaths(l.GetPath())
	case *lockpb.Call_CloseOwner:
		m.Op = &storepb.Mutation_CloseOwner{CloseOwner: &storepb.CloseOwner{
			Owner: op.CloseOwner.GetOwner(), Numbers: op.CloseOwner.GetNumbers()}}
	case *lockpb.Call_GiveUp:
		m.Op = &storepb.Mutation_GiveUp{GiveUp: &storepb.GiveUp{Number: op.GiveUp.GetNumber()}}
	case *lockpb.Call_CloseSession:
		m.Op = &storepb.Mutation_CloseSession{CloseSession: &storepb.CloseSession{ExpiredOwners: op.CloseSession.GetExpiredOwners()}}
	default:
		return invalid("a call of a kind that this replica does not know")
	}
	return nil
}

func (r *Replica) create(m *storepb.Mutation, c *lockpb.Create) error {
	if t := lockfs.Type(c.GetType()); t != lockfs.File && t != lockfs.Dir {
		return invalid("a node is a file or a directory")
	}
	m.Op = &storepb.Mutation_Create{Create: &storepb.Create{
		Path: c.GetPath(), Type: c.GetType(), Ephemeral: c.GetEphemeral(), Exclusive: c.GetExclusive(),
		Content: c.GetContent(), Acl: aclOf(c.GetAcl())}}
	return r.checkPaths(append(aclPaths(c.GetAcl()), c.GetPath())...)
}

// changesMax bounds the changes of one edit, each of which may copy the whole file on every replica.
const changesMax = 1024

func (r *Replica) edit(m *storepb.Mutation, e *lockpb.Edit) error {
	if len(e.GetChanges()) > changesMax {
		return &lockfs.Error{Kind: lockfs.ErrTooLarge,
			Detail: fmt.Sprintf("an edit has at most %d changes, this one %d", changesMax, len(e.GetChanges()))}
	}
	edit := &storepb.Edit{Path: e.GetPath(), Instance: e.GetInstance(), IfGeneration: e.GetIfGeneration()}
	for _, c := range e.GetChanges() {
		change := new(storepb.Change)
		switch c := c.GetChange().(type) {
		case *lockpb.Change_Append:
			change.Change = &storepb.Change_Append{Append: c.Append}
		case *lockpb.Change_WriteAt:
			change.Change = &storepb.Change_WriteAt{WriteAt: &storepb.WriteAt{Offset: c.WriteAt.GetOffset(), Data: c.WriteAt.GetData()}}
		case *lockpb.Change_Truncate:
			change.Change = &storepb.Change_Truncate{Truncate: c.Truncate}
		case *lockpb.Change_Extend:
			change.Change = &storepb.Change_Extend{Extend: c.Extend}
		default:
			return invalid("an edit with a change of a kind that this replica does not know")
		}
		edit.Changes = append(edit.Changes, change)
	}
	m.Op = &storepb.Mutation_Edit{Edit: edit}
	return r.checkPaths(e.GetPath())
}

func (r *Replica) acquire(m *storepb.Mutation, a *lockpb.Acquire) error {
	if mode := lockfs.Mode(a.GetMode()); mode != lockfs.Shared && mode != lockfs.Exclusive {
		return invalid("a lock is taken in mode SHARED or EXCLUSIVE")
	}
	if delay := a.GetLockDelayMs(); delay < 0 || delay > lockfs.MaxLockDelay.Milliseconds() {
		return invalid(fmt.Sprintf("a lock-delay is 0 to %v", lockfs.MaxLockDelay))
	}
	if err := checkNote(a.GetNote()); err != nil {
		return err
	}
	m.Op = &storepb.Mutation_Acquire{Acquire: &storepb.Acquire{
		Path: a.GetPath(), Instance: a.GetInstance(), Owner: a.GetOwner(), Mode: a.GetMode(),
		LockDelayMs: a.GetLockDelayMs(), Note: a.GetNote(), Waits: a.GetWait()}}
	return r.checkPaths(a.GetPath())
}

// checkNote refuses here what the records would not take: a waiter's note only gets there with its
// grant.
func checkNote(note string) error {
	if len(note) > store.MaxNote {
		return invalid(fmt.Sprintf("a note has at most %d bytes, this one %d", store.MaxNote, len(note)))
	}
	return nil
}

// checkPaths returns an error unless all these are paths of this cell.
func (r *Replica) checkPaths(paths ...string) error {
	for _, path := range paths {
		p, err := lockfs.ParsePath(path)
		if err != nil {
			return err
		}
		if p.Cell() != r.cfg.Cell {
			return invalid(fmt.Sprintf("%s is not in cell %q", p, r.cfg.Cell))
		}
	}
	return nil
}

func aclOf(a *lockpb.ACLNames) *storepb.ACLNames {
	return &storepb.ACLNames{Read: a.GetRead(), Write: a.GetWrite(), ChangeAcl: a.GetChangeAcl()}
}

// aclPaths returns the names that are given.
func aclPaths(a *lockpb.ACLNames) []string {
	var paths []string
	for _, name := range []string{a.GetRead(), a.GetWrite(), a.GetChangeAcl()} {
		if name != "" {
			paths = append(paths, name)
		}
	}
	return paths
}

func invalid(why string) error { return &lockfs.Error{Kind: lockfs.ErrInvalid, Detail: why} }
