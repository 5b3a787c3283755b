package store

import (
	"bytes"
	"math"

	"lockfs"
	"lockfs/store/storepb"
)

func (s *State) edit(e *storepb.Edit) (*storepb.Result, error) {
	n, err := s.locate(e.Path, e.Instance)
	if err != nil {
		return nil, err
	}
	if n.kind == lockfs.Dir {
		return nil, lockfs.ErrIsDir
	}
	if err := n.checkGeneration(e.IfGeneration); err != nil {
		return nil, err
	}
	content, err := edited(n.content, e.Changes, s.cell.limits.FileBytes)
	if err != nil {
		return nil, err
	}
	return s.write(n, content)
}

// checkGeneration fails with ErrChanged unless the contents are of that generation; 0 is any.
func (n *node) checkGeneration(generation uint64) error {
	if generation != 0 && generation != n.contentGeneration {
		return failed(lockfs.ErrChanged, "%s is at generation %d, not %d", n.path, n.contentGeneration, generation)
	}
	return nil
}

// write gives a file other contents, which the node takes for its own. They count as changed even if
// they are the same.
func (s *State) write(n *node, content []byte) (*storepb.Result, error) {
	if grows := int64(len(content) - len(n.content)); grows > 0 && s.cell.bytes+grows > s.cell.limits.Bytes {
		return nil, failed(lockfs.ErrNoSpace, "the cell has %d of its %d bytes", s.cell.bytes, s.cell.limits.Bytes)
	}
	next := *n
	next.setContent(content)
	next.contentGeneration++
	next.mtime = max(n.mtime, s.cell.time)
	s.setNode(n.path, &next)
	return &storepb.Result{Stat: s.statMessage(&next)}, nil
}

// edited returns contents after the changes, in order, in memory of their own.
func edited(old []byte, changes []*storepb.Change, limit int64) ([]byte, error) {
	most, err := mostBytes(int64(len(old)), changes, limit)
	if err != nil {
		return nil, err
	}
	content := append(make([]byte, 0, most), old...)
	for _, change := range changes {
		switch c := change.Change.(type) {
		case *storepb.Change_Truncate:
			content = resized(content, c.Truncate)
		case *storepb.Change_Extend:
			content = resized(content, max(int64(len(content)), c.Extend))
		case *storepb.Change_Append:
			content = append(content, c.Append...)
		case *storepb.Change_WriteAt:
			content = writtenAt(content, c.WriteAt.Offset, c.WriteAt.Data)
		}
	}
	if int64(len(content)) < most {
		content = bytes.Clone(content) // and let go of the room that it needed on the way
	}
	return content, nil
}

// mostBytes returns the largest size that contents have on their way through the changes. Each of
// them is held to the limit, not only the last, so that no command makes a replica allocate more
// than a file may hold.
func mostBytes(size int64, changes []*storepb.Change, limit int64) (int64, error) {
	most := size
	for _, change := range changes {
		next, err := sizeAfter(size, change)
		if err != nil {
			return 0, err
		}
		if next > size && next > limit {
			return 0, failed(lockfs.ErrTooLarge, "%d bytes, at most %d", next, limit)
		}
		size, most = next, max(most, next)
	}
	return most, nil
}

func sizeAfter(size int64, change *storepb.Change) (int64, error) {
	switch c := change.Change.(type) {
	case *storepb.Change_Truncate:
		if c.Truncate < 0 {
			return 0, failed(lockfs.ErrInvalid, "size %d", c.Truncate)
		}
		return c.Truncate, nil
	case *storepb.Change_Extend:
		if c.Extend < 0 {
			return 0, failed(lockfs.ErrInvalid, "size %d", c.Extend)
		}
		return max(size, c.Extend), nil
	case *storepb.Change_WriteAt:
		offset, length := c.WriteAt.Offset, int64(len(c.WriteAt.Data))
		if offset < 0 || offset > math.MaxInt64-length {
			return 0, failed(lockfs.ErrInvalid, "%d bytes at offset %d", length, offset)
		}
		if length == 0 {
			return size, nil // no data leave contents as they are, wherever they are written
		}
		return max(size, offset+length), nil
	}
	return size + int64(len(change.GetAppend())), nil
}

// writtenAt returns content with data at offset, and zeroes between its end and there.
func writtenAt(content []byte, offset int64, data []byte) []byte {
	if len(data) == 0 {
		return content
	}
	content = resized(content, max(int64(len(content)), offset+int64(len(data))))
	copy(content[offset:], data)
	return content
}

// resized returns content, which has room for it, cut or lengthened by zeroes to size.
func resized(content []byte, size int64) []byte {
	old := len(content)
	content = content[:size]
	if len(content) > old {
		clear(content[old:])
	}
	return content
}

// setPermanence makes a node ephemeral, the session's, or permanent. No permanent node may come to be
// in an ephemeral directory: it would keep that from going when its session ends.
func (s *State) setPermanence(session uint64, p *storepb.SetPermanence) (*storepb.Result, error) {
	n, err := s.locate(p.Path, p.Instance)
	if err != nil {
		return nil, err
	}
	owner := uint64(0)
	if p.Ephemeral {
		owner = session
	}
	switch {
	case owner == n.ownerSession:
		return &storepb.Result{Stat: s.statMessage(n)}, nil
	case n.path.IsCellRoot():
		return nil, failed(lockfs.ErrInvalid, "the root of a cell is permanent")
	case owner == 0 && s.nodes[n.path.Parent()].ownerSession != 0:
		return nil, failed(lockfs.ErrInvalid, "%s is ephemeral and takes ephemeral nodes only", n.path.Parent())
	case owner != 0 && s.hasPermanent(n.path):
		return nil, failed(lockfs.ErrInvalid, "%s has permanent nodes in it", n.path)
	}
	next := *n
	next.ownerSession = owner
	s.setNode(n.path, &next)
	return &storepb.Result{Stat: s.statMessage(&next)}, nil
}

// hasPermanent reports whether any node in a directory is permanent.
func (s *State) hasPermanent(dir lockfs.Path) bool {
	for child := range s.children[dir] {
		if s.nodes[child].ownerSession == 0 {
			return true
		}
	}
	return false
}

func (s *State) setACL(a *storepb.SetACL) (*storepb.Result, error) {
	n, err := s.locate(a.Path, a.Instance)
	if err != nil {
		return nil, err
	}
	acl, err := s.mergeACL(n.acl, a.Acl)
	if err != nil {
		return nil, err
	}
	if *acl == *n.acl {
		return &storepb.Result{Stat: s.statMessage(n)}, nil
	}
	next := *n
	next.acl = acl
	next.aclGeneration++
	s.setNode(n.path, &next)
	return &storepb.Result{Stat: s.statMessage(&next)}, nil
}

// mergeACL returns old with the names that change gives; each is a path in this cell. What has not
// changed is shared.
func (s *State) mergeACL(old *lockfs.ACLNames, change *storepb.ACLNames) (*lockfs.ACLNames, error) {
	next := *old
	for _, one := range []struct {
		name *string
		to   string
	}{{&next.Read, change.GetRead()}, {&next.Write, change.GetWrite()}, {&next.ChangeACL, change.GetChangeAcl()}} {
		if one.to == "" {
			continue
		}
		if _, err := s.parse(one.to); err != nil {
			return nil, err
		}
		*one.name = one.to
	}
	if next == *old {
		return old, nil
	}
	return &next, nil
}
