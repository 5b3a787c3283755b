package raft

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/testing/protocmp"
)

func entry(index, term uint64, data string) *raftpb.Entry {
	return &raftpb.Entry{Index: new(index), Term: new(term), Data: []byte(data), Type: raftpb.EntryNormal.Enum()}
}

func entries(first, last, term uint64) []*raftpb.Entry {
	var list []*raftpb.Entry
	for i := first; i <= last; i++ {
		list = append(list, entry(i, term, strings.Repeat("data", int(i*7%50))))
	}
	return list
}

func hardState(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

func markAt(index, term uint64) *raftpb.SnapshotMetadata {
	return &raftpb.SnapshotMetadata{Index: new(index), Term: new(term), ConfState: &raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(false)}}
}

// contents are all that can be read from a storage.
type contents struct {
	State   *raftpb.HardState
	Mark    *raftpb.SnapshotMetadata
	First   uint64
	Before  uint64 // term of the entry before
	Entries []*raftpb.Entry
}

func read(t testing.TB, s Storage) contents {
	t.Helper()
	var c contents
	state, _, err := s.InitialState()
	snapshot, err2 := s.Snapshot()
	first, last, err3 := bounds(s)
	before, err4 := s.Term(first - 1)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	c = contents{State: state, Mark: snapshot.GetMetadata(), First: first, Before: before}
	if first <= last {
		if c.Entries, err = s.Entries(first, last+1, noLimit); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// A disk is a place whose log can be closed and opened again.
type disk interface{ open(testing.TB) Storage }

type walDisk struct{ dir string }

func (d walDisk) open(t testing.TB) Storage {
	t.Helper()
	s, err := OpenWAL(d.dir, testCluster, 1, testLogger("wal"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (d *MemoryDisk) open(testing.TB) Storage { return d.Open() }

func disks(t *testing.T) map[string]disk {
	smallSegments(t, 1<<20)
	return map[string]disk{"wal": walDisk{filepath.Join(t.TempDir(), "log")}, "memory": NewMemoryDisk()}
}

// Both storages do the same, and after each step a storage opened anew has what the old one had.
// What Compact removes from memory may come back, from the mark that is kept.
func TestStorageStory(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, d := range disks(t) {
		t.Run(name, func(t *testing.T) {
			s := d.open(t)
			again := func() {
				t.Helper()
				before := read(t, s)
				must(s.Close())
				s = d.open(t)
				after := read(t, s)
				if after.First < before.First { // a log on a disk begins with a segment
					after.Entries = after.Entries[before.First-after.First:]
					after.First, after.Before, after.Mark = before.First, before.Before, before.Mark
				}
				if before.Mark.GetIndex() > after.Mark.GetIndex() && after.Mark.GetIndex() == after.First-1 {
					after.Mark = before.Mark // Start marks again
				}
				if diff := cmp.Diff(before, after, protocmp.Transform()); diff != "" {
					t.Fatalf("after it was opened again:\n%s", diff)
				}
			}
			again()
			must(s.Append(hardState(1, 0, 3), entries(1, 3, 1)))
			again()
			must(s.Append(nil, entries(4, 9, 2)))
			again()
			must(s.Append(hardState(3, 2, 3), nil))
			again()
			must(s.Append(hardState(3, 2, 8), entries(6, 8, 3))) // instead of 6 to 9
			if _, last, _ := bounds(s); last != 8 {
				t.Fatalf("the log ends with %d, want 8", last)
			}
			again()
			must(s.Mark(markAt(7, 3)))
			must(s.Mark(markAt(4, 2))) // older: of no account
			again()
			must(s.Compact(5))
			if first, _, _ := bounds(s); first != 6 {
				t.Fatalf("the log begins with %d, want 6", first)
			}
			must(s.Compact(3)) // is gone already
			again()
			if err := s.Compact(99); err == nil {
				t.Fatal("entries beyond the end were dropped")
			}
			must(s.Mark(markAt(20, 5))) // a snapshot from elsewhere: the log is replaced
			again()
			must(s.Append(hardState(5, 0, 20), nil))
			if c := read(t, s); c.First != 21 || c.Before != 5 || len(c.Entries) != 0 {
				t.Fatalf("after a mark beyond the log it is %+v", c)
			}
			again()
			must(s.Append(hardState(5, 0, 22), entries(21, 24, 5)))
			again()
			must(s.Mark(markAt(23, 6))) // another 23 than is there
			must(s.Append(hardState(6, 0, 24), entries(24, 24, 6)))
			again()
			must(s.Close())
		})
	}
}

func TestSpool(t *testing.T) {
	data := make([]byte, 9<<20)
	for i := range data {
		data[i] = byte(rand.Int())
	}
	for name, d := range disks(t) {
		t.Run(name, func(t *testing.T) {
			s := d.open(t)
			defer s.Close()
			spool, err := s.Spool()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(spool, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(spool)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("read %d bytes of %d, error %v", len(got), len(data), err)
			}
			if err := spool.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(t.TempDir(), "*", "*.tmp")); len(left) > 0 {
		t.Errorf("spools are left: %v", left)
	}
}

func TestMemoryDiskForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewMemoryDisk()
		d.SyncTime = 10 * time.Millisecond
		s := d.Open()
		if err := s.Append(hardState(1, 0, 1), entries(1, 2, 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Append(hardState(1, 0, 2), nil); err != nil { // need not become durable yet
			t.Fatal(err)
		}
		lost := make(chan error)
		go func() { lost <- s.Append(hardState(2, 1, 2), entries(3, 3, 2)) }()
		time.Sleep(5 * time.Millisecond)
		d.Crash()
		if err := <-lost; err == nil {
			t.Error("an Append that the crash met returned well")
		}
		for what, err := range map[string]error{
			"Append": s.Append(nil, entries(3, 3, 1)), "Mark": s.Mark(markAt(2, 1)), "Compact": s.Compact(0),
		} {
			if err == nil {
				t.Errorf("%s works after a crash", what)
			}
		}
		c := read(t, d.Open())
		if c.State.GetTerm() != 1 || c.State.GetCommit() != 1 || len(c.Entries) != 2 {
			t.Errorf("after the crash the disk has %+v", c)
		}
	})
}
