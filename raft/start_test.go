package raft

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"
)

func somePosition(t *testing.T, index, term uint64) []byte {
	t.Helper()
	b, err := position{index: index, term: term, configuration: configuration{conf: &raftpb.ConfState{Voters: []uint64{1}},
		members: byID([]Member{{ID: 1, Name: "r1", Address: "r1"}})}}.marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStartRefuses(t *testing.T) {
	one := []Member{{ID: 1, Name: "r1", Address: "r1"}}
	logOf := func(what ...func(Storage) error) *MemoryDisk {
		d := NewMemoryDisk()
		s := d.Open()
		for _, do := range what {
			if err := do(s); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	six := func(s Storage) error { return s.Append(hardState(2, 0, 6), entries(1, 6, 2)) }
	marked := func(s Storage) error { return s.Mark(markAt(5, 2)) }
	compacted := func(s Storage) error { return s.Compact(4) }
	for name, test := range map[string]struct {
		disk     *MemoryDisk
		members  []Member
		position []byte
		want     string
	}{
		"not a member":            {logOf(), []Member{{ID: 2}}, nil, "it is not among the members of the new cell"},
		"an id twice":             {logOf(), append([]Member{{ID: 1, Name: "again"}}, one...), nil, "the id 1 of member r1 of the new cell is 0 or taken"},
		"an id of zero":           {logOf(), append([]Member{{Name: "nobody"}}, one...), nil, "the id 0 of member nobody of the new cell is 0 or taken"},
		"a state without a log":   {logOf(), one, somePosition(t, 9, 2), "its log is gone"},
		"a log without its state": {logOf(six, marked, compacted), one, nil, "the log begins with entry 5, and there is no state"},
		"an older state":          {logOf(six, marked, compacted), one, somePosition(t, 3, 2), "the state is at entry 3, and the log begins with entry 5"},
		"no position":             {logOf(six), one, []byte("?"), "read the position of a checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := layCell(t, 1, 1, func(cfg *Config) {
					cfg.Storage, cfg.Members, cfg.Position = test.disk.Open(), test.members, test.position
				})
				_, err := Start(c.config(c.hosts[0]))
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %s", err, test.want)
				}
			})
		})
	}
}

// What a crash can leave on the disk of a member that has a checkpoint at entry 20.
func TestStartAfterACrash(t *testing.T) {
	for name, leave := range map[string]func(Storage) error{
		"the log ends before the checkpoint": func(s Storage) error {
			return s.Append(hardState(2, 0, 3), entries(1, 3, 2))
		},
		"it was told of the checkpoint, but not that all up to it is committed": func(s Storage) error {
			return errors.Join(s.Append(hardState(2, 0, 3), entries(1, 3, 2)), s.Mark(markAt(20, 3)))
		},
		"it has the entries, but not that they are committed": func(s Storage) error {
			list := entries(1, 22, 3)
			for _, e := range list {
				e.Data = nil // as a new leader's first entry
			}
			return s.Append(hardState(3, 1, 17), list)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := layCell(t, 1, 1, nil)
				defer c.stop()
				h := c.hosts[0]
				if err := leave(h.disk.Open()); err != nil {
					t.Fatal(err)
				}
				h.machine = newRecorder(t, image{At: somePosition(t, 20, 3), Applied: []string{"before"}, Index: 20})
				c.ready = func(h *host) { h.machine.index = 20 }
				c.start(h)
				c.propose(c.leader(), "after")
				if s := h.replica.Status(); s.Term < 4 || s.Committed < 22 {
					t.Errorf("it went on with %+v", s)
				}
			})
		})
	}
}

// What a crash can leave on the disk of a member whose very first start it met.
func TestHalfStarted(t *testing.T) {
	for name, leave := range map[string]func(Storage) error{
		"nothing":              func(Storage) error { return nil },
		"entries, but no vote": func(s Storage) error { return s.Append(nil, entries(1, 2, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := layCell(t, 3, 1, nil)
				defer c.stop()
				for _, h := range c.hosts {
					if err := leave(h.disk.Open()); err != nil {
						t.Fatal(err)
					}
					c.start(h)
				}
				c.propose(c.leader(), "a")
				c.agree(1)
			})
		})
	}
}

func TestPositionRoundTrip(t *testing.T) {
	want := position{index: 7, term: 3, configuration: configuration{
		conf:    &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}},
		members: map[uint64]Member{1: {ID: 1, Name: "a", Address: "a:1"}, 3: {3, "c", "c:1", 77, 2, 6}}, removed: []uint64{9, 8}}}
	b, err := want.marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parsePosition(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.index != 7 || got.term != 3 || !cmp.Equal(got.members, want.members) || got.conf.Equivalent(want.conf) != nil ||
		!cmp.Equal(got.removed, want.removed) {
		t.Errorf("it came back as %+v", got)
	}
	again, err := got.marshal()
	if err != nil || string(again) != string(b) {
		t.Errorf("written again it is different: %v", err)
	}
}

func TestChanged(t *testing.T) {
	two := configuration{members: byID([]Member{{ID: 1, Name: "a", Address: "a:1"}, {ID: 2, Name: "b", Address: "b:1"}})}
	c := Member{ID: 3, Name: "c", Address: "c:1", Replaces: 2}
	add, learn := raftpb.ConfChangeAddNode, raftpb.ConfChangeAddLearnerNode
	update, remove := raftpb.ConfChangeUpdateNode, raftpb.ConfChangeRemoveNode
	known := func(m Member, incarnation uint64) Member { m.Incarnation = incarnation; return m }
	one, learner := two.members[1], c
	learner.Added = 9
	for name, test := range map[string]struct {
		changes []change
		want    []Member
		removed []uint64
	}{
		"the cell begins with it":      {[]change{{add, c}}, []Member{one, two.members[2], c}, nil},
		"a learner":                    {[]change{{learn, c}}, []Member{one, two.members[2], learner}, nil},
		"promoted it is the same":      {[]change{{learn, c}, {add, known(c, 5)}}, []Member{one, two.members[2], learner}, nil},
		"its data folder":              {[]change{{update, known(one, 5)}}, []Member{known(one, 5), two.members[2]}, nil},
		"another one is not its own":   {[]change{{update, known(one, 5)}, {update, known(one, 6)}}, []Member{known(one, 5), two.members[2]}, nil},
		"of nobody":                    {[]change{{update, known(c, 5)}}, []Member{one, two.members[2]}, nil},
		"removed":                      {[]change{{remove, two.members[2]}}, []Member{one}, []uint64{2}},
		"the last one removed is last": {[]change{{remove, two.members[2]}, {remove, one}}, nil, []uint64{2, 1}},
	} {
		got := two
		for i, do := range test.changes {
			data, err := changeData(do.kind, do.member)
			if err != nil {
				t.Fatal(err)
			}
			change, err := parseChange(&raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Data: data})
			if err != nil {
				t.Fatal(err)
			}
			if got, err = got.changed(change, 9+uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if !cmp.Equal(sortedMembers(got.members), test.want) || !cmp.Equal(got.removed, test.removed) {
			t.Errorf("%s: %v, removed %v", name, got.members, got.removed)
		}
		if len(two.members) != 2 || two.members[1] != one {
			t.Errorf("%s: the members of before were changed: %v", name, two)
		}
	}
	for name, bad := range map[string]*raftpb.ConfChange{
		"nobody is known to the log":  {Type: add.Enum(), NodeId: new(uint64(3)), Context: []byte("?")},
		"this version does not do it": {Type: raftpb.ConfChangeType(99).Enum(), NodeId: new(uint64(1))},
	} {
		if _, err := two.changed(bad, 9); err == nil {
			t.Errorf("accepted: %s", name)
		}
	}
	many := two
	for id := range uint64(removedMax + 1) {
		many, _ = many.changed(&raftpb.ConfChange{Type: remove.Enum(), NodeId: new(id)}, 9)
	}
	if len(many.removed) != removedMax || many.removed[0] != 1 {
		t.Errorf("%d former members are remembered, from %d on", len(many.removed), many.removed[0])
	}
}
