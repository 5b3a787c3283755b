package raft

import (
	"log/slog"
	"path/filepath"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// TestMarkBehindTheCut has a checkpoint that was taken before the log went on in a new segment, and
// was marked after. When the segments before are removed nothing is missing.
func TestMarkBehindTheCut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	open := func() Storage {
		t.Helper()
		s, err := OpenWAL(dir, 1, 2, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	mark := func(index uint64) {
		t.Helper()
		must(s.Mark(&raftpb.SnapshotMetadata{Index: &index, Term: new(uint64(1)), ConfState: &raftpb.ConfState{Voters: []uint64{2}}}))
	}
	data := make([]byte, 3<<20) // three fill a segment, and the next begins with the fourth
	for i := uint64(1); i <= 8; i++ {
		state := &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: new(i)}
		must(s.Append(state, []*raftpb.Entry{{Term: new(uint64(1)), Index: new(i), Data: data}}))
		if i == 3 {
			mark(2)
		}
	}
	mark(6)
	must(s.Compact(5))
	if names, err := segments(dir); err != nil || len(names) == 0 || names[0] == "0000000000000000-0000000000000000.wal" {
		t.Fatalf("the first segment is still there: %v, %v", names, err)
	}
	must(s.Close())
	s = open()
	if last, err := s.LastIndex(); err != nil || last != 8 {
		t.Errorf("after opening it again the log ends with %d, %v", last, err)
	}
	must(s.Close())
}
