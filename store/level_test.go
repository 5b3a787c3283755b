package store

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lockfs"
	"lockfs/store/storepb"
)

// nextVersion is a version to come: ClearDelay is a command that it brings, and so is writing only to
// contents of a generation.
var nextVersion = knowledge{level: Level + 1, since: map[protoreflect.FullName]uint32{
	"lockfs.store.Command.clear_delay": Level + 1,
	"lockfs.store.Edit.if_generation":  Level + 1,
}}

func raise(level uint32) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_RaiseLevel{RaiseLevel: &storepb.RaiseLevel{Level: level}}}
}

// asUnknown is a command as a version before it reads it.
func asUnknown(t *testing.T, c *storepb.Command) *storepb.Command {
	t.Helper()
	payload := c.ProtoReflect().Get(c.ProtoReflect().WhichOneof(c.ProtoReflect().Descriptor().Oneofs().Get(0))).Message()
	read := &storepb.Command{}
	if err := proto.Unmarshal(protowire.AppendBytes(protowire.AppendTag(nil, 500, protowire.BytesType), marshal(nil, payload.Interface())), read); err != nil {
		t.Fatal(err)
	}
	return read
}

// A replica of the next version runs next to one of this. What the next brings waits for the level,
// and the level waits for whoever does not know it.
func TestNextLevel(t *testing.T) {
	d := livedIn(t)
	next, old := d.state, New(testCell)
	next.knows = nextVersion
	replay(t, old, d.log, 0)
	checkSame(t, "old and new", old, next)

	// While the level is low the new command does nothing where it is known, and stops who does not
	// know it.
	added := clearDelay("/ls/ny1/dir", 99)
	before := recordsBut(next, 0)
	if r := d.try(added); lockfs.Kind(r.Kind) != lockfs.ErrInvalid || r.Detail != "a command of level 2, the cell is at level 1" {
		t.Errorf("a command before its level: %v", r)
	}
	if !bytes.Equal(recordsBut(next, 0), before) {
		t.Error("a command before its level left something behind")
	}
	checkStays(t, old, asUnknown(t, added), "Command has a field or a kind that this version does not know")

	// A mutation's number stays open until then.
	newEdit := d.number(1, edit(&storepb.Edit{Path: "/ls/ny1/dir/file", IfGeneration: 1, Changes: []*storepb.Change{appended("x")}}))
	if r := d.try(newEdit); lockfs.Kind(r.Kind) != lockfs.ErrInvalid || r.Number != newEdit.GetMutation().Number {
		t.Errorf("a mutation before its level: %v", r)
	}
	if _, done := next.Done(1, newEdit.GetMutation().Number); done {
		t.Error("the number of a mutation before its level is done")
	}
	old, _, err := ReadSnapshot(bytes.NewReader(snapshotOf(t, next)), testCell) // what it holds is as old as it is
	if err != nil {
		t.Fatal(err)
	}

	// The level is raised: the old one stops there, before it could misread anything.
	checkStays(t, old, raise(2), "the cell is at level 2, this version knows levels up to 1")
	d.do(raise(2))
	if next.Level() != 2 || old.Level() != 1 {
		t.Errorf("levels %d and %d", next.Level(), old.Level())
	}
	checkStays(t, old, asUnknown(t, added), "does not know")
	d.do(added)
	if d.do(newEdit); len(next.Delays()) != 0 {
		t.Errorf("the new command did not clear %v", next.Delays())
	}
}

// checkStays fails unless the command stops a replica and leaves it as it was.
func checkStays(t *testing.T, s *State, c *storepb.Command, want string) {
	t.Helper()
	before := snapshotOf(t, s)
	_, err := s.Apply(s.Applied()+1, &storepb.Proposal{Epoch: s.Epoch(), Time: 1 << 60, Commands: []*storepb.Command{
		{Command: &storepb.Command_CreateSession{CreateSession: &storepb.CreateSession{}}}, c}})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: error %v, want %q", c, err, want)
	}
	if !bytes.Equal(snapshotOf(t, s), before) {
		t.Errorf("%v: the replica stopped, and something is done", c)
	}
}

func TestRaiseLevel(t *testing.T) {
	for name, test := range map[string]struct {
		knows  uint32
		raises []uint32
		stops  string
		level  uint32 // after it
	}{
		"the next":                {2, []uint32{2}, "", 2},
		"two in a row":            {3, []uint32{2, 3}, "", 3},
		"one that it has":         {2, []uint32{1}, "", 1},
		"back":                    {2, []uint32{2, 1}, "", 2},
		"one too far":             {9, []uint32{3}, "", 1},
		"far past what is known":  {1, []uint32{9}, "", 1}, // which nobody does, so nobody need stop
		"none":                    {2, []uint32{0}, "", 1},
		"past what is known":      {1, []uint32{2}, "the cell is at level 2, this version knows levels up to 1", 1},
		"past it in two steps":    {2, []uint32{2, 3}, "the cell is at level 3, this version knows levels up to 2", 1},
		"past it, among refusals": {2, []uint32{9, 2, 2, 3}, "the cell is at level 3, this version knows levels up to 2", 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, seeded := range []bool{true, false} {
				s := New(testCell)
				s.knows.level = test.knows
				p := &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{office(&storepb.Seed{ClusterId: 7})}}
				if seeded {
					replay(t, s, []*storepb.Proposal{p}, 0)
					p = &storepb.Proposal{Epoch: 1}
				}
				for _, level := range test.raises {
					p.Commands = append(p.Commands, raise(level))
				}
				_, err := s.Apply(2, p)
				if (err == nil) != (test.stops == "") || err != nil && err.Error() != "apply entry 2: "+test.stops {
					t.Errorf("error %v, want %q", err, test.stops)
				}
				if want := test.level; s.Level() != want && (seeded || err == nil) {
					t.Errorf("level %d, want %d", s.Level(), want)
				}
			}
		})
	}
	d := livedIn(t)
	p := &storepb.Proposal{Epoch: d.epoch - 1, Commands: []*storepb.Command{raise(2)}}
	if out, err := d.state.Apply(d.index+1, p); err != nil || !out.Refused {
		t.Errorf("a level raised by a master of before: %+v, %v", out, err)
	}
}

// What a cell of the next level wrote is whole, and not for this version.
func TestRecordsOfTheNextLevel(t *testing.T) {
	d := livedIn(t)
	d.state.knows = nextVersion
	d.do(raise(2))
	stream := snapshotOf(t, d.state)
	path := filepath.Join(t.TempDir(), "store")
	db := savedDB(t, path, d.state)
	refused := func(what string, err error) {
		t.Helper()
		const want = ": the cell is at level 2, this version knows levels up to 1"
		if err == nil || !strings.HasSuffix(err.Error(), want) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err := db.Load(testCell)
	refused("load", err)
	_, _, err = db.Restore(bytes.NewReader(stream), testCell)
	refused("restore", err)
	_, _, err = ReadSnapshot(bytes.NewReader(stream), testCell)
	refused("read", err)
	_, err = CheckSnapshot(bytes.NewReader(stream))
	refused("check", err)
	_, err = Rebirth(bytes.NewReader(stream), testCell, 8)
	refused("rebirth", err)

	db.PretendLevel(2)
	for what, from := range map[string]func() (*State, []byte, error){
		"load":    func() (*State, []byte, error) { return db.Load(testCell) },
		"restore": func() (*State, []byte, error) { return db.Restore(bytes.NewReader(stream), testCell) },
	} {
		s, _, err := from()
		if err != nil {
			t.Fatalf("%s where the level is known: %v", what, err)
		}
		checkSame(t, what, s, d.state)
		if s.Knows() != 2 {
			t.Errorf("%s: knows level %d", what, s.Knows())
		}
	}
	if s, _, err := openDB(t, filepath.Join(t.TempDir(), "new")).Load(testCell); err != nil || s.Knows() != Level {
		t.Errorf("a new file: knows level %d, %v", s.Knows(), err)
	}
}
