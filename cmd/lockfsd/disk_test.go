package main

import (
	"testing"

	"lockfs/master"
)

// TestTailBytes: what is kept of the log of a small disk, with two segments in use and one in
// reserve, leaves the room that a master needs.
func TestTailBytes(t *testing.T) {
	for _, test := range []struct {
		total int64
		want  uint64
	}{
		{0, 1 << 20}, // the system does not tell
		{64 << 20, 4 << 20},
		{256 << 20, 16 << 20},
		{1 << 40, 32 << 20},
	} {
		if have := tailBytes(master.Disk{Total: test.total}); have != test.want {
			t.Errorf("on a disk of %d bytes %d are kept, want %d", test.total, have, test.want)
		}
	}
}
