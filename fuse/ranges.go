package fuse

import (
	"math"

	"lockfs"
)

// ranges are the bytes of a file that one owner has locked, in order and without overlaps. What
// they are for is to know when the last of them is gone, and in which mode the rest is: to anybody
// else a locked byte is a locked file.
type ranges []byteRange

// byteRange is locked from start to end, both included. The last byte of any file is wholeFile's.
type byteRange struct {
	start, end uint64
	mode       lockfs.Mode
}

// rangesMax bounds what one owner may have; a range more is refused.
const rangesMax = 1024

// wholeFile is what flock locks. The kernel says 2^63-1 for the end of any file.
var wholeFile = byteRange{start: 0, end: math.MaxUint64}

// with returns r as it is once b was locked, or unlocked where its mode is Free. It leaves r as it is.
func (r ranges) with(b byteRange) ranges {
	if b.end >= math.MaxInt64-1 {
		b.end = math.MaxUint64
	}
	var out ranges
	placed := b.mode == lockfs.Free
	place := func() {
		if !placed {
			out, placed = out.join(b), true
		}
	}
	for _, have := range r {
		if have.start < b.start {
			out = out.join(byteRange{have.start, min(have.end, b.start-1), have.mode})
		}
		if have.end > b.end {
			place()
			out = out.join(byteRange{max(have.start, b.end+1), have.end, have.mode})
		} else if have.start >= b.start {
			place()
		}
	}
	place()
	return out
}

// join adds b, which lies behind all others.
func (r ranges) join(b byteRange) ranges {
	if n := len(r); n > 0 && r[n-1].mode == b.mode && r[n-1].end+1 == b.start {
		r[n-1].end = b.end
		return r
	}
	return append(r, b)
}

// mode is the strongest of all, Free where there are none.
func (r ranges) mode() lockfs.Mode {
	mode := lockfs.Free
	for _, b := range r {
		mode = max(mode, b.mode)
	}
	return mode
}
