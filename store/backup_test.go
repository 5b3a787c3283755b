package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockfs"
	"lockfs/store/storepb"
)

func TestCheckSnapshot(t *testing.T) {
	d := livedIn(t)
	d.now = 5_000_000_007
	d.session()
	s := d.state
	got, err := CheckSnapshot(bytes.NewReader(snapshotOf(t, s)))
	want := SnapshotInfo{Cell: testCell, ClusterID: 7, Applied: d.index, Epoch: 1, Level: 1, Time: instant(d.now),
		Nodes: 5, Bytes: 10, Sessions: 2, Records: 1 + 1 + 5 + 2, Hash: s.Hash()}
	if err != nil || got != want {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if got, err := CheckSnapshot(bytes.NewReader(snapshotOf(t, New("sf1")))); err != nil || got.Cell != "sf1" || got.ClusterID != 0 {
		t.Errorf("of a cell without a master: %+v, %v", got, err)
	}
}

func TestRebirthRefusals(t *testing.T) {
	written := snapshotOf(t, livedIn(t).state)
	high := livedIn(t)
	high.state.cell.lockFloor = math.MaxUint64 - 3
	for name, test := range map[string]struct {
		stream    []byte
		cell      string
		clusterID uint64
		want      string
	}{
		"no cluster id":   {written, testCell, 0, "the cluster id 0 is not a new one"},
		"the same again":  {written, testCell, 7, "the cluster id 7 is not a new one"},
		"another cell":    {written, "sf1", 8, `it is of the cell "ny1", not of "sf1"`},
		"an empty cell":   {snapshotOf(t, New(testCell)), testCell, 8, "it never had a master"},
		"half of it":      {written[:len(written)/2], testCell, 8, "damaged: it ends before its end"},
		"too high floors": {snapshotOf(t, high.state), testCell, 8, "it counts up to 18446744073709551612, which is too high to be raised"},
	} {
		s, err := Rebirth(bytes.NewReader(test.stream), test.cell, test.clusterID)
		if s != nil || err == nil || err.Error() != "make a new cell of a snapshot of the cell "+test.cell+": "+test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A past is what was drawn from a cell and may be shown to the one that its backup became.
type past struct {
	nodes    map[lockfs.Path]map[drawn]bool
	sessions uint64 // that there ever were
	epoch    uint64
}

type drawn struct {
	instance uint64
	gens
}

func (p *past) note(s *State) {
	for path, n := range s.nodes {
		if p.nodes[path] == nil {
			p.nodes[path] = map[drawn]bool{}
		}
		p.nodes[path][drawn{n.instance, gens{n.contentGeneration, n.lockGeneration, n.aclGeneration}}] = true
	}
	p.sessions, p.epoch = s.cell.lastSession, s.cell.epoch
}

// From random histories: a backup is taken, the cell goes on, and a new one is made of the backup.
// Nothing that was ever drawn from the old one passes in the new one, and the contents are the same.
func TestRebirth(t *testing.T) {
	for i := range *seeds {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			w := newWorld(t, i+1)
			p := &past{nodes: map[lockfs.Path]map[drawn]bool{}}
			play := func(steps int) {
				for range steps {
					w.step()
					p.note(w.state)
				}
			}
			play(100 + w.rand.IntN(100))
			backup := snapshotOf(t, w.state)
			old, _, err := ReadSnapshot(bytes.NewReader(backup), testCell)
			if err != nil {
				t.Fatal(err)
			}
			play(100)
			s, err := Rebirth(bytes.NewReader(backup), testCell, 8)
			if err != nil {
				t.Fatal(err)
			}
			checkReborn(t, s, old)
			checkOnEveryMember(t, s, backup)
			checkNothingPasses(t, s, p)
		})
	}
}

// checkReborn compares a state with the backup that it was made of.
func checkReborn(t *testing.T, s, old *State) {
	t.Helper()
	if s.ClusterID() != 8 || s.Epoch() <= old.Epoch() || s.Applied() != old.Applied() || s.Level() != old.Level() {
		t.Errorf("cluster %x, epoch %d, entry %d, level %d", s.ClusterID(), s.Epoch(), s.Applied(), s.Level())
	}
	if len(s.Sessions()) > 0 || len(s.held)+len(s.locked) > 0 {
		t.Errorf("sessions %v, locks %v", s.Sessions(), s.locked)
	}
	if len(s.undo) > 0 || !reflect.DeepEqual(s.effects, Effects{}) {
		t.Errorf("%d changes to undo, effects %+v", len(s.undo), s.effects)
	}
	if s.Nodes() != old.Nodes() || s.Bytes() != old.Bytes() {
		t.Errorf("%d nodes of %d bytes, want %d of %d", s.Nodes(), s.Bytes(), old.Nodes(), old.Bytes())
	}
	for path, was := range old.nodes {
		n := s.nodes[path]
		if n == nil || n.kind != was.kind || !bytes.Equal(n.content, was.content) || *n.acl != *was.acl ||
			n.mtime != was.mtime || n.ownerSession != was.ownerSession {
			t.Errorf("%s is %+v, was %+v", path, n, was)
		}
		if was.mode == lockfs.Free {
			continue
		}
		for _, h := range was.holders { // who may go on writing in the belief that he holds it
			if marks := s.DelaysOf(path); h.delayMS > 0 && (len(marks) == 0 || marks[len(marks)-1].LockDelay < millis(h.delayMS)) {
				t.Errorf("%s was held, its delays are %v", path, marks)
			}
		}
	}
}

// checkOnEveryMember: whoever makes a state of the backup under this id has the same, and so has the
// file that it is put into, whatever was in that before.
func checkOnEveryMember(t *testing.T, s *State, backup []byte) {
	t.Helper()
	want := snapshotOf(t, s)
	for i, before := range []*State{New(testCell), livedIn(t).state} {
		member, err := Rebirth(bytes.NewReader(backup), testCell, 8)
		if err != nil {
			t.Fatal(err)
		}
		checkSame(t, "on another member", member, s)
		db := savedDB(t, filepath.Join(t.TempDir(), "store"), before)
		if err := db.Replace(member, []byte("position")); err != nil {
			t.Fatal(err)
		}
		if got := streamed(t, db); !bytes.Equal(got, want) {
			t.Errorf("member %d streams another state", i)
		}
		loaded, position, err := db.Load(testCell)
		if err != nil || string(position) != "position" {
			t.Fatalf("position %q, %v", position, err)
		}
		checkSame(t, "loaded", loaded, s)
		if c := member.Checkpoint(nil); c.Changes() != 1 { // the cell
			t.Errorf("%d records are left for the next checkpoint", c.Changes())
		} else if err := db.Save(c); err != nil {
			t.Error(err)
		}
	}
}

// checkNothingPasses shows the past to a new cell.
func checkNothingPasses(t *testing.T, s *State, p *past) {
	t.Helper()
	d := &driver{t: t, state: s, epoch: s.Epoch(), index: s.Applied(), next: map[uint64]uint64{}}
	for _, epoch := range []uint64{p.epoch, p.epoch + 1, p.epoch + 1<<20, s.Epoch()} {
		if out, err := s.Apply(d.index, &storepb.Proposal{Epoch: epoch, Commands: []*storepb.Command{office(nil)}}); err != nil || !out.Refused {
			t.Errorf("a master of epoch %d took office: %+v, %v", epoch, out, err)
		}
	}
	d.epoch++
	d.do(office(nil))
	session := d.session()
	for id := range p.sessions + 2 {
		for _, m := range []*storepb.Mutation{acquire(&storepb.Acquire{Path: "/ls/ny1", Mode: 1}), giveUp(1), closeSession()} {
			m.Session, m.Number = id, 1
			if r := d.try(mutation(m)); lockfs.Kind(r.Kind) != lockfs.ErrSession {
				t.Errorf("session %d: %v", id, r)
			}
		}
	}
	deleteAllOrphans(d)
	paths := slices.Sorted(maps.Keys(p.nodes))
	for i, path := range paths { // so that those which are gone are made anew
		d.try(d.number(session, create(&storepb.Create{Path: string(path), Type: 1 + uint32(i%2)})))
		d.do(clearDelay(string(path), d.index))
	}
	for _, path := range paths {
		if n := s.nodes[path]; n != nil {
			checkPathForgot(d, session, n, p.nodes[path])
		}
	}
}

// deleteAllOrphans does what the first master does.
func deleteAllOrphans(d *driver) {
	d.t.Helper()
	for orphans := d.state.Orphans(); len(orphans) > 0; orphans = d.state.Orphans() {
		for _, id := range orphans {
			d.do(deleteOrphan(string(id.Path), id.Instance))
		}
	}
	for path, n := range d.state.nodes {
		if n.ownerSession != 0 {
			d.t.Errorf("%s is ephemeral and was no orphan", path)
		}
	}
}

// checkPathForgot tries what was ever drawn for a name while its lock is held again.
func checkPathForgot(d *driver, session uint64, n *node, all map[drawn]bool) {
	d.t.Helper()
	path := string(n.path)
	refuses := func(what string, want lockfs.Kind, m *storepb.Mutation) {
		d.t.Helper()
		if r := d.try(d.number(session, m)); lockfs.Kind(r.Kind) != want {
			d.t.Errorf("%s of %s: %v %s, want %v", what, path, lockfs.Kind(r.Kind), r.Detail, want)
		}
	}
	for _, mode := range []lockfs.Mode{lockfs.Exclusive, lockfs.Shared, lockfs.Exclusive} {
		d.do(d.number(session, acquire(&storepb.Acquire{Path: path, Mode: uint32(mode)})))
		for was := range all {
			refuses("a sequencer", lockfs.ErrSequencer, &storepb.Mutation{
				Guard: &storepb.Guard{Path: path, Mode: uint32(mode), Generation: was.lock},
				Op:    acquire(&storepb.Acquire{Path: path, Mode: uint32(mode)}).Op})
		}
	}
	for was := range all {
		if n.kind == lockfs.File {
			refuses("a generation", lockfs.ErrChanged, edit(&storepb.Edit{Path: path, IfGeneration: was.content}))
		}
		refuses("a condition", lockfs.ErrChanged, batch([]*storepb.Condition{{Path: path, ContentGeneration: was.content}}))
		for what, m := range map[string]*storepb.Mutation{
			"edit":    edit(&storepb.Edit{Path: path, Instance: was.instance}),
			"delete":  deletion(&storepb.Delete{Path: path, Instance: was.instance}),
			"acquire": acquire(&storepb.Acquire{Path: path, Mode: 2, Instance: was.instance}),
			"release": release(&storepb.Release{Path: path, Instance: was.instance}),
		} {
			refuses("an instance to "+what, lockfs.ErrStale, m)
		}
		if now := d.state.nodes[n.path]; now.contentGeneration <= was.content || now.lockGeneration <= was.lock || now.aclGeneration <= was.acl {
			d.t.Errorf("%s is at %+v, and was at %+v", path, now, was.gens)
		}
	}
}

// A damaged backup makes no cell and passes no check.
func TestDamagedBackup(t *testing.T) {
	written := snapshotOf(t, livedIn(t).state)
	for at := range written {
		if at >= len(snapshotMagic) && at < len(snapshotMagic)+4 {
			continue // the format, of which another is no damage
		}
		damaged := bytes.Clone(written)
		damaged[at] ^= 1 << (at % 8)
		_, checked := CheckSnapshot(bytes.NewReader(damaged))
		_, reborn := Rebirth(bytes.NewReader(damaged), testCell, 8)
		_, cut := CheckSnapshot(bytes.NewReader(written[:at]))
		for what, err := range map[string]error{"check": checked, "rebirth": reborn, "check of a cut": cut} {
			if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%s, byte %d: %v", what, at, err)
			}
		}
	}
}
