package fuse

import (
	"math"
	"math/rand/v2"
	"testing"

	"lockfs"
)

func TestRanges(t *testing.T) {
	const free, sh, ex = lockfs.Free, lockfs.Shared, lockfs.Exclusive
	for _, test := range []struct {
		name string
		set  []byteRange
		mode lockfs.Mode
		left int
	}{
		{"nothing", nil, free, 0},
		{"all of the file, unlocked", []byteRange{{0, math.MaxUint64, ex}, {0, math.MaxUint64, free}}, free, 0},
		{"the kernel's end of file is any end", []byteRange{{0, math.MaxInt64 - 1, ex}, {0, math.MaxInt64, free}}, free, 0},
		{"a part unlocked", []byteRange{{0, 9, ex}, {0, 4, free}}, ex, 1},
		{"the rest too", []byteRange{{0, 9, ex}, {0, 4, free}, {5, 9, free}}, free, 0},
		{"a hole", []byteRange{{0, 9, ex}, {3, 5, free}}, ex, 2},
		{"the hole filled", []byteRange{{0, 9, ex}, {3, 5, free}, {3, 5, ex}}, ex, 1},
		{"the stronger part unlocked", []byteRange{{0, 9, sh}, {3, 5, ex}, {0, 5, free}}, sh, 1},
		{"weaker all over", []byteRange{{0, 9, ex}, {20, 29, ex}, {0, math.MaxUint64, sh}}, sh, 1},
		{"not locked at all", []byteRange{{10, 19, ex}, {0, 9, free}, {20, 29, free}}, ex, 1},
	} {
		var r ranges
		for _, b := range test.set {
			r = r.with(b)
		}
		if r.mode() != test.mode || len(r) != test.left {
			t.Errorf("%s: %v: mode %v, want %v and %d left", test.name, r, r.mode(), test.mode, test.left)
		}
	}
}

// TestRangesAreBytes sets random ranges beside an array with a mode for each byte.
func TestRangesAreBytes(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var bytes [32]lockfs.Mode
		var r ranges
		for range 20 {
			start := random.Uint64N(32)
			b := byteRange{start, start + random.Uint64N(32-start), lockfs.Mode(random.UintN(3))}
			r = r.with(b)
			for i := b.start; i <= b.end; i++ {
				bytes[i] = b.mode
			}
			compareBytes(t, seed, r, bytes)
		}
	}
}

func compareBytes(t *testing.T, seed uint64, r ranges, bytes [32]lockfs.Mode) {
	t.Helper()
	var got [32]lockfs.Mode
	last := -1
	for _, b := range r {
		if int(b.start) <= last || b.mode == lockfs.Free {
			t.Fatalf("seed %d: %v is not in order", seed, r)
		}
		for i := b.start; i <= b.end; i++ {
			got[i] = b.mode
		}
		last = int(b.end)
	}
	if got != bytes {
		t.Fatalf("seed %d: %v, want %v", seed, r, bytes)
	}
}
