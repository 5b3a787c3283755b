package lockpb

import (
	"errors"
	"time"

	"lockfs"
	"lockfs/sequencer"
)

// The conversions between the nouns of package lockfs and what crosses the wire. FromWire takes
// what a master sent as it is; whoever takes paths from a client parses them with lockfs.ParsePath.
// A nil message is the zero noun.

// StatToWire converts what is known of a node.
func StatToWire(s lockfs.Stat) *NodeStat {
	return &NodeStat{
		Path:              string(s.Path),
		Type:              uint32(s.Type),
		OwnerSession:      s.OwnerSession,
		Instance:          s.Instance,
		ContentGeneration: s.ContentGeneration,
		LockGeneration:    s.LockGeneration,
		AclGeneration:     s.ACLGeneration,
		Checksum:          s.Checksum,
		Size:              s.Size,
		Acl:               ACLToWire(s.ACL),
		Mtime:             TimeToWire(s.Mtime),
	}
}

// StatFromWire is the reverse of StatToWire. A node with an owner session is ephemeral.
func StatFromWire(s *NodeStat) lockfs.Stat {
	return lockfs.Stat{
		Path:              lockfs.Path(s.GetPath()),
		Type:              lockfs.Type(s.GetType()),
		Ephemeral:         s.GetOwnerSession() != 0,
		OwnerSession:      s.GetOwnerSession(),
		Instance:          s.GetInstance(),
		ContentGeneration: s.GetContentGeneration(),
		LockGeneration:    s.GetLockGeneration(),
		ACLGeneration:     s.GetAclGeneration(),
		Checksum:          s.GetChecksum(),
		Size:              s.GetSize(),
		ACL:               ACLFromWire(s.GetAcl()),
		Mtime:             TimeFromWire(s.GetMtime()),
	}
}

// EntriesToWire converts a listing, in its order.
func EntriesToWire(entries []lockfs.Entry) []*Entry {
	wire := make([]*Entry, len(entries))
	for i, e := range entries {
		wire[i] = &Entry{Name: e.Name, Type: uint32(e.Type), Instance: e.Instance}
	}
	return wire
}

// EntriesFromWire is the reverse of EntriesToWire.
func EntriesFromWire(wire []*Entry) []lockfs.Entry {
	entries := make([]lockfs.Entry, len(wire))
	for i, e := range wire {
		entries[i] = lockfs.Entry{Name: e.GetName(), Type: lockfs.Type(e.GetType()), Instance: e.GetInstance()}
	}
	return entries
}

// ACLToWire converts the names of ACL files.
func ACLToWire(n lockfs.ACLNames) *ACLNames {
	return &ACLNames{Read: n.Read, Write: n.Write, ChangeAcl: n.ChangeACL}
}

// ACLFromWire is the reverse of ACLToWire.
func ACLFromWire(n *ACLNames) lockfs.ACLNames {
	return lockfs.ACLNames{Read: n.GetRead(), Write: n.GetWrite(), ChangeACL: n.GetChangeAcl()}
}

// LimitsToWire converts the limits of a cell.
func LimitsToWire(l lockfs.Limits) *Limits {
	return &Limits{FileBytes: l.FileBytes, Nodes: l.Nodes, Bytes: l.Bytes, Children: l.Children}
}

// LimitsFromWire is the reverse of LimitsToWire.
func LimitsFromWire(l *Limits) lockfs.Limits {
	return lockfs.Limits{FileBytes: l.GetFileBytes(), Nodes: l.GetNodes(), Bytes: l.GetBytes(), Children: l.GetChildren()}
}

// SequencerToWire converts a sequencer; the zero one, which guards nothing, is nil.
func SequencerToWire(s sequencer.Sequencer) *Sequencer {
	if s == (sequencer.Sequencer{}) {
		return nil
	}
	return &Sequencer{Path: string(s.Path), Mode: uint32(s.Mode), Generation: s.Generation}
}

// TimeToWire returns nanoseconds since 1970, and 0 for the zero time.
func TimeToWire(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// TimeFromWire is the reverse of TimeToWire.
func TimeFromWire(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// ErrorOf makes the error that a kind and a detail of the wire stand for, of op on path. Kind 0 is
// no error. A kind that this build does not know keeps its number, and has no words.
func ErrorOf(kind uint32, detail, op string, path lockfs.Path) error {
	if kind == 0 {
		return nil
	}
	if kind > 255 {
		kind = uint32(lockfs.ErrInternal)
	}
	return &lockfs.Error{Op: op, Path: path, Kind: lockfs.Kind(kind), Detail: detail}
}

// FailureOf is what crosses the wire of an error: its kind and what the kind does not say. The
// operation and the path stay behind, since the caller knows them. An error without a kind is
// lockfs.ErrInternal.
func FailureOf(err error) (kind uint32, detail string) {
	if err == nil {
		return 0, ""
	}
	var e *lockfs.Error
	if errors.As(err, &e) {
		return uint32(e.Kind), e.Detail
	}
	var k lockfs.Kind
	if errors.As(err, &k) {
		return uint32(k), ""
	}
	return uint32(lockfs.ErrInternal), err.Error()
}

// Err returns the error that an answer brings, of op on path; nil if it brings none.
func (a *Answer) Err(op string, path lockfs.Path) error {
	return ErrorOf(a.GetKind(), a.GetDetail(), op, path)
}
