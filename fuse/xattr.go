package fuse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
	"lockfs/client"
)

// attributePrefix is of all extended attributes that nodes have; they show the cell's record.
const attributePrefix = "user.lockfs."

// record is what attributes are read from: the cell's record of a node, and what this mount has.
type record struct {
	lockfs.Stat
	lock      client.LockState
	lockDelay time.Duration
	sequencer string // empty where this mount holds no lock
}

// attribute is one of them. What it reads is nil where the node has none such.
type attribute struct {
	read     func(*record) []byte
	lock     bool // it needs the lock's state
	fileOnly bool
}

var attributes = map[string]attribute{
	"instance":           {read: number(func(r *record) uint64 { return r.Instance })},
	"content_generation": {read: number(func(r *record) uint64 { return r.ContentGeneration }), fileOnly: true},
	"lock_generation":    {read: number(func(r *record) uint64 { return r.LockGeneration })},
	"acl_generation":     {read: number(func(r *record) uint64 { return r.ACLGeneration })},
	"checksum":           {read: func(r *record) []byte { return fmt.Appendf(nil, "%016x", r.Checksum) }, fileOnly: true},
	"permanence":         {read: text(permanence)},
	"acl.read":           {read: text(func(r *record) string { return r.ACL.Read })},
	"acl.write":          {read: text(func(r *record) string { return r.ACL.Write })},
	"acl.change_acl":     {read: text(func(r *record) string { return r.ACL.ChangeACL })},
	"lock.mode":          {read: text(func(r *record) string { return r.lock.Mode.String() }), lock: true},
	"lock.holders":       {read: text(holders), lock: true},
	"lock.waiters":       {read: text(waiters), lock: true},
	"lock_delay":         {read: number(func(r *record) uint64 { return uint64(r.lockDelay / time.Second) })},
	"sequencer":          {read: sequencerOf},
}

func number(of func(*record) uint64) func(*record) []byte {
	return func(r *record) []byte { return strconv.AppendUint(nil, of(r), 10) }
}

func text(of func(*record) string) func(*record) []byte {
	return func(r *record) []byte { return []byte(of(r)) }
}

func permanence(r *record) string {
	if r.Ephemeral {
		return "ephemeral"
	}
	return "permanent"
}

func sequencerOf(r *record) []byte {
	if r.sequencer == "" {
		return nil
	}
	return []byte(r.sequencer)
}

// holders is a line for each holder; waiters one for each who waits, in order of their turn.
func holders(r *record) string {
	var b strings.Builder
	for _, h := range r.lock.Holders {
		fmt.Fprintf(&b, "host=%s session=%d owner=%d since=%s note=%q\n",
			h.Host, h.Session, h.Owner, h.Since.UTC().Format(time.RFC3339), h.Note)
	}
	return b.String()
}

func waiters(r *record) string {
	var b strings.Builder
	for _, w := range r.lock.Waiters {
		fmt.Fprintf(&b, "host=%s session=%d owner=%d mode=%s waited=%s note=%q\n",
			w.Host, w.Session, w.Owner, w.Mode, w.Waited.Round(time.Second), w.Note)
	}
	return b.String()
}

// known returns the attribute of a name and the node, or ENODATA. The names that every ls -l asks
// for are none of ours, and cost nothing; ENOSYS would make the kernel ask for none any more.
func (fs *fileSystem) known(id uint64, name string) (attribute, node, syscall.Errno) {
	short, ours := strings.CutPrefix(name, attributePrefix)
	a, exists := attributes[short]
	if !ours || !exists || id == mountRoot || id == localLink {
		return a, node{}, syscall.ENODATA
	}
	n, ok := fs.nodes.get(id)
	if !ok {
		return a, n, syscall.ESTALE
	}
	return a, n, 0
}

// GetXAttr reads an attribute.
func (fs *fileSystem) GetXAttr(cancel <-chan struct{}, header *gofuse.InHeader, name string, dest []byte) (uint32, gofuse.Status) {
	if header.NodeId == mountRoot && name == localLocksAttribute {
		return fill(dest, strconv.AppendUint(nil, fs.localLocks.count(), 10))
	}
	a, n, number := fs.known(header.NodeId, name)
	if number != 0 {
		return 0, status(number)
	}
	r := fs.begin(cancel, header, briefly)
	defer r.end()
	rec, err := fs.record(r, n, a.lock)
	if err != nil {
		return 0, fs.answer(r, "getxattr", n.path, err)
	}
	value := a.read(rec)
	if value == nil || a.fileOnly && rec.Type == lockfs.Dir {
		return 0, gofuse.ENODATA
	}
	return fill(dest, value)
}

// fill answers with a value, or with the size that it needs.
func fill(dest, value []byte) (uint32, gofuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), gofuse.ERANGE
	}
	return uint32(copy(dest, value)), gofuse.OK
}

func (fs *fileSystem) record(ctx context.Context, n node, lock bool) (*record, error) {
	return named(ctx, fs, n.cell, func(t *tenancy) (*record, error) {
		st, err := t.Stat(ctx, n.path, n.instance)
		if err != nil {
			return nil, gone(err)
		}
		rec := &record{Stat: st, lockDelay: fs.delays.of(n.id(), fs.lockDelay)}
		if held := t.locks.of(st.Instance); len(held) > 0 {
			rec.sequencer = held[0].sequencer.String()
		}
		if lock {
			rec.lock, err = t.LockState(ctx, n.path, n.instance)
		}
		return rec, gone(err)
	})
}

// ListXAttr lists the attributes of a node.
func (fs *fileSystem) ListXAttr(cancel <-chan struct{}, header *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	if header.NodeId == mountRoot {
		return fill(dest, []byte(localLocksAttribute+"\x00"))
	}
	n, ok := fs.nodes.get(header.NodeId)
	if !ok {
		return 0, gofuse.OK // the link
	}
	r := fs.begin(cancel, header, briefly)
	defer r.end()
	rec, err := fs.record(r, n, false)
	if err != nil {
		return 0, fs.answer(r, "listxattr", n.path, err)
	}
	var list []byte
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		a := attributes[name]
		if a.fileOnly && rec.Type == lockfs.Dir || name == "sequencer" && rec.sequencer == "" {
			continue
		}
		list = append(list, attributePrefix+name+"\x00"...)
	}
	return fill(dest, list)
}

// SetXAttr sets one of those that can be set.
func (fs *fileSystem) SetXAttr(cancel <-chan struct{}, in *gofuse.SetXAttrIn, name string, value []byte) gofuse.Status {
	_, n, number := fs.known(in.NodeId, name)
	if number != 0 {
		return gofuse.ENOTSUP
	}
	short := strings.TrimPrefix(name, attributePrefix)
	if short == "lock_delay" {
		return status(fs.delays.set(n.id(), string(value)))
	}
	var names lockfs.ACLNames
	switch short {
	case "acl.read":
		names.Read = string(value)
	case "acl.write":
		names.Write = string(value)
	case "acl.change_acl":
		names.ChangeACL = string(value)
	default:
		return gofuse.ENOTSUP
	}
	r := fs.begin(cancel, &in.InHeader, whileAlive)
	defer r.end()
	return fs.answer(r, "setxattr", n.path, gone(fs.setACL(r, n, short, names)))
}

// setACL changes one name of ACLs. It cannot be taken away; that there is none can be said again, which
// is what a copy of a file does.
func (fs *fileSystem) setACL(ctx context.Context, n node, short string, names lockfs.ACLNames) error {
	t, err := fs.tenancy(ctx, n.cell)
	if err != nil {
		return err
	}
	if names != (lockfs.ACLNames{}) {
		_, err = t.SetACL(ctx, n.path, n.instance, names)
		return err
	}
	st, err := t.Stat(ctx, n.path, n.instance)
	if err == nil && len(attributes[short].read(&record{Stat: st})) > 0 {
		return syscall.EINVAL
	}
	return err
}

// RemoveXAttr removes nothing: what there is is part of the record.
func (fs *fileSystem) RemoveXAttr(_ <-chan struct{}, header *gofuse.InHeader, name string) gofuse.Status {
	if _, _, number := fs.known(header.NodeId, name); number != 0 {
		return status(number)
	}
	return gofuse.ENOTSUP
}

// lockDelays are the lock-delays that were set for single nodes, for later locks of this mount.
type lockDelays struct {
	mu    sync.Mutex
	nodes map[uint64]time.Duration // by nodeid
}

// lockDelaysMax bounds them; they are kept until the mount ends.
const lockDelaysMax = 1 << 16

func newLockDelays() *lockDelays { return &lockDelays{nodes: make(map[uint64]time.Duration)} }

func (d *lockDelays) of(id uint64, otherwise time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delay, ok := d.nodes[id]; ok {
		return delay
	}
	return otherwise
}

// set takes a number of seconds, from 0 to 60, with or without an s.
func (d *lockDelays) set(id uint64, value string) syscall.Errno {
	seconds, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), "s"), 10, 32)
	delay := time.Duration(seconds) * time.Second
	if err != nil || delay > lockfs.MaxLockDelay {
		return syscall.EINVAL
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.nodes[id]; !ok && len(d.nodes) >= lockDelaysMax {
		return syscall.ENOSPC
	}
	d.nodes[id] = delay
	return 0
}
