package main

import (
	"testing"

	"lockfs/master"
)

// TestLogBytes: on a small disk, what a log may grow to between checkpoints, with two segments in
// use and one in reserve, leaves the room that a master needs.
func TestLogBytes(t *testing.T) {
	for _, test := range []struct{ total, checkpoint, tail int64 }{
		{0, 1 << 20, 1 << 20}, // the system does not tell
		{64 << 20, 4 << 20, 4 << 20},
		{256 << 20, 16 << 20, 16 << 20},
		{1 << 40, 16 << 20, 32 << 20},
	} {
		checkpoint, tail := logBytes(master.Disk{Total: test.total})
		if int64(checkpoint) != test.checkpoint || int64(tail) != test.tail {
			t.Errorf("on a disk of %d bytes: a checkpoint after %d and %d before it, want %d and %d",
				test.total, checkpoint, tail, test.checkpoint, test.tail)
		}
	}
}
