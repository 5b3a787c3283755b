package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"lockfs/store/storepb"
)

func checkHash(index, hash uint64) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_CheckHash{CheckHash: &storepb.CheckHash{Index: index, Hash: hash}}}
}

// A check changes no record, and leaves a note which is no part of them.
func TestHashNotes(t *testing.T) {
	d := livedIn(t)
	if notes := d.state.HashNotes(); len(notes) != 0 {
		t.Errorf("notes before any check: %v", notes)
	}
	before := recordsBut(d.state, 0)
	for i := range uint64(hashNotesMax + 5) {
		d.do(checkHash(0, 0))
		notes := d.state.HashNotes()
		if want := (HashNote{d.index, d.state.Hash()}); notes[len(notes)-1] != want || len(notes) != int(min(i+1, hashNotesMax)) {
			t.Fatalf("%d notes, the last %v, want %v", len(notes), notes[len(notes)-1], want)
		}
	}
	if first := d.state.HashNotes()[0].Index; first != d.index-hashNotesMax+1 {
		t.Errorf("the first note is of entry %d, the last of %d", first, d.index)
	}
	if !bytes.Equal(recordsBut(d.state, 0), before) {
		t.Error("a check changed a record")
	}
	copied, _, err := ReadSnapshot(bytes.NewReader(snapshotOf(t, d.state)), testCell)
	if err != nil || len(copied.HashNotes()) != 0 {
		t.Errorf("notes of a copy: %v, %v", copied.HashNotes(), err)
	}
}

// Of two checks in one entry all replicas keep the same.
func TestTwoHashNotesInOneEntry(t *testing.T) {
	d := livedIn(t)
	d.apply(checkHash(0, 0), d.number(1, create(&storepb.Create{Path: "/ls/ny1/new", Type: 1})), checkHash(0, 0))
	if notes := d.state.HashNotes(); len(notes) != 1 || notes[0] != (HashNote{d.index, d.state.Hash()}) {
		t.Errorf("notes %v, hash %x", notes, d.state.Hash())
	}
}

// One record of a replica is another than the others', which no client has read yet: at the next
// check it stops, and the others go on.
func TestReplicaThatDiffersStops(t *testing.T) {
	d := livedIn(t)
	differs := New(testCell)
	replay(t, differs, d.log, 0)
	n := *differs.nodes["/ls/ny1/dir/file"]
	n.setContent([]byte("0123456788"))
	n.print = differs.hasher.node(&n)
	differs.swapNode(n.path, differs.nodes[n.path], &n)

	d.do(checkHash(0, 0))
	replay(t, differs, d.log, d.index-1)
	here, there := differs.HashNotes()[0], d.state.HashNotes()[0]
	if here.Index != there.Index || here.Hash == there.Hash {
		t.Fatalf("notes %v and %v", here, there)
	}
	d.do(d.number(1, deletion(&storepb.Delete{Path: "/ls/ny1/dir/file"}))) // too late: it may have been read
	replay(t, differs, d.log, d.index-1)

	check := checkHash(there.Index, there.Hash)
	d.do(check)
	before := snapshotOf(t, differs)
	_, err := differs.Apply(d.index, d.log[d.index-1])
	want := fmt.Sprintf("at entry %d the hash was %016x here and %016x there", there.Index, here.Hash, there.Hash)
	if !errors.Is(err, ErrDiffers) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if !bytes.Equal(snapshotOf(t, differs), before) {
		t.Error("the replica stopped, and something is done")
	}
	// A master of before has nothing to say, and who made no note passes.
	if out, err := differs.Apply(d.index, &storepb.Proposal{Commands: []*storepb.Command{check}}); err != nil || !out.Refused {
		t.Errorf("a check of a master of before: %+v, %v", out, err)
	}
	restarted, _, err := ReadSnapshot(bytes.NewReader(before), testCell)
	if err != nil {
		t.Fatal(err)
	}
	replay(t, restarted, d.log, d.index-1)
	if len(restarted.HashNotes()) != 1 {
		t.Errorf("notes after a restart: %v", restarted.HashNotes())
	}
}
