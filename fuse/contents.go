package fuse

import (
	"syscall"

	"lockfs"
	"lockfs/client"
)

// contents is what one open file has read and written: the version that it reads from, and the
// edits that it has not committed. It is a plain structure, guarded by its file's mutex; whoever
// uses it fetches versions and sends edits.
//
// Reading. A pass over a file sees one version. A read that goes on where the last one ended reads
// on in the version pinned by it; any other, and the first after a lock was granted, takes the
// current version and pins it. The end is told once from the pinned version; only a read after
// that looks for newer contents. While there are edits that stand on a version, that stays.
//
// Writing. What was cut to nothing is set as a whole. Appends and blind writes are applied to
// whatever is there. An open file that has read a version, and writes, commits onto that version
// only.
type contents struct {
	pinned     []byte // shared, never changed
	generation uint64 // of pinned; 0 where nothing is pinned
	next       int64  // where the last read ended; -1 before the first
	atEnd      bool   // and it was told that this is the end
	known      uint64 // the newest generation heard of
	seen       uint64 // the generation last read or made on top of it; 0 where this open file knows none

	edits   edits
	sending *batch // taken and not yet settled
	size    int64  // of the file when last heard of; for what an append must not pass
	limit   int64  // that no file of its cell passes, when it was opened

	// When to commit.
	writers map[uint64]struct{} // lock owners (processes) who wrote since the last commit
	anyone  bool                // one who gave no owner wrote
	bare    bool                // cut by its open, and nothing written: see flush
	cutAt   uint64              // the generation that the open cut
	closed  bool                // for the last time
	flushed bool                // a bare one saw a flush,
	flusher uint64              // of this owner
	asked   bool                // it asked for a lock, granted or not
}

// batch is what one commit sends.
type batch struct {
	edits
	changes      []client.Change
	ifGeneration uint64

	writers map[uint64]struct{}
	anyone  bool
	bare    bool
}

// opened says that the open file was made by an open, of a file of size bytes and that generation,
// where limit is the most, that cut it to nothing or did not.
func (c *contents) opened(size, limit int64, generation uint64, cut bool) {
	c.size, c.limit, c.next = size, limit, -1
	if cut {
		c.edits.truncate(0)
		c.bare, c.cutAt = true, generation
	}
}

// needsFetch reports whether a read at offset must have the current version first.
func (c *contents) needsFetch(offset int64) bool {
	if c.edits.whole && c.pending() {
		return false
	}
	if c.generation == 0 {
		return true
	}
	return !c.pending() && (offset != c.next || c.atEnd)
}

// needsVersion reports whether there is none to look at, as at the start of a pass or after its end.
func (c *contents) needsVersion() bool { return c.needsFetch(c.next) }

// pending reports whether there are edits, sent or not, that are not settled.
func (c *contents) pending() bool { return c.edits.dirty || c.sending != nil }

// standing reports whether the next write, unless it is an append, would be committed onto the
// version last seen, and no other.
func (c *contents) standing() bool { return c.seen != 0 && !c.pending() && !c.edits.whole }

// pin takes a version that was read from the cell. It returns false if this open file has committed
// a newer one meanwhile: then the current version has to be fetched again.
func (c *contents) pin(content []byte, generation uint64) bool {
	if generation < c.known {
		return false
	}
	c.known = generation
	if c.edits.whole {
		if c.pending() {
			return true // written while the version was fetched
		}
		c.edits = edits{} // it has now seen what others made of the file
	}
	c.pinned, c.generation = content, generation
	c.size = int64(len(content))
	if c.seen == 0 || !c.pending() || c.edits.onlyAdds() {
		c.seen = generation // else what was written stands on what was read before
	}
	return true
}

// unpin makes the next read take the current version: a lock was granted. Edits keep the version
// that they stand on.
func (c *contents) unpin() {
	if !c.pending() {
		c.pinned, c.generation = nil, 0
	}
}

// read copies to dest what stands at offset, for this open file, and returns how much that is.
func (c *contents) read(dest []byte, offset int64) int {
	view := c.view()
	n := 0
	if offset < int64(len(view)) {
		n = copy(dest, view[offset:])
	}
	c.next = offset + int64(n)
	c.atEnd = n == 0 && len(dest) > 0
	return n
}

// view is the file as this open file shows it: the pinned version under its own edits.
func (c *contents) view() []byte {
	view := c.pinned
	switch {
	case c.edits.whole && c.edits.dirty:
		return c.edits.image
	case c.sending != nil && c.sending.whole:
		view = c.sending.image
	case c.sending != nil:
		view = apply(view, c.sending.changes)
	}
	if len(c.edits.changes) > 0 {
		view = apply(view, c.edits.changes)
	}
	return view
}

// length is the size of the file as this open file shows it, where it differs from the cell's.
func (c *contents) length(size int64) int64 {
	if c.sending != nil {
		size = c.sending.end(size)
	}
	if c.edits.dirty {
		size = c.edits.end(size)
	}
	return size
}

// writer is who wrote: a process, by the owner of its locks, where the kernel says it.
type writer struct {
	owner  uint64
	known  bool
	thread uint32 // serves stat alone
}

// write adds data at offset, or at the end. It fails with lockfs.ErrTooLarge where the file would
// be; for an append that goes by the last size heard of.
func (c *contents) write(offset int64, data []byte, atEnd bool, by writer) error {
	if len(data) == 0 {
		return nil
	}
	end := offset + int64(len(data))
	if atEnd {
		end = c.length(c.size) + int64(len(data))
	}
	if end > c.limit || end < 0 {
		return lockfs.ErrTooLarge
	}
	if atEnd {
		c.edits.append(data)
	} else {
		c.edits.write(offset, data)
	}
	c.wrote(by)
	return nil
}

// truncate makes the file size bytes long, by a call of its own and not by the open.
func (c *contents) truncate(size int64, by writer) error {
	if size > c.limit {
		return lockfs.ErrTooLarge
	}
	c.edits.truncate(size)
	c.wrote(by)
	return nil
}

// extend makes the file at least size bytes long.
func (c *contents) extend(size int64, by writer) error {
	if size > c.limit {
		return lockfs.ErrTooLarge
	}
	c.edits.extend(size)
	c.wrote(by)
	return nil
}

// clear zeroes what the file has, as this open file shows it, between two offsets.
func (c *contents) clear(from, to int64, by writer) error {
	if to = min(to, int64(len(c.view()))); from >= to {
		return nil
	}
	return c.write(from, make([]byte, to-from), false, by)
}

// seek finds where the data or the hole at offset or behind it begins: all of a file is data, and
// its end a hole. A read that starts where data was found goes on in the version that was looked at.
func (c *contents) seek(offset int64, hole bool) (int64, error) {
	end := int64(len(c.view()))
	switch {
	case offset >= end:
		return 0, syscall.ENXIO
	case hole:
		return end, nil
	}
	c.next = offset
	return offset, nil
}

// touched says that the same contents were written again, and are now of this generation. Who has
// seen the generation before has seen them.
func (c *contents) touched(generation uint64) {
	if c.generation != 0 && c.generation+1 == generation {
		c.generation = generation
	}
	if c.seen != 0 && c.seen+1 == generation {
		c.seen = generation
	}
	c.known = max(c.known, generation)
}

func (c *contents) wrote(by writer) {
	c.bare = false
	if !by.known {
		c.anyone = true
		return
	}
	if c.writers == nil {
		c.writers = make(map[uint64]struct{})
	}
	c.writers[by.owner] = struct{}{}
}

// flush says whether a process that closes the file, or a copy of its descriptor, commits it.
//
// A shell's redirection closes the first descriptor before anything is written, and every child
// process closes what it inherited. So only a process that wrote commits, and what an open cut and
// nobody wrote to is committed at the second flush of the process that made the first, or when who
// opened the file has it open no more, which the caller can see. That would still let exec 9>file, as
// a lock file is opened, wipe the file: so not if a lock was asked for.
func (c *contents) flush(owner uint64) bool {
	_, wrote := c.writers[owner]
	switch {
	case wrote || c.anyone:
		return true
	case !c.bare:
		return false
	case !c.flushed:
		c.flushed, c.flusher = true, owner
		return false
	}
	return c.flusher == owner && !c.asked
}

// cut reports whether there is nothing to commit but that the open cut the file.
func (c *contents) cut() bool { return c.bare && !c.asked && c.edits.dirty }

// written reports whether there is anything to commit that was written, and not only cut.
func (c *contents) written() bool { return c.edits.dirty && !c.bare }

// owed reports whether there is anything to commit at all; a cut is given up by asking for a lock.
func (c *contents) owed() bool { return c.edits.dirty && !(c.bare && c.asked) }

// take returns all edits, to be committed, and starts a new list. It is followed by committed,
// returned or lost.
func (c *contents) take() *batch {
	b := &batch{edits: c.edits, changes: c.edits.list(), writers: c.writers, anyone: c.anyone, bare: c.bare}
	switch {
	case c.bare && c.closed:
		// The close has returned, and what others have written since is not what was cut.
		b.ifGeneration = c.cutAt
	case !c.edits.whole && !c.edits.onlyAdds():
		b.ifGeneration = c.seen
	}
	if c.edits.whole {
		b.image = b.changes[len(b.changes)-1].Data // the copy, which later writes do not touch
	}
	c.edits.changes, c.edits.dirty = nil, false
	c.writers, c.anyone, c.bare = nil, false, false
	c.sending = b
	return b
}

// committed says that what was taken is now the cell's, and of which generation and size the file is.
func (c *contents) committed(generation uint64, size int64) {
	b := c.sending
	alone := generation == c.seen+1 // nobody else changed what this open file has seen
	switch {
	case b.whole:
		c.pinned, c.generation = b.image, generation
	case c.generation != 0 && alone && c.generation == c.seen:
		c.pinned, c.generation = apply(c.pinned, b.changes), generation
	default:
		c.pinned, c.generation = nil, 0
	}
	if c.seen != 0 && (alone || b.whole) {
		c.seen = generation
	}
	c.size, c.known = size, max(c.known, generation)
	c.sending = nil
}

// returned says that what was taken was not committed, and stays to be.
func (c *contents) returned() {
	b := c.sending
	c.sending = nil
	switch {
	case c.edits.whole:
		// The image has all that was taken, or was cut to nothing since.
	case b.whole:
		c.edits = edits{whole: true, image: apply(b.image, c.edits.changes)}
	default:
		c.edits.changes = append(b.edits.changes, c.edits.changes...)
	}
	c.edits.dirty = true
	c.bare = b.bare && len(c.writers) == 0 && !c.anyone
	c.anyone = c.anyone || b.anyone
	for owner := range b.writers {
		c.wrote(writer{owner: owner, known: true})
	}
}

// lost says that what was taken will never be committed, and with it goes what came after.
func (c *contents) lost() {
	c.sending = nil
	c.discard()
}

// discard drops all edits that were not taken, and reports whether there were any.
func (c *contents) discard() bool {
	some := c.edits.dirty
	c.edits = edits{}
	c.writers, c.anyone, c.bare = nil, false, false
	return some
}
