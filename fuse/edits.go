package fuse

import (
	"slices"

	"lockfs/client"
)

// edits is what an open file has changed and not yet committed, as a list that the cell applies at
// its place in the log.
//
// An open file that cut the file to nothing knows all that the file is to be: it keeps that whole,
// as image, and each commit sets the whole content. So what it writes is never mixed with what
// others write, however often it commits.
type edits struct {
	whole   bool
	image   []byte          // where whole
	changes []client.Change // where not whole, in order
	dirty   bool            // there is something to commit
}

// Bounds of a list of changes; a master takes no more than 1 MiB at once. Writes that follow or
// cover each other are one change, so only a program that writes all over a file comes near; what
// it wrote is then committed early.
const (
	changesMax      = 1024
	changesBytesMax = 512 << 10
)

// full reports whether the list should be committed before so many bytes are added.
func (e *edits) full(bytes int) bool {
	for _, change := range e.changes {
		bytes += len(change.Data)
	}
	return len(e.changes) >= changesMax || len(e.changes) > 0 && bytes > changesBytesMax
}

// onlyAdds reports whether the list keeps everything that is there, so that it can be applied to
// any version.
func (e *edits) onlyAdds() bool {
	return !e.whole && !slices.ContainsFunc(e.changes, func(c client.Change) bool {
		return c.Kind != client.Append && c.Kind != client.Extend
	})
}

// write adds data, which is not empty, at offset.
func (e *edits) write(offset int64, data []byte) {
	e.dirty = true
	if e.whole {
		e.image = overwrite(e.image, offset, data)
		return
	}
	if last := e.last(client.WriteAt); last != nil {
		if offset >= last.Offset && offset <= last.Offset+int64(len(last.Data)) {
			last.Data = overwrite(last.Data, offset-last.Offset, data)
			return
		}
	}
	e.changes = append(e.changes, client.Change{Kind: client.WriteAt, Offset: offset, Data: slices.Clone(data)})
}

// append adds data, which is not empty, at the end, wherever that is when it is committed.
func (e *edits) append(data []byte) {
	if e.whole && e.dirty {
		e.image = append(e.image, data...)
		return
	}
	e.addOn()
	if last := e.last(client.Append); last != nil {
		last.Data = append(last.Data, data...)
		return
	}
	e.changes = append(e.changes, client.Change{Kind: client.Append, Data: slices.Clone(data)})
}

// addOn goes on to add to whatever is there. What this open file may have set as a whole is
// committed, and others may have written since.
func (e *edits) addOn() { e.whole, e.image, e.dirty = false, nil, true }

// truncate makes the file size bytes long.
func (e *edits) truncate(size int64) {
	e.dirty = true
	switch {
	case size == 0:
		e.whole, e.image, e.changes = true, nil, nil
	case e.whole:
		e.image = resize(e.image, size)
	default:
		if last := e.last(client.Truncate); last != nil && last.Offset >= size {
			last.Offset = size
			return
		}
		e.changes = append(e.changes, client.Change{Kind: client.Truncate, Offset: size})
	}
}

// extend makes the file at least size bytes long.
func (e *edits) extend(size int64) {
	if e.whole && e.dirty {
		e.image = resize(e.image, max(size, int64(len(e.image))))
		return
	}
	e.addOn()
	e.changes = append(e.changes, client.Change{Kind: client.Extend, Offset: size})
}

// last returns the last change if it is of the given kind.
func (e *edits) last(kind client.ChangeKind) *client.Change {
	if n := len(e.changes); n > 0 && e.changes[n-1].Kind == kind {
		return &e.changes[n-1]
	}
	return nil
}

// list returns what to send. It shares nothing with later edits.
func (e *edits) list() []client.Change {
	if !e.whole {
		changes := slices.Clone(e.changes)
		for i := range changes {
			changes[i].Data = slices.Clone(changes[i].Data)
		}
		return changes
	}
	changes := []client.Change{{Kind: client.Truncate}}
	if len(e.image) > 0 {
		changes = append(changes, client.Change{Kind: client.WriteAt, Data: slices.Clone(e.image)})
	}
	return changes
}

// end is where the file ends at least, once these edits are applied to a file of size bytes.
func (e *edits) end(size int64) int64 {
	if e.whole {
		return int64(len(e.image))
	}
	for _, change := range e.changes {
		switch change.Kind {
		case client.Append:
			size += int64(len(change.Data))
		case client.WriteAt:
			size = max(size, change.Offset+int64(len(change.Data)))
		case client.Truncate:
			size = change.Offset
		case client.Extend:
			size = max(size, change.Offset)
		}
	}
	return size
}

// apply returns content with the changes made, as the cell will make them. It leaves content as it
// is.
func apply(content []byte, changes []client.Change) []byte {
	content = slices.Clone(content)
	for _, change := range changes {
		switch change.Kind {
		case client.Append:
			content = append(content, change.Data...)
		case client.WriteAt:
			content = overwrite(content, change.Offset, change.Data)
		case client.Truncate:
			content = resize(content, change.Offset)
		case client.Extend:
			content = resize(content, max(change.Offset, int64(len(content))))
		}
	}
	return content
}

// overwrite puts data at offset into content, with zeroes in between where content is shorter.
func overwrite(content []byte, offset int64, data []byte) []byte {
	if end := offset + int64(len(data)); end > int64(len(content)) {
		content = resize(content, end)
	}
	copy(content[offset:], data)
	return content
}

// resize cuts content, or lengthens it by zeroes.
func resize(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size]
	}
	return append(content, make([]byte, size-int64(len(content)))...)
}
