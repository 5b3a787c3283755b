package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"lockfs"
	"lockfs/store/storepb"
)

// ErrCorrupt marks the errors of a file or a stream that is damaged: its cell has to come from
// another replica. A file or stream that is whole, but of another cell, of another program or of a
// newer version, is not corrupt.
var ErrCorrupt = errors.New("damaged")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// A loader makes a state of records that come in key order, and trusts none of them.
type loader struct {
	state *State
	cell  *storepb.Cell // the cell record as it came; the state's own totals are counted again
	last  string        // key of the last record
	count uint64
	acls  map[lockfs.ACLNames]*lockfs.ACLNames
}

func newLoader(cell string, knows knowledge) *loader {
	l := &loader{state: New(cell), acls: map[lockfs.ACLNames]*lockfs.ACLNames{}}
	l.state.knows = knows
	l.state.dirty = nil
	return l
}

// add takes one record as it was marshalled, and returns its key.
func (l *loader) add(b []byte) (key string, err error) {
	var r storepb.Record
	if err := proto.Unmarshal(b, &r); err != nil {
		return "", corrupt("record %d: %v", l.count+1, err)
	}
	// The cell comes first, and its level says more than what is new in a record.
	if err := l.state.knows.check(r.GetCell().GetLevel()); err != nil {
		return "", err
	}
	if err := checkKnown(r.ProtoReflect()); err != nil {
		return "", fmt.Errorf("record %d: %w", l.count+1, err)
	}
	key = keyOf(&r)
	if key <= l.last {
		return "", corrupt("record %d: key %q after %q", l.count+1, key, l.last)
	}
	l.last = key
	l.count++
	if err := l.load(&r); err != nil {
		return "", corrupt("record %q: %v", key, err)
	}
	return key, nil
}

func (l *loader) load(record *storepb.Record) error {
	switch r := record.Record.(type) {
	case *storepb.Record_Cell:
		return l.loadCell(r.Cell)
	case *storepb.Record_Delay:
		return l.loadDelay(r.Delay)
	case *storepb.Record_Node:
		return l.loadNode(r.Node)
	default:
		return l.loadSession(record.GetSession())
	}
}

func (l *loader) loadCell(m *storepb.Cell) error {
	if m.Name != l.state.cell.name {
		return fmt.Errorf("the cell %q in a state of %q", m.Name, l.state.cell.name)
	}
	l.cell = m
	limits := m.GetLimits()
	l.state.cell = cell{
		name: m.Name, clusterID: m.ClusterId, epoch: m.Epoch, leaseMS: m.LeaseMs, graceMS: m.GraceMs, level: m.Level,
		limits: lockfs.Limits{FileBytes: limits.GetFileBytes(), Nodes: limits.GetNodes(),
			Bytes: limits.GetBytes(), Children: limits.GetChildren()},
		lastInstance: m.LastInstance, lastSession: m.LastSession,
		contentFloor: m.ContentFloor, lockFloor: m.LockFloor, aclFloor: m.AclFloor, time: m.Time,
	}
	return nil
}

func (l *loader) loadDelay(m *storepb.Delay) error {
	d := &delay{path: lockfs.Path(m.Path)}
	for _, k := range m.Marks {
		d.marks = append(d.marks, mark{lockfs.Mode(k.Mode), k.LockDelayMs, k.Index})
	}
	if _, err := l.state.parse(m.Path); err != nil {
		return err
	}
	if len(d.marks) == 0 || !slices.IsSortedFunc(d.marks, func(a, b mark) int { return int(a.mode) - int(b.mode) }) {
		return errors.New("marks that are not one a mode")
	}
	d.print = l.state.hasher.delay(d)
	l.state.swapDelay(d.path, nil, d)
	return nil
}

func (l *loader) loadNode(m *storepb.Node) error {
	n := &node{
		path: lockfs.Path(m.Path), kind: lockfs.Type(m.Type), mode: lockfs.Mode(m.LockMode), ownerSession: m.OwnerSession,
		instance: m.Instance, contentGeneration: m.ContentGeneration, lockGeneration: m.LockGeneration,
		aclGeneration: m.AclGeneration, checksum: m.Checksum, acl: l.acl(m.Acl), mtime: m.Mtime,
	}
	if len(m.Content) > 0 {
		n.content = m.Content
	}
	for _, h := range m.Holders {
		n.holders = append(n.holders, holder{h.Session, h.Owner, h.Since, h.LockDelayMs, h.Note})
	}
	if err := l.checkNode(n); err != nil {
		return err
	}
	n.print = l.state.hasher.node(n)
	l.state.swapNode(n.path, nil, n)
	return nil
}

func (l *loader) acl(m *storepb.ACLNames) *lockfs.ACLNames {
	names := lockfs.ACLNames{Read: m.GetRead(), Write: m.GetWrite(), ChangeACL: m.GetChangeAcl()}
	if l.acls[names] == nil {
		l.acls[names] = &names
	}
	return l.acls[names]
}

func (l *loader) checkNode(n *node) error {
	if _, err := l.state.parse(string(n.path)); err != nil {
		return err
	}
	dir := l.state.nodes[n.path.Parent()]
	switch {
	case n.kind != lockfs.File && n.kind != lockfs.Dir:
		return errors.New("neither a file nor a directory")
	case !n.path.IsCellRoot() && (dir == nil || dir.kind != lockfs.Dir):
		return errors.New("not in a directory")
	case n.instance == 0 || n.instance > l.state.cell.lastInstance:
		return errors.New("an instance that was never drawn")
	case xxhash.Sum64(n.content) != n.checksum:
		return errors.New("contents do not match their checksum")
	case (n.mode == lockfs.Free) != (len(n.holders) == 0):
		return errors.New("holders of a free lock, or none of one that is held")
	case n.mode == lockfs.Exclusive && len(n.holders) > 1, n.mode > lockfs.Exclusive:
		return errors.New("more than one holder of an exclusive lock")
	}
	return nil
}

func (l *loader) loadSession(m *storepb.Session) error {
	s := &session{id: m.Id, identity: m.Identity, host: m.Host, created: m.Created, caches: m.Caches}
	s.header = l.state.hasher.sum(sessionKey, s.head())
	for _, d := range m.Done {
		s.done = append(s.done, span{d.First, d.Last})
	}
	for _, r := range m.Results {
		s.results = append(s.results, l.state.hasher.result(r))
	}
	if err := s.check(); err != nil {
		return err
	}
	s.print = l.state.hasher.session(s)
	l.state.swapSession(s.id, nil, s)
	return nil
}

func (s *session) check() error {
	var last uint64
	for i, d := range s.done {
		if d.first == 0 || d.last < d.first || i > 0 && d.first-1 <= last {
			return errors.New("ranges of numbers that are not in order")
		}
		last = d.last
	}
	last = 0
	for _, r := range s.results {
		if r.result.Number <= last || !contains(s.done, r.result.Number) {
			return errors.New("results that are not in order, or of numbers that are not done")
		}
		last = r.result.Number
	}
	return nil
}

// finish checks what only all records together can show, and returns the state.
func (l *loader) finish(meta *storepb.Meta) (*State, error) {
	s := l.state
	switch {
	case l.cell == nil:
		return nil, corrupt("there is no record of the cell")
	case l.count != meta.Records:
		return nil, corrupt("%d records of %d", l.count, meta.Records)
	case s.cell.clusterID != meta.ClusterId:
		return nil, corrupt("the cell is of cluster %x, not of %x", s.cell.clusterID, meta.ClusterId)
	case s.cell.nodes != l.cell.Nodes || s.cell.bytes != l.cell.Bytes:
		return nil, corrupt("%d nodes of %d bytes where the cell should have %d of %d",
			s.cell.nodes, s.cell.bytes, l.cell.Nodes, l.cell.Bytes)
	case s.Hash() != meta.Hash:
		return nil, corrupt("the records are not those of entry %d: running hash %x, not %x", meta.Applied, s.Hash(), meta.Hash)
	}
	for session := range s.held {
		if s.sessions[session] == nil {
			return nil, corrupt("session %d holds locks and is not there", session)
		}
	}
	s.applied = meta.Applied
	s.settle()
	return s, nil
}

// checkMeta refuses the records of another cell; "" is any.
func checkMeta(meta *storepb.Meta, cell string) error {
	if err := checkKnown(meta.ProtoReflect()); err != nil {
		return err
	}
	if cell != "" && meta.Cell != cell {
		return fmt.Errorf("it is of the cell %q, not of %q", meta.Cell, cell)
	}
	return nil
}
