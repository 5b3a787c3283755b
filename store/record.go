package store

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"lockfs"
	"lockfs/store/storepb"
)

// The records as they stand in memory. A node, delay or session is never changed once a State
// holds it: a change is a changed copy, so whoever took hold of a record (a checkpoint, a reader)
// may keep it without a lock. Slices in them are copied before they are changed, too.

type node struct {
	path         lockfs.Path
	kind         lockfs.Type
	mode         lockfs.Mode // Free if and only if there are no holders
	ownerSession uint64
	content      []byte

	instance          uint64
	contentGeneration uint64
	lockGeneration    uint64
	aclGeneration     uint64
	checksum          uint64
	acl               *lockfs.ACLNames // shared by the nodes that inherited it
	mtime             int64
	holders           []holder // in order of their grants

	print uint64 // what this record adds to the running hash
}

type holder struct {
	session, owner uint64
	since          int64
	delayMS        int64
	note           string
}

type delay struct {
	path  lockfs.Path
	marks []mark // at most one a mode, by mode; never empty in a State
	print uint64
}

type mark struct {
	mode    lockfs.Mode
	delayMS int64
	index   uint64
}

type session struct {
	id             uint64
	identity, host string
	created        int64
	caches         bool
	done           []span  // finished or given up: ascending, apart by more than one
	results        []saved // of done numbers that are not confirmed, by number

	header uint64 // hash of the fields that never change
	print  uint64
}

// span is the numbers first to last, both in it.
type span struct{ first, last uint64 }

type saved struct {
	result *storepb.Result
	print  uint64
	size   int // in bytes, marshalled
}

// cell is the one record that is changed in place: every proposal changes it.
type cell struct {
	name             string
	clusterID, epoch uint64
	leaseMS, graceMS int64
	level            uint32
	limits           lockfs.Limits

	lastInstance, lastSession         uint64
	contentFloor, lockFloor, aclFloor uint64
	nodes, bytes                      int64
	time                              int64
}

func (n *node) message() *storepb.Node {
	m := &storepb.Node{
		Path: string(n.path), Type: uint32(n.kind), OwnerSession: n.ownerSession, Content: n.content,
		Instance: n.instance, ContentGeneration: n.contentGeneration,
		LockGeneration: n.lockGeneration, AclGeneration: n.aclGeneration,
		Checksum: n.checksum, Acl: aclMessage(n.acl), Mtime: n.mtime, LockMode: uint32(n.mode),
	}
	for _, h := range n.holders {
		m.Holders = append(m.Holders, &storepb.Holder{
			Session: h.session, Owner: h.owner, Since: h.since, Note: h.note, LockDelayMs: h.delayMS})
	}
	return m
}

func aclMessage(acl *lockfs.ACLNames) *storepb.ACLNames {
	if *acl == (lockfs.ACLNames{}) {
		return nil
	}
	return &storepb.ACLNames{Read: acl.Read, Write: acl.Write, ChangeAcl: acl.ChangeACL}
}

func (d *delay) message() *storepb.Delay {
	m := &storepb.Delay{Path: string(d.path)}
	for _, k := range d.marks {
		m.Marks = append(m.Marks, &storepb.Mark{Mode: uint32(k.mode), LockDelayMs: k.delayMS, Index: k.index})
	}
	return m
}

// head is the part of the record that never changes.
func (s *session) head() *storepb.Session {
	return &storepb.Session{Id: s.id, Identity: s.identity, Host: s.host, Created: s.created, Caches: s.caches}
}

func (s *session) message() *storepb.Session {
	m := s.head()
	for _, d := range s.done {
		m.Done = append(m.Done, &storepb.Range{First: d.first, Last: d.last})
	}
	for _, r := range s.results {
		m.Results = append(m.Results, r.result)
	}
	return m
}

func (c *cell) message() *storepb.Cell {
	return &storepb.Cell{
		Name: c.name, ClusterId: c.clusterID, Epoch: c.epoch,
		LeaseMs: c.leaseMS, GraceMs: c.graceMS, Level: c.level,
		Limits: &storepb.Limits{FileBytes: c.limits.FileBytes, Nodes: c.limits.Nodes,
			Bytes: c.limits.Bytes, Children: c.limits.Children},
		LastInstance: c.lastInstance, LastSession: c.lastSession,
		ContentFloor: c.contentFloor, LockFloor: c.lockFloor, AclFloor: c.aclFloor,
		Nodes: c.nodes, Bytes: c.bytes, Time: c.time,
	}
}

// The kinds of record, as the first byte of their keys and of what is hashed. Key order is cell,
// delays by path, nodes by path (so a directory comes before what is in it), sessions by id.
const (
	cellKey    = 'c'
	delayKey   = 'd'
	nodeKey    = 'n'
	sessionKey = 's'
)

func pathKey(kind byte, p lockfs.Path) string { return string(kind) + string(p) }

func idKey(id uint64) string {
	return string(binary.BigEndian.AppendUint64([]byte{sessionKey}, id))
}

// keyOf returns the key of a record, or "" of one of no known kind.
func keyOf(r *storepb.Record) string {
	switch r := r.Record.(type) {
	case *storepb.Record_Cell:
		return string(byte(cellKey))
	case *storepb.Record_Delay:
		return pathKey(delayKey, lockfs.Path(r.Delay.GetPath()))
	case *storepb.Record_Node:
		return pathKey(nodeKey, lockfs.Path(r.Node.GetPath()))
	case *storepb.Record_Session:
		return idKey(r.Session.GetId())
	}
	return ""
}

func (n *node) record() *storepb.Record {
	return &storepb.Record{Record: &storepb.Record_Node{Node: n.message()}}
}

func (d *delay) record() *storepb.Record {
	return &storepb.Record{Record: &storepb.Record_Delay{Delay: d.message()}}
}

func (s *session) record() *storepb.Record {
	return &storepb.Record{Record: &storepb.Record_Session{Session: s.message()}}
}

func (c *cell) record() *storepb.Record {
	return &storepb.Record{Record: &storepb.Record_Cell{Cell: c.message()}}
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// marshal cannot fail: every string in a record was checked to be UTF-8 on its way in.
func marshal(b []byte, m proto.Message) []byte {
	b, err := deterministic.MarshalAppend(b, m)
	if err != nil {
		panic(fmt.Sprintf("store: a record that cannot be marshalled: %v", err))
	}
	return b
}

// A hasher computes what records add to the running hash. It keeps a buffer between them.
type hasher struct{ buf []byte }

func (h *hasher) sum(kind byte, m proto.Message) uint64 {
	h.buf = marshal(append(h.buf[:0], kind), m)
	return xxhash.Sum64(h.buf)
}

// node leaves the contents out, for which their checksum stands: taking the lock of a big file
// costs no more than that of an empty one.
func (h *hasher) node(n *node) uint64 {
	m := n.message()
	m.Content = nil
	return h.sum(nodeKey, m)
}

func (h *hasher) delay(d *delay) uint64 { return h.sum(delayKey, d.message()) }

func (h *hasher) cell(c *cell) uint64 { return h.sum(cellKey, c.message()) }

func (h *hasher) result(r *storepb.Result) saved {
	print := h.sum('r', r)
	return saved{r, print, len(h.buf) - 1}
}

// session goes over the hashes of the results and not over the results, which may be thousands,
// all but one as they were the last time.
func (h *hasher) session(s *session) uint64 {
	b := binary.LittleEndian.AppendUint64(h.buf[:0], s.header)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.done)))
	for _, d := range s.done {
		b = binary.LittleEndian.AppendUint64(b, d.first)
		b = binary.LittleEndian.AppendUint64(b, d.last)
	}
	for _, r := range s.results {
		b = binary.LittleEndian.AppendUint64(b, r.print)
	}
	h.buf = b
	return xxhash.Sum64(b)
}

func (n *node) id() NodeID { return NodeID{n.path, n.instance} }

// grants returns the holders; a nil node has none.
func (n *node) grants() []holder {
	if n == nil {
		return nil
	}
	return n.holders
}

func (h holder) same(other holder) bool { return h.session == other.session && h.owner == other.owner }
