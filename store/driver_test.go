package store

import (
	"bytes"
	"reflect"
	"testing"

	"lockfs"
	"lockfs/store/storepb"
)

const testCell = "ny1"

// A driver applies commands to a state as one master would, an entry each.
type driver struct {
	t     testing.TB
	state *State
	epoch uint64
	index uint64
	now   int64
	log   []*storepb.Proposal // log[i] is entry i+1
	next  map[uint64]uint64   // by session, the next number
}

// newDriver returns a driver of a cell that has a master, in entry 1.
func newDriver(t testing.TB, limits *storepb.Limits) *driver {
	d := &driver{t: t, state: New(testCell), epoch: 1, next: map[uint64]uint64{}}
	d.do(office(&storepb.Seed{ClusterId: 7, Limits: limits}))
	return d
}

// apply puts the commands into one entry.
func (d *driver) apply(commands ...*storepb.Command) Outcome {
	d.t.Helper()
	d.index++
	p := &storepb.Proposal{Epoch: d.epoch, Sequence: d.index, Time: d.now, Commands: commands}
	d.log = append(d.log, p)
	out, err := d.state.Apply(d.index, p)
	if err != nil {
		d.t.Fatal(err)
	}
	return out
}

// do applies one command, returns its result and, if it fails, fails the test.
func (d *driver) do(c *storepb.Command) *storepb.Result {
	d.t.Helper()
	r := d.try(c)
	if r.Kind != 0 {
		d.t.Fatalf("%v: %v %s", c, lockfs.Kind(r.Kind), r.Detail)
	}
	return r
}

func (d *driver) try(c *storepb.Command) *storepb.Result {
	d.t.Helper()
	out := d.apply(c)
	if out.Refused {
		d.t.Fatalf("%v: refused", c)
	}
	return out.Results[0]
}

func (d *driver) session() uint64 {
	d.t.Helper()
	return d.do(&storepb.Command{Command: &storepb.Command_CreateSession{CreateSession: &storepb.CreateSession{Identity: "ann", Host: "h1"}}}).Session
}

// number gives a mutation the session's next number, and confirms those before that are done.
func (d *driver) number(session uint64, m *storepb.Mutation) *storepb.Command {
	d.next[session]++
	m.Session, m.Number = session, d.next[session]
	if ses := d.state.sessions[session]; ses != nil {
		for _, done := range ses.done {
			m.Confirmed = append(m.Confirmed, &storepb.Range{First: done.first, Last: done.last})
		}
	}
	return mutation(m)
}

func mutation(m *storepb.Mutation) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_Mutation{Mutation: m}}
}

func office(seed *storepb.Seed) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_TakeOffice{TakeOffice: &storepb.TakeOffice{Seed: seed}}}
}

func expire(session uint64) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_ExpireSession{ExpireSession: &storepb.ExpireSession{Session: session}}}
}

func clearDelay(path string, index uint64) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_ClearDelay{ClearDelay: &storepb.ClearDelay{Path: path, Index: index}}}
}

func deleteOrphan(path string, instance uint64) *storepb.Command {
	return &storepb.Command{Command: &storepb.Command_DeleteOrphan{DeleteOrphan: &storepb.DeleteOrphan{Path: path, Instance: instance}}}
}

func create(c *storepb.Create) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Create{Create: c}}
}

func deletion(c *storepb.Delete) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Delete{Delete: c}}
}

func edit(e *storepb.Edit) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Edit{Edit: e}}
}

func setACL(a *storepb.SetACL) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_SetAcl{SetAcl: a}}
}

func setPermanence(path string, instance uint64, ephemeral bool) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_SetPermanence{
		SetPermanence: &storepb.SetPermanence{Path: path, Instance: instance, Ephemeral: ephemeral}}}
}

func rename(r *storepb.Rename) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Rename{Rename: r}}
}

func acquire(a *storepb.Acquire) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Acquire{Acquire: a}}
}

func release(r *storepb.Release) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Release{Release: r}}
}

func closeOwner(owner uint64, numbers ...uint64) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_CloseOwner{CloseOwner: &storepb.CloseOwner{Owner: owner, Numbers: numbers}}}
}

func giveUp(number uint64) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_GiveUp{GiveUp: &storepb.GiveUp{Number: number}}}
}

func closeSession(expired ...uint64) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_CloseSession{CloseSession: &storepb.CloseSession{ExpiredOwners: expired}}}
}

func batch(conditions []*storepb.Condition, mutations ...*storepb.Mutation) *storepb.Mutation {
	return &storepb.Mutation{Op: &storepb.Mutation_Batch{Batch: &storepb.Batch{Conditions: conditions, Mutations: mutations}}}
}

func appended(data string) *storepb.Change {
	return &storepb.Change{Change: &storepb.Change_Append{Append: []byte(data)}}
}

func truncated(size int64) *storepb.Change {
	return &storepb.Change{Change: &storepb.Change_Truncate{Truncate: size}}
}

func extended(size int64) *storepb.Change {
	return &storepb.Change{Change: &storepb.Change_Extend{Extend: size}}
}

func writtenTo(offset int64, data string) *storepb.Change {
	return &storepb.Change{Change: &storepb.Change_WriteAt{WriteAt: &storepb.WriteAt{Offset: offset, Data: []byte(data)}}}
}

func snapshotOf(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteSnapshot(&b, []byte("position")); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// checkSame fails unless two states have the same records and the same indexes of them.
func checkSame(t testing.TB, what string, got, want *State) {
	t.Helper()
	if got.Hash() != want.Hash() || got.Applied() != want.Applied() {
		t.Fatalf("%s: hash %x at %d, want %x at %d", what, got.Hash(), got.Applied(), want.Hash(), want.Applied())
	}
	if !bytes.Equal(snapshotOf(t, got), snapshotOf(t, want)) {
		t.Fatalf("%s: equal hashes and other snapshot bytes", what)
	}
	for name, pair := range map[string][2]any{
		"children": {got.children, want.children}, "held": {got.held, want.held},
		"locked": {got.locked, want.locked}, "ephemeral": {got.ephemeral, want.ephemeral}, "sum": {got.print, want.print},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Fatalf("%s: index %s: %v, want %v", what, name, pair[0], pair[1])
		}
	}
}

// replay applies a log again.
func replay(t testing.TB, s *State, log []*storepb.Proposal, from uint64) {
	t.Helper()
	for i := from; i < uint64(len(log)); i++ {
		if _, err := s.Apply(i+1, log[i]); err != nil {
			t.Fatal(err)
		}
	}
}
