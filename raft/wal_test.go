package raft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/testing/protocmp"
)

// smallSegments makes the segments of this test that small, so that it can have many.
func smallSegments(t testing.TB, bytes int64) {
	setSegmentBytes()
	was := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = bytes
	t.Cleanup(func() { wal.SegmentSizeBytes = was })
}

func TestSegmentsAreOf8MiB(t *testing.T) {
	setSegmentBytes()
	if wal.SegmentSizeBytes != 8<<20 {
		t.Fatalf("segments are of %d bytes", wal.SegmentSizeBytes)
	}
}

// writeLog makes a log of some segments: 60 entries in 30 appends, a mark at 10 and one at 30.
func writeLog(t testing.TB, dir string) contents {
	s := walDisk{dir}.open(t)
	defer s.Close()
	for i := uint64(1); i < 60; i += 2 {
		if err := s.Append(hardState(1, 0, i), entries(i, i+1, 1)); err != nil {
			t.Fatal(err)
		}
		if i == 11 || i == 31 {
			if err := s.Mark(markAt(i-1, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := read(t, s)
	c.Mark = nil // it is Start that marks again
	return c
}

// records returns where the records of a segment begin, and last where they end.
func records(t testing.TB, path string) []int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	decoder, record := wal.NewDecoder(fileutil.NewFileReader(f)), new(walpb.Record)
	offsets := []int64{0}
	for {
		err := decoder.Decode(record)
		if err != nil && len(offsets) > 1 {
			return offsets
		}
		if record.GetType() == wal.CrcType {
			decoder.UpdateCRC(record.GetCrc())
		}
		offsets = append(offsets, decoder.LastOffset())
	}
}

func copyLog(t testing.TB, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func segmentPaths(t testing.TB, dir string) []string {
	t.Helper()
	names, err := segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		names[i] = filepath.Join(dir, names[i])
	}
	return names
}

// A log whose last segment was cut anywhere, as a crash does it, opens with what was whole, and
// goes on from there.
func TestWALCutAnywhere(t *testing.T) {
	smallSegments(t, 2048)
	whole, cut := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "cut")
	all := writeLog(t, whole)
	paths := segmentPaths(t, whole)
	last := filepath.Base(paths[len(paths)-1])
	offsets := records(t, filepath.Join(whole, last))
	header := 3 // checksum, owner, hard state: they were written before the segment got its name
	try := func(at, size int64) int {
		copyLog(t, whole, cut)
		path := filepath.Join(cut, last)
		if err := errors.Join(os.Truncate(path, at), os.Truncate(path, max(at, size))); err != nil {
			t.Fatal(err)
		}
		return checkCut(t, cut, all, fmt.Sprintf("cut at %d, size %d", at, size))
	}
	most := 0
	for n := header; n < len(offsets); n++ {
		// The file was made longer as it was written,
		at := offsets[n]
		most = max(most, try(at, at))
		if n+1 < len(offsets) {
			for _, at := range []int64{at + 4, at + 8, (at + offsets[n+1]) / 2, offsets[n+1] - 1} {
				try(at, at)
			}
		}
		// or it has its full size, and ends with zeros from a sector on.
		try(max(at&^511, offsets[header]), 2048)
	}
	if most != len(all.Entries) {
		t.Errorf("the uncut log gave %d entries of %d", most, len(all.Entries))
	}
}

// checkCut opens a cut log, checks that it has the beginning of all and can go on, and returns how
// many entries it had.
func checkCut(t *testing.T, dir string, all contents, how string) int {
	t.Helper()
	s, err := OpenWAL(dir, testCluster, 1, testLogger("wal"))
	if err != nil {
		t.Fatalf("%s: %v", how, err)
	}
	c := read(t, s)
	n := len(c.Entries)
	if diff := cmp.Diff(all.Entries[:n], c.Entries, protocmp.Transform()); diff != "" {
		t.Fatalf("%s: other entries:\n%s", how, diff)
	}
	next := uint64(n) + 1
	if err := s.Append(hardState(2, 0, next), entries(next, next, 2)); err != nil {
		t.Fatalf("%s: %v", how, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = walDisk{dir}.open(t)
	defer s.Close()
	if c := read(t, s); len(c.Entries) != n+1 || c.State.GetTerm() != 2 {
		t.Fatalf("%s: what was appended after it is not there: %d entries, %v", how, len(c.Entries), c.State)
	}
	return n
}

// A log that was damaged elsewhere is refused: opened shorter than it was, this member would vote
// without entries that it told others it has. Only the padding of a record does not matter.
func TestWALDamagedAnywhere(t *testing.T) {
	smallSegments(t, 2048)
	whole, bad := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "bad")
	all := writeLog(t, whole)
	refused, same := 0, 0
	for i, path := range segmentPaths(t, whole) {
		offsets := records(t, path)
		end := offsets[len(offsets)-1]
		if i == len(segmentPaths(t, whole))-1 {
			end = offsets[len(offsets)-3] // of the last two records nobody can say whether they were ever whole
		}
		for at := int64(0); at < end; at += 11 {
			for _, flip := range []byte{0xff, 0x01} {
				copyLog(t, whole, bad)
				flipByte(t, filepath.Join(bad, filepath.Base(path)), at, flip)
				s, err := OpenWAL(bad, testCluster, 1, testLogger("wal"))
				if err != nil {
					refused++
					continue
				}
				c := read(t, s)
				c.Mark = nil
				s.Close()
				if diff := cmp.Diff(all, c, protocmp.Transform()); diff != "" {
					t.Fatalf("byte %d of segment %d changed by %#x: the log opens with\n%s", at, i, flip, diff)
				}
				same++
			}
		}
	}
	t.Logf("%d damages refused, %d without consequence", refused, same)
	if refused < 10*same {
		t.Error("too many are without consequence")
	}
}

func flipByte(t *testing.T, path string, at int64, flip byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= flip
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// Zeros in the place of a whole sector, with good records after it, are no torn end either.
func TestWALHole(t *testing.T) {
	smallSegments(t, 16384)
	dir := filepath.Join(t.TempDir(), "log")
	writeLog(t, dir)
	paths := segmentPaths(t, dir)
	f, err := os.OpenFile(paths[len(paths)-1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 512), 1024); err != nil {
		t.Fatal(err)
	}
	f.Close()
	_, err = OpenWAL(dir, testCluster, 1, testLogger("wal"))
	if err == nil || !strings.Contains(err.Error(), "good ones follow") {
		t.Errorf("a log with a hole: %v", err)
	}
}

func TestWALRemovesOldSegments(t *testing.T) {
	smallSegments(t, 2048)
	dir := filepath.Join(t.TempDir(), "log")
	s := walDisk{dir}.open(t)
	for i := uint64(1); i <= 2000; i++ {
		if err := s.Append(hardState(1, 0, i), entries(i, i, 1)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if err := s.Mark(markAt(i, 1)); err != nil {
				t.Fatal(err)
			}
			if err := s.Compact(i - min(i, 150)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(segmentPaths(t, dir)); n > 16 {
		t.Errorf("%d segments are kept of 150 entries", n)
	}
	before := read(t, s)
	s.Close()
	s = walDisk{dir}.open(t)
	defer s.Close()
	after := read(t, s)
	if n := len(after.Entries); after.First > 1901 || after.First+uint64(n) != 2001 || after.State.GetCommit() != 2000 {
		t.Errorf("opened again, the log is from %d with %d entries, it was from %d with %d, and the last mark but one at 1900",
			after.First, n, before.First, len(before.Entries))
	}
}

// The hard state is at the head of each segment, also of those made after the log was opened
// anew and before the hard state changed again: the older segments will go.
func TestWALKeepsTheVote(t *testing.T) {
	smallSegments(t, 2048)
	dir := filepath.Join(t.TempDir(), "log")
	s := walDisk{dir}.open(t)
	if err := s.Append(hardState(7, 3, 1), entries(1, 1, 1)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = walDisk{dir}.open(t)
	for i := uint64(2); i <= 500; i++ {
		if err := s.Append(nil, entries(i, i, 7)); err != nil {
			t.Fatal(err)
		}
	}
	paths := segmentPaths(t, dir)
	if len(paths) < 3 {
		t.Fatalf("only %d segments", len(paths))
	}
	s.Close()
	found, err := surveySegments(dir, []string{filepath.Base(paths[len(paths)-1])})
	if err != nil {
		t.Fatal(err)
	}
	if found.state.GetTerm() != 7 || found.state.GetVote() != 3 {
		t.Errorf("the last segment begins without the vote: %v", found.state)
	}
}

func TestWALRefuses(t *testing.T) {
	smallSegments(t, 2048)
	for name, test := range map[string]struct {
		make func(t *testing.T, dir string)
		want string
	}{
		"another member": {func(t *testing.T, dir string) { otherLog(t, dir, testCluster, 2) },
			"it belongs to member 2 of cluster ce11, and this is member 1 of cluster ce11"},
		"another cluster": {func(t *testing.T, dir string) { otherLog(t, dir, 7, 1) },
			"it belongs to member 1 of cluster 7, and this is member 1 of cluster ce11"},
		"other files": {func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600)
		}, "the folder holds other files (notes.txt) and no log"},
		"already open": {func(t *testing.T, dir string) {
			s := walDisk{dir}.open(t)
			t.Cleanup(func() { s.Close() })
		}, "another process has it open"},
		"a missing segment": {func(t *testing.T, dir string) {
			writeLog(t, dir)
			os.Remove(segmentPaths(t, dir)[1])
		}, "records are missing before it"},
		"a missing first segment": {func(t *testing.T, dir string) {
			writeLog(t, dir)
			for _, path := range segmentPaths(t, dir)[:len(segmentPaths(t, dir))-1] {
				os.Remove(path)
			}
		}, "there is no mark from which to read it"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			test.make(t, dir)
			_, err := OpenWAL(dir, testCluster, 1, testLogger("wal"))
			if err == nil || !strings.HasSuffix(err.Error(), test.want) && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func otherLog(t *testing.T, dir string, cluster, id uint64) {
	s, err := OpenWAL(dir, cluster, id, testLogger("wal"))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// Replicas on real logs: they go down and come back, one needs a snapshot, and what is old goes.
func TestCellOnWAL(t *testing.T) {
	smallSegments(t, 16<<10)
	dir := t.TempDir()
	tune := func(cfg *Config) {
		short(cfg)
		log, err := OpenWAL(filepath.Join(dir, fmt.Sprint(cfg.ID), "log"), cfg.ClusterID, cfg.ID, testLogger("wal"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Storage = log
	}
	for i := range 3 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i+1)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	inCell(t, 3, tune, func(t *testing.T, c *cell) {
		for round := range 6 {
			leader := c.leader()
			straggler := c.hosts[leader.ID%3]
			c.halt(straggler, func() {})
			for i := range 50 {
				c.propose(leader, fmt.Sprint(round, i, strings.Repeat("x", 200)))
			}
			c.start(straggler)
			c.agree(50 * (round + 1))
			c.halt(leader, func() { // like one that is killed
				leader.machine.mu.Lock()
				leader.machine.crashed = true
				leader.machine.mu.Unlock()
			})
			c.start(leader)
			c.agree(50 * (round + 1))
		}
		for _, h := range c.hosts {
			if n := len(segmentPaths(t, filepath.Join(dir, fmt.Sprint(h.ID), "log"))); n > 4 {
				t.Errorf("%s keeps %d segments", h.Name, n)
			}
		}
	})
}
