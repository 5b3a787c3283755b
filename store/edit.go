package store

import (
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

// write gives a file other contents, which count as changed even if they are the same.
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

// edited returns contents after the changes, in order. The size is bounded after each of them, not
// only after the last, so that no command makes a replica allocate more than a file may hold.
func edited(old []byte, changes []*storepb.Change, limit int64) ([]byte, error) {
	content := append([]byte(nil), old...)
	for _, change := range changes {
		var offset int64
		var data []byte
		switch c := change.Change.(type) {
		case *storepb.Change_Truncate:
			var err error
			if content, err = resized(content, c.Truncate, limit); err != nil {
				return nil, err
			}
			continue
		case *storepb.Change_Append:
			offset, data = int64(len(content)), c.Append
		case *storepb.Change_WriteAt:
			offset, data = c.WriteAt.Offset, c.WriteAt.Data
		}
		var err error
		if content, err = writtenAt(content, offset, data, limit); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// writtenAt returns content with data at offset, and zeroes between its end and there. No data
// leave it as it is, wherever they are written.
func writtenAt(content []byte, offset int64, data []byte, limit int64) ([]byte, error) {
	size := int64(len(data))
	if offset < 0 || offset > math.MaxInt64-size {
		return nil, failed(lockfs.ErrInvalid, "%d bytes at offset %d", size, offset)
	}
	if size == 0 {
		return content, nil
	}
	if end := offset + size; end > int64(len(content)) {
		var err error
		if content, err = resized(content, end, limit); err != nil {
			return nil, err
		}
	}
	copy(content[offset:], data)
	return content, nil
}

// resized returns content cut, or lengthened by zeroes, to size.
func resized(content []byte, size, limit int64) ([]byte, error) {
	old := int64(len(content))
	switch {
	case size < 0:
		return nil, failed(lockfs.ErrInvalid, "size %d", size)
	case size <= old:
		return content[:size], nil
	case size > limit:
		return nil, failed(lockfs.ErrTooLarge, "%d bytes, at most %d", size, limit)
	}
	content = append(content, make([]byte, size-old)...)
	return content, nil
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
