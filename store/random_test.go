package store

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockfs"
	"lockfs/store/storepb"
)

var (
	seed  = flag.Uint64("seed", 0, "play the random test of this seed alone")
	seeds = flag.Uint64("seeds", 12, "how many seeds the random test plays")
)

// TestRandom plays random commands on a state and on the model beside it, which must agree in
// results, effects and all that can be read; saves, loads, replays and copies the state now and
// then; and watches what must hold whatever happens.
func TestRandom(t *testing.T) {
	if *seed != 0 {
		playRandom(t, *seed)
		return
	}
	for i := range *seeds {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) { playRandom(t, i+1) })
	}
}

func playRandom(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	for step := range 600 {
		w.step()
		if step%20 == 19 {
			w.checkCopies()
		}
		if w.rand.IntN(25) == 0 {
			w.checkpoint()
		}
	}
	w.checkpoint()
}

type world struct {
	*driver
	rand    *rand.Rand
	model   *model
	replica *State // applies the same log
	db      *DB
	saved   uint64 // entries in the last checkpoint
	highest map[lockfs.Path]gens
	sent    []*storepb.Mutation
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		driver: newDriver(t, &storepb.Limits{FileBytes: modelFileBytes, Nodes: modelNodes, Bytes: modelBytes, Children: modelChildren}),
		rand:   rand.New(rand.NewPCG(seed, 0)), model: newModel(), replica: New(testCell), highest: map[lockfs.Path]gens{},
	}
	replay(t, w.replica, w.log, 0)
	db, err := OpenDB(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	db.bolt.NoSync = true
	t.Cleanup(func() { db.Close() })
	w.db = db
	return w
}

// step applies one to three commands in one entry.
func (w *world) step() {
	w.now += w.rand.Int64N(5) - 1
	before, orphansBefore := w.state.stateText(), w.model.orphans()
	var commands []*storepb.Command
	for range 1 + w.rand.IntN(6)/4 + w.rand.IntN(6)/5 {
		commands = append(commands, w.command())
	}
	var want []mresult
	var wantEffects Effects
	for _, c := range commands {
		next, result := w.model.apply(w.index+1, c)
		want = append(want, asAnswered(result))
		wantEffects = merged(wantEffects, w.model.effects(next, w.index+1))
		w.model = next
	}
	wantEffects.Orphans = slices.DeleteFunc(wantEffects.Orphans, func(id NodeID) bool {
		return !slices.Contains(w.model.orphans(), id) || slices.Contains(orphansBefore, id)
	})

	out := w.apply(commands...)
	for i, r := range out.Results {
		if got := resultOf(r); !reflect.DeepEqual(got, want[i]) {
			w.t.Fatalf("entry %d: %v\nresult %d: %+v, want %+v\nbefore:\n%s", w.index, commands, i, got, want[i], before)
		}
	}
	// An orphan that had a child for a while may be told of once more.
	out.Effects.Orphans = slices.DeleteFunc(out.Effects.Orphans, func(id NodeID) bool {
		return slices.Contains(orphansBefore, id) && slices.Contains(w.model.orphans(), id)
	})
	if got := out.Effects; fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", wantEffects) {
		w.t.Fatalf("entry %d: %v\neffects %+v\nwant    %+v\nbefore:\n%s", w.index, commands, got, wantEffects, before)
	}
	if got := w.state.stateText(); got != w.model.String() {
		w.t.Fatalf("entry %d: %v\nstate:\n%s\nmodel:\n%s\nbefore:\n%s", w.index, commands, got, w.model, before)
	}
	w.checkInvariants()
	replay(w.t, w.replica, w.log, w.index-1)
}

func merged(a, b Effects) Effects {
	a.Changed, a.Locks = append(a.Changed, b.Changed...), append(a.Locks, b.Locks...)
	a.Deleted, a.Lost, a.Ended = append(a.Deleted, b.Deleted...), append(a.Lost, b.Lost...), append(a.Ended, b.Ended...)
	a.Delays, a.Orphans = append(a.Delays, b.Delays...), append(a.Orphans, b.Orphans...)
	a.tidy()
	return a
}

// checkInvariants is what holds of every state, and for every name from one state to the next.
func (w *world) checkInvariants() {
	for p, n := range w.state.nodes {
		was, now := w.highest[p], gens{n.contentGeneration, n.lockGeneration, n.aclGeneration}
		if now.content < was.content || now.lock < was.lock || now.acl < was.acl {
			w.t.Fatalf("entry %d: generations of %s went from %v to %v", w.index, p, was, now)
		}
		w.highest[p] = now
		if n.mode == lockfs.Exclusive && len(n.holders) != 1 || (n.mode == lockfs.Free) != (len(n.holders) == 0) {
			w.t.Fatalf("entry %d: %s is %v with %d holders", w.index, p, n.mode, len(n.holders))
		}
	}
}

// checkCopies compares the state with another replica's and with its own snapshot, in which
// everything that is kept up by increments was made anew.
func (w *world) checkCopies() {
	checkSame(w.t, "replica", w.replica, w.state)
	copied, position, err := ReadSnapshot(bytes.NewReader(snapshotOf(w.t, w.state)), testCell)
	if err != nil || string(position) != "position" {
		w.t.Fatalf("entry %d: %q, %v", w.index, position, err)
	}
	checkSame(w.t, "snapshot", copied, w.state)
	if w.rand.IntN(3) == 0 {
		w.replica = copied // and goes on from there
	}
}

// checkpoint saves the state, loads it again, and has a replica start from what was saved.
func (w *world) checkpoint() {
	c := w.state.Checkpoint(fmt.Append(nil, w.index))
	old, _, err := w.db.Load(testCell) // as if the process had died before Save
	if err != nil {
		w.t.Fatal(err)
	}
	replay(w.t, old, w.log, w.saved)
	checkSame(w.t, "replayed", old, w.state)

	if err := w.db.Save(c); err != nil {
		w.t.Fatal(err)
	}
	w.saved = w.index
	loaded, position, err := w.db.Load(testCell)
	if err != nil || string(position) != fmt.Sprint(w.index) {
		w.t.Fatalf("entry %d: position %q, %v", w.index, position, err)
	}
	checkSame(w.t, "loaded", loaded, w.state)
	if w.rand.IntN(3) == 0 {
		w.state = loaded // and goes on from there
	}
}

// stateText says of a state what model.String says of a model.
func (s *State) stateText() string {
	var b strings.Builder
	var paths []lockfs.Path
	for p := range s.nodes {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		st, _ := s.Stat(p, 0)
		content, _, _ := s.Contents(p, 0)
		l, _ := s.Lock(p, 0)
		fmt.Fprintf(&b, "%s dir=%v %q acl=%s owner=%d #%d %v %v", p, st.Type == lockfs.Dir, content, st.ACL.Write, st.OwnerSession,
			st.Instance, gens{st.ContentGeneration, st.LockGeneration, st.ACLGeneration}, l.Mode)
		for _, h := range l.Holders {
			fmt.Fprintf(&b, " %d/%d/%d", h.Session, h.Owner, h.LockDelay.Milliseconds())
		}
		entries, _, _ := s.List(p, 0)
		var children []lockfs.Path
		for _, e := range entries {
			children = append(children, p+"/"+lockfs.Path(e.Name))
		}
		fmt.Fprintf(&b, " %v\n", children)
	}
	for _, d := range s.Delays() {
		fmt.Fprintf(&b, "mark %s %v %d %d\n", d.Path, d.Mode, d.LockDelay.Milliseconds(), d.Index)
	}
	for _, ses := range s.Sessions() {
		fmt.Fprintf(&b, "session %d", ses.ID)
		for number := range uint64(400) {
			if result, done := s.Done(ses.ID, number); done && result == nil {
				fmt.Fprintf(&b, " %d:confirmed", number)
			} else if done {
				fmt.Fprintf(&b, " %d:%d", number, result.Kind)
			}
		}
		b.WriteByte('\n')
		for _, h := range s.HeldBy(ses.ID) {
			fmt.Fprintf(&b, "  %v\n", h)
		}
	}
	fmt.Fprintf(&b, "orphans %v nodes=%d bytes=%d", s.Orphans(), s.Nodes(), s.Bytes())
	return b.String()
}

// resultOf is what a model says of a result.
func resultOf(r *storepb.Result) mresult {
	m := mresult{kind: lockfs.Kind(r.Kind), generation: r.LockGeneration, mode: lockfs.Mode(r.LockMode), instance: r.Stat.GetInstance()}
	if r.GivenUp != nil {
		given := resultOf(r.GivenUp)
		m.given = &given
	}
	return m
}

func asAnswered(m mresult) mresult {
	m.confirmed = false
	if m.given != nil {
		given := asAnswered(*m.given)
		m.given = &given
	}
	return m
}

// command draws what comes next: mostly mutations, of few names, sessions and owners, so that they
// meet.
func (w *world) command() *storepb.Command {
	switch n := w.rand.IntN(100); {
	case n < 2+4/max(1, len(w.model.sessions)) || len(w.model.sessions) == 0:
		return &storepb.Command{Command: &storepb.Command_CreateSession{CreateSession: &storepb.CreateSession{Identity: "ann"}}}
	case n < 5:
		return expire(w.anySession())
	case n < 8:
		return clearDelay(w.path(), w.elapsed())
	case n < 14:
		if orphans := w.model.orphans(); len(orphans) > 0 {
			id := orphans[w.rand.IntN(len(orphans))]
			return deleteOrphan(string(id.Path), id.Instance)
		}
		p := w.path()
		return deleteOrphan(p, max(w.instance(p), 1))
	case n < 16:
		return w.check()
	case n < 20 && len(w.sent) > 0:
		return mutation(w.sent[w.rand.IntN(len(w.sent))]) // a late copy
	}
	m := w.mutation()
	if m.Session = w.anySession(); m.GetRelease() != nil {
		w.aim(m)
	}
	w.next[m.Session] += 1 + uint64(w.rand.IntN(5)/4)
	m.Number = w.next[m.Session]
	if w.rand.IntN(3) == 0 {
		first := uint64(w.rand.IntN(int(m.Number)))
		m.Confirmed = []*storepb.Range{{First: first, Last: first + uint64(w.rand.IntN(30))}}
	}
	if w.rand.IntN(10) == 0 {
		m.Guard = w.guard()
	}
	w.sent = append(w.sent, m)
	return mutation(m)
}

// check draws a check of the hash, of the notes of one of the two replicas, and rarely a level that is
// not the next.
func (w *world) check() *storepb.Command {
	notes := append(w.state.HashNotes(), w.replica.HashNotes()...)
	switch n := w.rand.IntN(10); {
	case n == 0:
		return raise([]uint32{0, 1, 3}[w.rand.IntN(3)])
	case n < 5 || len(notes) == 0:
		return checkHash(0, 0)
	}
	note := notes[w.rand.IntN(len(notes))]
	return checkHash(note.Index, note.Hash)
}

// anySession is mostly a live one.
func (w *world) anySession() uint64 {
	if w.rand.IntN(12) == 0 {
		return 1 + w.rand.Uint64N(max(w.model.session, 1))
	}
	live := slices.Sorted(maps.Keys(w.model.sessions))
	return live[w.rand.IntN(len(live))]
}

var randomPaths = []string{"/ls/ny1", "/ls/ny1/a", "/ls/ny1/b", "/ls/ny1/c", "/ls/ny1/d", "/ls/ny1/e",
	"/ls/ny1/a/x", "/ls/ny1/a/y", "/ls/ny1/a/z", "/ls/ny1/a/x/1", "/ls/ny1/b/x"}

func (w *world) path() string { return randomPaths[w.rand.IntN(len(randomPaths))] }

// instance is mostly any, else mostly the right one.
func (w *world) instance(p string) uint64 {
	switch w.rand.IntN(12) {
	case 0, 1:
		return w.model.nodes[p].instance
	case 2:
		return w.rand.Uint64N(w.model.instance + 1)
	}
	return 0
}

func (w *world) elapsed() uint64 {
	if w.rand.IntN(3) > 0 {
		return 0
	}
	return w.index - min(w.index, w.rand.Uint64N(20))
}

func (w *world) guard() *storepb.Guard {
	p := w.path()
	n := w.model.nodes[p]
	return &storepb.Guard{Path: p, Mode: uint32(n.mode), Generation: n.gens.lock - uint64(w.rand.IntN(5)/4)}
}

func (w *world) mutation() *storepb.Mutation {
	owner := w.rand.Uint64N(3)
	p := w.path()
	switch n := w.rand.IntN(100); {
	case n < 60:
		return w.change()
	case n < 83:
		return acquire(&storepb.Acquire{Path: p, Instance: w.instance(p), Owner: owner, Mode: 1 + w.rand.Uint32N(2),
			LockDelayMs: w.rand.Int64N(3) * 1000, Waits: w.rand.IntN(2) == 0})
	case n < 88:
		return release(&storepb.Release{Path: p, Owner: owner})
	case n < 91:
		return closeOwner(owner, w.rand.Uint64N(60)+1, w.rand.Uint64N(60)+1)
	case n < 94:
		return giveUp(w.rand.Uint64N(60))
	case n < 95:
		return closeSession(owner)
	}
	var conditions []*storepb.Condition
	if w.rand.IntN(2) == 0 {
		conditions = append(conditions, &storepb.Condition{Path: p, Absent: w.rand.IntN(2) == 0, Instance: w.instance(p), ContentGeneration: w.generation(p)})
	}
	var parts []*storepb.Mutation
	for range 1 + w.rand.IntN(4) {
		parts = append(parts, w.change())
	}
	return batch(conditions, parts...)
}

// aim has a release be of a lock that is held, if the session holds any.
func (w *world) aim(m *storepb.Mutation) {
	if held := w.model.heldBy(m.Session); len(held) > 0 {
		h := held[w.rand.IntN(len(held))]
		m.GetRelease().Path, m.GetRelease().Owner = string(h.Node.Path), h.Owner
	}
}

func (w *world) generation(p string) uint64 {
	if w.rand.IntN(3) > 0 {
		return 0
	}
	return w.model.nodes[p].gens.content - uint64(w.rand.IntN(4)/3)
}

// change draws a mutation of nodes.
func (w *world) change() *storepb.Mutation {
	p := w.path()
	switch n := w.rand.IntN(60); {
	case n < 28:
		c := &storepb.Create{Path: p, Type: 1 + w.rand.Uint32N(2), Ephemeral: w.rand.IntN(3) == 0, Exclusive: w.rand.IntN(2) == 0}
		if c.Type == 1 {
			c.Content = []byte(w.data())
		}
		return create(c)
	case n < 35:
		return deletion(&storepb.Delete{Path: p, Instance: w.instance(p), Type: w.rand.Uint32N(3)})
	case n < 46:
		e := &storepb.Edit{Path: p, Instance: w.instance(p), IfGeneration: w.generation(p)}
		for range w.rand.IntN(3) {
			e.Changes = append(e.Changes, []*storepb.Change{appended(w.data()), truncated(w.rand.Int64N(modelFileBytes + 2)),
				extended(w.rand.Int64N(modelFileBytes + 2)), writtenTo(w.rand.Int64N(modelFileBytes+2), w.data())}[w.rand.IntN(4)])
		}
		return edit(e)
	case n < 50:
		return setACL(&storepb.SetACL{Path: p, Instance: w.instance(p), Acl: &storepb.ACLNames{Write: "/ls/ny1/acl/" + w.data() + "w"}})
	case n < 53:
		return setPermanence(p, w.instance(p), w.rand.IntN(2) == 0)
	default:
		to := w.path()
		return rename(&storepb.Rename{From: p, FromInstance: w.instance(p), To: to, ToInstance: w.instance(to), NoReplace: w.rand.IntN(4) == 0})
	}
}

func (w *world) data() string { return "abcdef"[:w.rand.IntN(7)] }
