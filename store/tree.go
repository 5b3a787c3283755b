package store

import (
	"bytes"

	"github.com/cespare/xxhash/v2"

	"lockfs"
	"lockfs/store/storepb"
)

// parse checks a name in a command, which may come from any client.
func (s *State) parse(name string) (lockfs.Path, error) {
	p, err := lockfs.ParsePath(name)
	if err != nil {
		return "", err
	}
	if p.Cell() != s.cell.name {
		return "", failed(lockfs.ErrCell, "this is %s, %s is not in it", s.cell.name, p)
	}
	return p, nil
}

// locate finds the node that a command names.
func (s *State) locate(name string, instance uint64) (*node, error) {
	p, err := s.parse(name)
	if err != nil {
		return nil, err
	}
	return s.find("", p, instance)
}

// find returns the node at p, of that instance unless it is 0. It fails with ErrStale where an
// instance is named and is there no more, and otherwise with ErrNotExist, ErrNotDir (what should be
// a directory above it is a file) or ErrCell.
func (s *State) find(op string, p lockfs.Path, instance uint64) (*node, error) {
	n := s.nodes[p]
	switch {
	case n != nil && (instance == 0 || instance == n.instance):
		return n, nil
	case p.Cell() != s.cell.name:
		return nil, &lockfs.Error{Op: op, Path: p, Kind: lockfs.ErrCell, Detail: "this is " + s.cell.name}
	case instance != 0:
		return nil, &lockfs.Error{Op: op, Path: p, Kind: lockfs.ErrStale}
	}
	for above := p.Parent(); above != ""; above = above.Parent() {
		if n := s.nodes[above]; n != nil && n.kind == lockfs.File {
			return nil, &lockfs.Error{Op: op, Path: p, Kind: lockfs.ErrNotDir, Detail: string(above)}
		}
	}
	return nil, &lockfs.Error{Op: op, Path: p, Kind: lockfs.ErrNotExist}
}

// newNode returns a permanent node without contents. It starts above every generation that a
// deleted node ever had, so that nothing drawn from one is valid for it.
func (s *State) newNode(p lockfs.Path, kind lockfs.Type) *node {
	s.cell.lastInstance++
	return &node{path: p, kind: kind, instance: s.cell.lastInstance, mtime: s.cell.time,
		contentGeneration: s.cell.contentFloor + 1, lockGeneration: s.cell.lockFloor + 1,
		aclGeneration: s.cell.aclFloor + 1, checksum: xxhash.Sum64(nil)}
}

func (s *State) create(session uint64, c *storepb.Create) (*storepb.Result, error) {
	p, err := s.parse(c.Path)
	if err != nil {
		return nil, err
	}
	kind := lockfs.Type(c.Type)
	if c.Type != uint32(lockfs.File) && c.Type != uint32(lockfs.Dir) || kind == lockfs.Dir && len(c.Content) > 0 {
		return nil, failed(lockfs.ErrInvalid, "neither a file nor a directory without contents")
	}
	if n := s.nodes[p]; n != nil {
		return s.createExisting(n, c)
	}
	dir, err := s.parent(p)
	if err != nil {
		return nil, err
	}
	acl, err := s.mergeACL(dir.acl, c.Acl)
	if err != nil {
		return nil, err
	}
	n := s.newNode(p, kind)
	n.acl = acl
	n.setContent(bytes.Clone(c.Content))
	if c.Ephemeral {
		n.ownerSession = session
	}
	if err := s.insert(n); err != nil {
		return nil, err
	}
	return &storepb.Result{Stat: s.statMessage(n), Created: true}, nil
}

func (s *State) createExisting(n *node, c *storepb.Create) (*storepb.Result, error) {
	switch {
	case c.Exclusive:
		return nil, lockfs.ErrExist
	case n.kind == lockfs.Dir && c.Type == uint32(lockfs.File):
		return nil, lockfs.ErrIsDir
	case n.kind == lockfs.File && c.Type == uint32(lockfs.Dir):
		return nil, lockfs.ErrNotDir
	}
	return &storepb.Result{Stat: s.statMessage(n)}, nil
}

// parent returns the directory that a new node at p would be in.
func (s *State) parent(p lockfs.Path) (*node, error) {
	dir, err := s.find("", p.Parent(), 0)
	if err != nil {
		return nil, err
	}
	if dir.kind != lockfs.Dir {
		return nil, failed(lockfs.ErrNotDir, "%s", dir.path)
	}
	return dir, nil
}

// insert puts a new node into its directory, which is there, if there is room for it.
func (s *State) insert(n *node) error {
	dir, limits := s.nodes[n.path.Parent()], &s.cell.limits
	switch {
	case int64(len(n.content)) > limits.FileBytes:
		return failed(lockfs.ErrTooLarge, "at most %d bytes", limits.FileBytes)
	case s.cell.nodes >= limits.Nodes:
		return failed(lockfs.ErrNoSpace, "the cell has its %d nodes", limits.Nodes)
	case len(n.content) > 0 && s.cell.bytes+int64(len(n.content)) > limits.Bytes:
		return failed(lockfs.ErrNoSpace, "the cell has %d of its %d bytes", s.cell.bytes, limits.Bytes)
	case int64(len(s.children[dir.path])) >= limits.Children:
		return failed(lockfs.ErrNoSpace, "%s has its %d names", dir.path, limits.Children)
	case dir.ownerSession != 0 && n.ownerSession == 0:
		// It would keep the directory from going when its session ends.
		return failed(lockfs.ErrInvalid, "%s is ephemeral and takes ephemeral nodes only", dir.path)
	}
	s.setNode(n.path, n)
	s.touch(dir)
	s.noteOrphan(n.path) // an orphan that was renamed is one again
	return nil
}

// touch notes that a directory gained or lost a name, which is its content.
func (s *State) touch(dir *node) {
	next := *dir
	next.contentGeneration++
	next.mtime = max(next.mtime, s.cell.time)
	s.setNode(dir.path, &next)
}

// remove deletes a node, and with it its lock.
func (s *State) remove(n *node) {
	c := &s.cell
	c.contentFloor = max(c.contentFloor, n.contentGeneration)
	c.lockFloor = max(c.lockFloor, n.lockGeneration)
	c.aclFloor = max(c.aclFloor, n.aclGeneration)
	s.setNode(n.path, nil)
	s.touch(s.nodes[n.path.Parent()])
}

func (s *State) delete(d *storepb.Delete) (*storepb.Result, error) {
	n, err := s.locate(d.Path, d.Instance)
	if err != nil {
		return nil, err
	}
	switch {
	case d.Type > uint32(lockfs.Dir):
		return nil, failed(lockfs.ErrInvalid, "neither a file nor a directory")
	case d.Type == uint32(lockfs.File) && n.kind == lockfs.Dir:
		return nil, lockfs.ErrIsDir
	case d.Type == uint32(lockfs.Dir) && n.kind == lockfs.File:
		return nil, lockfs.ErrNotDir
	case n.path.IsCellRoot():
		return nil, failed(lockfs.ErrInvalid, "the root of a cell cannot be deleted")
	case len(s.children[n.path]) > 0:
		return nil, lockfs.ErrNotEmpty
	}
	last := s.statMessage(n)
	s.remove(n)
	return &storepb.Result{Stat: last}, nil
}

func (s *State) deleteOrphan(d *storepb.DeleteOrphan) (*storepb.Result, error) {
	n, err := s.locate(d.Path, d.Instance)
	if err != nil {
		return nil, err
	}
	if !s.orphaned(n) {
		return nil, failed(lockfs.ErrInvalid, "not an ephemeral node of a session that has ended")
	}
	return s.delete(&storepb.Delete{Path: d.Path, Instance: d.Instance})
}

// rename moves a file: onto another it is a write of its contents there, to a free name a new node.
func (s *State) rename(r *storepb.Rename) (*storepb.Result, error) {
	source, err := s.locate(r.From, r.FromInstance)
	if err != nil {
		return nil, err
	}
	to, err := s.parse(r.To)
	if err != nil {
		return nil, err
	}
	target := s.nodes[to]
	if target != nil || r.ToInstance != 0 {
		if target, err = s.find("", to, r.ToInstance); err != nil {
			return nil, err
		}
	}
	switch {
	case source.kind == lockfs.Dir:
		return nil, failed(lockfs.ErrIsDir, "%s: only files can be renamed", source.path)
	case target != nil && r.NoReplace:
		return nil, lockfs.ErrExist
	case target == nil:
		return s.renameTo(source, to)
	case target.kind == lockfs.Dir:
		return nil, failed(lockfs.ErrIsDir, "%s", to)
	case target == source:
		return &storepb.Result{Stat: s.statMessage(source)}, nil
	}
	s.remove(source)
	return s.write(target, source.content)
}

// renameTo makes a new node of a file. It keeps its ACL names and, if it is ephemeral, its session.
func (s *State) renameTo(source *node, to lockfs.Path) (*storepb.Result, error) {
	if _, err := s.parent(to); err != nil {
		return nil, err
	}
	s.remove(source)
	n := s.newNode(to, lockfs.File)
	n.acl, n.ownerSession, n.content, n.checksum = source.acl, source.ownerSession, source.content, source.checksum
	if err := s.insert(n); err != nil {
		return nil, err
	}
	return &storepb.Result{Stat: s.statMessage(n), Created: true}, nil
}

// setContent takes the contents for the node's own: nobody changes them any more.
func (n *node) setContent(content []byte) {
	if len(content) == 0 {
		content = nil
	}
	n.content, n.checksum = content, xxhash.Sum64(content)
}
