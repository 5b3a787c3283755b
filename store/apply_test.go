package store

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lockfs"
	"lockfs/store/storepb"
)

// root, a directory with a file in it, and a file.
func smallCell(t testing.TB, limits *storepb.Limits) (*driver, uint64) {
	d := newDriver(t, limits)
	session := d.session()
	for _, c := range []*storepb.Create{
		{Path: "/ls/ny1/dir", Type: 2}, {Path: "/ls/ny1/dir/file", Type: 1, Content: []byte("0123456789")},
		{Path: "/ls/ny1/file", Type: 1},
	} {
		d.do(d.number(session, create(c)))
	}
	return d, session
}

var smallLimits = &storepb.Limits{FileBytes: 16, Nodes: 6, Bytes: 32, Children: 3}

func TestRefusals(t *testing.T) {
	const file, dir = uint32(lockfs.File), uint32(lockfs.Dir)
	edits := func(changes ...*storepb.Change) *storepb.Mutation {
		return edit(&storepb.Edit{Path: "/ls/ny1/dir/file", Changes: changes})
	}
	for name, test := range map[string]struct {
		do   *storepb.Mutation
		want lockfs.Kind
	}{
		"a name outside":               {create(&storepb.Create{Path: "/etc/passwd", Type: file}), lockfs.ErrBadName},
		"a name of another cell":       {create(&storepb.Create{Path: "/ls/sf1/x", Type: file}), lockfs.ErrCell},
		"a name too long":              {create(&storepb.Create{Path: "/ls/ny1/" + strings.Repeat("x", 256), Type: file}), lockfs.ErrNameTooLong},
		"no such parent":               {create(&storepb.Create{Path: "/ls/ny1/a/b", Type: file}), lockfs.ErrNotExist},
		"a parent that is a file":      {create(&storepb.Create{Path: "/ls/ny1/file/b", Type: file}), lockfs.ErrNotDir},
		"a grandparent that is a file": {create(&storepb.Create{Path: "/ls/ny1/file/b/c", Type: file}), lockfs.ErrNotDir},
		"a new name that is taken":     {create(&storepb.Create{Path: "/ls/ny1/file", Type: file, Exclusive: true}), lockfs.ErrExist},
		"mkdir over a file":            {create(&storepb.Create{Path: "/ls/ny1/file", Type: dir}), lockfs.ErrNotDir},
		"a file over a directory":      {create(&storepb.Create{Path: "/ls/ny1/dir", Type: file}), lockfs.ErrIsDir},
		"no type":                      {create(&storepb.Create{Path: "/ls/ny1/x"}), lockfs.ErrInvalid},
		"a type to come":               {create(&storepb.Create{Path: "/ls/ny1/x", Type: 256 + 1}), lockfs.ErrInvalid},
		"a directory with contents":    {create(&storepb.Create{Path: "/ls/ny1/x", Type: dir, Content: []byte("x")}), lockfs.ErrInvalid},
		"bad ACL name":                 {create(&storepb.Create{Path: "/ls/ny1/x", Type: file, Acl: &storepb.ACLNames{Read: "x"}}), lockfs.ErrBadName},
		"ACL name of another cell":     {setACL(&storepb.SetACL{Path: "/ls/ny1/file", Acl: &storepb.ACLNames{ChangeAcl: "/ls/sf1/x"}}), lockfs.ErrCell},
		"contents too large":           {create(&storepb.Create{Path: "/ls/ny1/x", Type: file, Content: make([]byte, 17)}), lockfs.ErrTooLarge},

		"write to a directory":      {edit(&storepb.Edit{Path: "/ls/ny1/dir"}), lockfs.ErrIsDir},
		"another instance":          {edit(&storepb.Edit{Path: "/ls/ny1/file", Instance: 99}), lockfs.ErrStale},
		"an instance of no node":    {edit(&storepb.Edit{Path: "/ls/ny1/x", Instance: 99}), lockfs.ErrStale},
		"another generation":        {edit(&storepb.Edit{Path: "/ls/ny1/file", IfGeneration: 2}), lockfs.ErrChanged},
		"append past the limit":     {edits(appended("1234567")), lockfs.ErrTooLarge},
		"write past the limit":      {edits(writtenTo(15, "12")), lockfs.ErrTooLarge},
		"write far past the limit":  {edits(writtenTo(1<<40, "1")), lockfs.ErrTooLarge},
		"write past all numbers":    {edits(writtenTo(math.MaxInt64, "1")), lockfs.ErrInvalid},
		"a negative offset":         {edits(writtenTo(-1, "1")), lockfs.ErrInvalid},
		"a negative offset, empty":  {edits(writtenTo(-1, "")), lockfs.ErrInvalid},
		"a negative size":           {edits(truncated(-1)), lockfs.ErrInvalid},
		"size past the limit":       {edits(truncated(17)), lockfs.ErrTooLarge},
		"extend past the limit":     {edits(extended(17)), lockfs.ErrTooLarge},
		"extend to a negative size": {edits(extended(-1)), lockfs.ErrInvalid},
		"an ephemeral root":         {setPermanence("/ls/ny1", 0, true), lockfs.ErrInvalid},
		"an ephemeral parent":       {setPermanence("/ls/ny1/dir", 0, true), lockfs.ErrInvalid},
		"permanence of another":     {setPermanence("/ls/ny1/file", 99, true), lockfs.ErrStale},
		"too large on the way":      {edits(truncated(1<<50), truncated(0)), lockfs.ErrTooLarge},
		"delete, directory wanted":  {deletion(&storepb.Delete{Path: "/ls/ny1/file", Type: dir}), lockfs.ErrNotDir},
		"delete, file wanted":       {deletion(&storepb.Delete{Path: "/ls/ny1/dir", Type: file}), lockfs.ErrIsDir},
		"delete, no such type":      {deletion(&storepb.Delete{Path: "/ls/ny1/dir", Type: 3}), lockfs.ErrInvalid},
		"delete what has children":  {deletion(&storepb.Delete{Path: "/ls/ny1/dir"}), lockfs.ErrNotEmpty},
		"delete the root":           {deletion(&storepb.Delete{Path: "/ls/ny1"}), lockfs.ErrInvalid},
		"rename a directory":        {rename(&storepb.Rename{From: "/ls/ny1/dir", To: "/ls/ny1/x"}), lockfs.ErrIsDir},
		"rename the root":           {rename(&storepb.Rename{From: "/ls/ny1", To: "/ls/ny1/x"}), lockfs.ErrIsDir},
		"rename onto a directory":   {rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/dir"}), lockfs.ErrIsDir},
		"rename, another source":    {rename(&storepb.Rename{From: "/ls/ny1/file", FromInstance: 99, To: "/ls/ny1/x"}), lockfs.ErrStale},
		"rename, another target":    {rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/dir/file", ToInstance: 99}), lockfs.ErrStale},
		"rename, no target":         {rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/x", ToInstance: 99}), lockfs.ErrStale},
		"rename to nowhere":         {rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/x/y"}), lockfs.ErrNotExist},
		"rename below itself":       {rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/file/y"}), lockfs.ErrNotDir},
		"lock in a mode to come":    {acquire(&storepb.Acquire{Path: "/ls/ny1/file", Mode: 256 + 1}), lockfs.ErrInvalid},
		"a negative lock-delay":     {acquire(&storepb.Acquire{Path: "/ls/ny1/file", Mode: 1, LockDelayMs: -1}), lockfs.ErrInvalid},
		"a note too long":           {acquire(&storepb.Acquire{Path: "/ls/ny1/file", Mode: 1, Note: strings.Repeat("x", 1025)}), lockfs.ErrInvalid},
		"release of nothing":        {release(&storepb.Release{Path: "/ls/ny1/file"}), lockfs.ErrNotHeld},
		"lock in a batch":           {batch(nil, acquire(&storepb.Acquire{Path: "/ls/ny1/file", Mode: 1})), lockfs.ErrInvalid},
		"a number in a batch":       {batch(nil, &storepb.Mutation{Number: 9, Op: edits().Op}), lockfs.ErrInvalid},
		"a batch in a batch":        {batch(nil, batch(nil)), lockfs.ErrInvalid},
		"batch: it is there":        {batch([]*storepb.Condition{{Path: "/ls/ny1/file", Absent: true}}), lockfs.ErrExist},
		"batch: it is not there":    {batch([]*storepb.Condition{{Path: "/ls/ny1/x"}}), lockfs.ErrNotExist},
		"batch: another instance":   {batch([]*storepb.Condition{{Path: "/ls/ny1/file", Instance: 99}}), lockfs.ErrStale},
		"batch: another generation": {batch([]*storepb.Condition{{Path: "/ls/ny1/file", ContentGeneration: 99}}), lockfs.ErrChanged},
		"guarded by a free lock":    {&storepb.Mutation{Guard: &storepb.Guard{Path: "/ls/ny1/file", Generation: 1}, Op: edits().Op}, lockfs.ErrSequencer},
		"guarded by no node":        {&storepb.Mutation{Guard: &storepb.Guard{Path: "/ls/ny1/x", Mode: 2, Generation: 1}, Op: edits().Op}, lockfs.ErrSequencer},
		"guarded by no name":        {&storepb.Mutation{Guard: &storepb.Guard{Path: "x", Mode: 2, Generation: 1}, Op: edits().Op}, lockfs.ErrBadName},
	} {
		t.Run(name, func(t *testing.T) {
			d, session := smallCell(t, smallLimits)
			before := recordsBut(d.state, sessionKey)
			r := d.try(d.number(session, test.do))
			if lockfs.Kind(r.Kind) != test.want {
				t.Errorf("got %v %q, want %v", lockfs.Kind(r.Kind), r.Detail, test.want)
			}
			if after := recordsBut(d.state, sessionKey); !bytes.Equal(after, before) {
				t.Errorf("left something behind:\n%q\n%q", before, after)
			}
		})
	}
}

// recordsBut returns all records but those of one kind.
func recordsBut(s *State, kind byte) []byte {
	var b []byte
	s.records(func(r recorder) bool {
		if m := r.record(); keyOf(m)[0] != kind {
			b = marshal(b, m)
		}
		return true
	})
	return b
}

func TestEdits(t *testing.T) {
	for name, test := range map[string]struct {
		changes []*storepb.Change
		want    string
	}{
		"nothing":          {nil, "0123456789"},
		"append":           {[]*storepb.Change{appended("ab"), appended("c")}, "0123456789abc"},
		"replace":          {[]*storepb.Change{truncated(0), appended("new")}, "new"},
		"write inside":     {[]*storepb.Change{writtenTo(2, "ab")}, "01ab456789"},
		"write over end":   {[]*storepb.Change{writtenTo(9, "ab")}, "012345678ab"},
		"write past end":   {[]*storepb.Change{writtenTo(12, "ab")}, "0123456789\x00\x00ab"},
		"write nothing":    {[]*storepb.Change{writtenTo(100, "")}, "0123456789"},
		"shorten":          {[]*storepb.Change{truncated(3)}, "012"},
		"lengthen":         {[]*storepb.Change{truncated(12)}, "0123456789\x00\x00"},
		"shorten, then on": {[]*storepb.Change{truncated(3), truncated(5)}, "012\x00\x00"},
		"up to the limit":  {[]*storepb.Change{writtenTo(15, "x")}, "0123456789\x00\x00\x00\x00\x00x"},
		"to nothing":       {[]*storepb.Change{truncated(0)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, session := smallCell(t, smallLimits)
			old, before, _ := d.state.Contents("/ls/ny1/dir/file", 0)
			d.now = 5e9
			r := d.do(d.number(session, edit(&storepb.Edit{Path: "/ls/ny1/dir/file", IfGeneration: before.ContentGeneration, Changes: test.changes})))
			content, st, err := d.state.Contents("/ls/ny1/dir/file", before.Instance)
			if err != nil || string(content) != test.want {
				t.Errorf("contents %q (%v), want %q", content, err, test.want)
			}
			if st.ContentGeneration != before.ContentGeneration+1 || st.Mtime.UnixNano() != 5e9 || st.Size != int64(len(test.want)) {
				t.Errorf("stat after it: %+v", st)
			}
			if r.Stat.ContentGeneration != st.ContentGeneration || r.Stat.Checksum != st.Checksum || r.Stat.Size != st.Size {
				t.Errorf("result %v, stat %+v", r.Stat, st)
			}
			if string(old) != "0123456789" {
				t.Errorf("a reader's contents changed under him: %q", old)
			}
			if want := int64(len(test.want)); d.state.Bytes() != want {
				t.Errorf("cell of %d bytes, want %d", d.state.Bytes(), want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	d, session := smallCell(t, smallLimits) // 4 of 6 nodes, 10 of 32 bytes, /dir has 1 of 3 names
	put := func(name string, size int) lockfs.Kind {
		return lockfs.Kind(d.try(d.number(session, create(&storepb.Create{Path: "/ls/ny1/" + name, Type: 1, Content: make([]byte, size), Exclusive: true}))).Kind)
	}
	resize := func(name string, size int64) lockfs.Kind {
		return lockfs.Kind(d.try(d.number(session, edit(&storepb.Edit{Path: "/ls/ny1/" + name, Changes: []*storepb.Change{truncated(size)}}))).Kind)
	}
	check := func(what string, got, want lockfs.Kind) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("a third name in the root", put("x", 16), 0)
	check("a fourth name in the root", put("y", 0), lockfs.ErrNoSpace)
	check("more bytes than the cell may have", put("dir/y", 7), lockfs.ErrNoSpace)
	check("the last byte", put("dir/y", 6), 0)
	check("a node too many", put("dir/z", 0), lockfs.ErrNoSpace)
	check("a byte too many", resize("dir/y", 7), lockfs.ErrNoSpace)
	check("a byte less", resize("dir/y", 5), 0)
	check("and more again", resize("dir/y", 6), 0)
	if d.state.Nodes() != 6 || d.state.Bytes() != 32 {
		t.Errorf("%d nodes of %d bytes", d.state.Nodes(), d.state.Bytes())
	}
	r := d.try(d.number(session, rename(&storepb.Rename{From: "/ls/ny1/x", To: "/ls/ny1/file"})))
	check("rename in a full cell", lockfs.Kind(r.Kind), 0)
	r = d.try(d.number(session, rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/dir/file2"})))
	check("rename in a full cell to a free name", lockfs.Kind(r.Kind), 0)
	r = d.try(d.number(session, create(&storepb.Create{Path: "/ls/ny1/file", Type: 1})))
	check("create in its place", lockfs.Kind(r.Kind), 0)
	r = d.try(d.number(session, rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/dir/file3"})))
	check("rename to a full directory", lockfs.Kind(r.Kind), lockfs.ErrNoSpace)
}

func TestBatch(t *testing.T) {
	d, session := smallCell(t, nil)
	before := recordsBut(d.state, sessionKey)
	works := []*storepb.Mutation{
		create(&storepb.Create{Path: "/ls/ny1/new", Type: 2}),
		create(&storepb.Create{Path: "/ls/ny1/new/e", Type: 1, Ephemeral: true}),
		edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x")}}),
		rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/dir/file"}),
		deletion(&storepb.Delete{Path: "/ls/ny1/dir/file"}),
	}
	fails := append(append([]*storepb.Mutation{}, works...), deletion(&storepb.Delete{Path: "/ls/ny1/new"}))

	failed := d.number(session, batch(nil, fails...))
	out := d.apply(failed)
	r := out.Results[0]
	if lockfs.Kind(r.Kind) != lockfs.ErrNotEmpty || !strings.Contains(r.Detail, "mutation 6") || len(r.Batch) != 0 {
		t.Errorf("failed batch: %v", r)
	}
	if after := recordsBut(d.state, sessionKey); !bytes.Equal(after, before) {
		t.Errorf("a failed batch left something behind")
	}
	if e := out.Effects; len(e.Changed)+len(e.Deleted) > 0 {
		t.Errorf("a failed batch has effects: %+v", e)
	}
	if again := d.try(failed); !proto.Equal(again, r) {
		t.Errorf("sent again it answers %v, before %v", again, r)
	}

	condition := []*storepb.Condition{{Path: "/ls/ny1/new", Absent: true}, {Path: "/ls/ny1/file", ContentGeneration: 1}}
	r = d.do(d.number(session, batch(condition, works...)))
	if len(r.Batch) != len(works) || !r.Batch[0].Created || r.Batch[3].Stat.ContentGeneration != 2 {
		t.Errorf("batch: %v", r)
	}
	entries, _, _ := d.state.List("/ls/ny1/dir", 0)
	if d.state.Nodes() != 4 || len(entries) != 0 {
		t.Errorf("%d nodes, %v in /dir", d.state.Nodes(), entries)
	}
	if r := d.try(d.number(session, batch(condition, works...))); lockfs.Kind(r.Kind) != lockfs.ErrExist {
		t.Errorf("the same again: %v", r)
	}
}

// fill has numbers of a session be done, every step-th from 1 on, with or without their results.
func fill(s *State, session uint64, count, step int, results bool) (next uint64) {
	ses := *s.sessions[session]
	ses.done, ses.results = nil, nil
	for i := range count {
		number := uint64(1 + i*step)
		if step > 1 || i == 0 {
			ses.done = append(ses.done, span{number, number})
		}
		ses.done[len(ses.done)-1].last = number
		if results {
			ses.results = append(ses.results, s.hasher.result(&storepb.Result{Number: number}))
		}
		next = number + uint64(step)
	}
	s.setSession(session, &ses)
	s.undo = nil
	return next
}

// What a session has no room for is refused without its number being used up.
func TestNumbers(t *testing.T) {
	d, session := smallCell(t, nil)
	write := &storepb.Mutation_Edit{Edit: &storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x")}}}
	try := func(m *storepb.Mutation) lockfs.Kind { return lockfs.Kind(d.try(mutation(m)).Kind) }

	if got := try(&storepb.Mutation{Session: 99, Number: 1, Op: write}); got != lockfs.ErrSession {
		t.Errorf("a session that never was: %v", got)
	}
	if got := try(&storepb.Mutation{Session: session, Op: write}); got != lockfs.ErrInvalid {
		t.Errorf("no number: %v", got)
	}
	next := fill(d.state, session, MaxResults-1, 1, true)
	if got := try(&storepb.Mutation{Session: session, Number: next, Op: giveUp(99999).Op}); got != lockfs.ErrLimit {
		t.Errorf("a giving up, which needs room for two: %v", got)
	}
	if got := try(&storepb.Mutation{Session: session, Number: next, Op: write}); got != 0 {
		t.Errorf("the last one: %v", got)
	}
	next++
	if got := try(&storepb.Mutation{Session: session, Number: next, Op: write}); got != lockfs.ErrLimit {
		t.Errorf("with %d results not confirmed: %v", MaxResults, got)
	}
	if _, done := d.state.Done(session, next); done {
		t.Error("a number that found no room is done")
	}
	confirmed := []*storepb.Range{{First: 10, Last: 11}}
	if got := try(&storepb.Mutation{Session: session, Number: next, Confirmed: confirmed, Op: write}); got != 0 {
		t.Errorf("once two are confirmed: %v", got)
	}
	for number, want := range map[uint64]struct{ result, done bool }{
		0: {false, false}, 1: {true, true}, 9: {true, true}, 10: {false, true}, 11: {false, true}, 12: {true, true},
		next: {true, true}, next + 1: {false, false},
	} {
		if result, done := d.state.Done(session, number); (result != nil) != want.result || done != want.done {
			t.Errorf("number %d: result %v, done %v", number, result, done)
		}
	}
	if got := try(&storepb.Mutation{Session: session, Number: next + 1, Op: closeOwner(1, 1, 2, 3).Op}); got != lockfs.ErrLimit {
		t.Errorf("an owner with three numbers: %v", got)
	}
	if got := try(&storepb.Mutation{Session: session, Number: next + 1, Op: write}); got != 0 {
		t.Errorf("the last place: %v", got)
	}
	if got := try(&storepb.Mutation{Session: session, Number: next + 2, Op: closeSession().Op}); got != 0 {
		t.Errorf("closing the session: %v", got)
	}
}

func TestResultBytesAreBounded(t *testing.T) {
	d, session := smallCell(t, nil)
	parts := make([]*storepb.Mutation, 1000)
	for i := range parts {
		parts[i] = edit(&storepb.Edit{Path: "/ls/ny1/file"})
	}
	m := batch(nil, parts...)
	m.Session, m.Number = session, 10
	r := d.do(mutation(m))
	results := d.state.sessions[session].results
	if last := results[len(results)-1]; last.size != proto.Size(r) || last.size < 1000*10 {
		t.Errorf("a result of %d bytes counts as %d", proto.Size(r), last.size)
	}
	results[0].size = maxResultBytes // as so many more batches would
	write := &storepb.Mutation{Session: session, Number: 11, Op: parts[0].Op}
	if r := d.try(mutation(write)); lockfs.Kind(r.Kind) != lockfs.ErrLimit {
		t.Errorf("with too many bytes not confirmed: %v", r)
	}
	write.Confirmed = []*storepb.Range{{First: 1, Last: 10}}
	d.do(mutation(write))
}

func TestOpenNumbersAreBounded(t *testing.T) {
	d := newDriver(t, nil)
	session := d.session()
	next := fill(d.state, session, maxSpans-1, 2, false)
	for _, want := range []lockfs.Kind{0, lockfs.ErrLimit} {
		if got := d.try(mutation(&storepb.Mutation{Session: session, Number: next, Op: closeOwner(1).Op})); lockfs.Kind(got.Kind) != want {
			t.Errorf("number %d with %d gaps before it: %v, want %v", next, maxSpans, got, want)
		}
		next += 2
	}
}

func TestSpans(t *testing.T) {
	var spans []span
	for _, number := range []uint64{5, 3, 4, 1, math.MaxUint64, math.MaxUint64 - 1, 7, 2} {
		if contains(spans, number) {
			t.Errorf("%v contains %d", spans, number)
		}
		before := append([]span(nil), spans...)
		next := add(spans, span{number, number})
		for i := range before {
			if spans[i] != before[i] {
				t.Errorf("add changed its argument")
			}
		}
		if spans = next; !contains(spans, number) {
			t.Errorf("%v does not contain %d", spans, number)
		}
	}
	want := []span{{1, 5}, {7, 7}, {math.MaxUint64 - 1, math.MaxUint64}}
	if len(spans) != len(want) || spans[0] != want[0] || spans[1] != want[1] || spans[2] != want[2] {
		t.Errorf("%v, want %v", spans, want)
	}
	for number, want := range map[uint64]bool{0: false, 1: true, 6: false, 8: false, math.MaxUint64: true} {
		if contains(spans, number) != want {
			t.Errorf("contains %d: %v", number, !want)
		}
	}
	for _, test := range []struct {
		more span
		want []span
	}{
		{span{6, 6}, []span{{1, 7}, {math.MaxUint64 - 1, math.MaxUint64}}},
		{span{2, 4}, spans},
		{span{4, 9}, []span{{1, 9}, {math.MaxUint64 - 1, math.MaxUint64}}},
		{span{9, 12}, []span{{1, 5}, {7, 7}, {9, 12}, {math.MaxUint64 - 1, math.MaxUint64}}},
		{span{8, math.MaxUint64 - 2}, []span{{1, 5}, {7, math.MaxUint64}}},
		{span{1, math.MaxUint64}, []span{{1, math.MaxUint64}}},
	} {
		if got := add(spans, test.more); !slices.Equal(got, test.want) {
			t.Errorf("%v with %v: %v, want %v", spans, test.more, got, test.want)
		}
		if got := merge(spans, []span{test.more}); !slices.Equal(got, test.want) {
			t.Errorf("%v merged with %v: %v, want %v", spans, test.more, got, test.want)
		}
		if all := covers(spans, test.more); all != (test.more == span{2, 4}) {
			t.Errorf("%v covers %v: %v", spans, test.more, all)
		}
	}
}

// TestConfirmedNumbersAreDone has the master refuse every other call of a session without the log,
// as it does with a lock that another holds. The client has seen the refusals, so these numbers are
// no gaps, and a late copy of one does nothing.
func TestConfirmedNumbersAreDone(t *testing.T) {
	d := newDriver(t, nil)
	session := d.session()
	for number := uint64(2); number < 5*maxSpans; number += 2 {
		m := closeOwner(1)
		m.Session, m.Number = session, number
		m.Confirmed = []*storepb.Range{{First: max(1, number-4), Last: number - 1}}
		d.do(mutation(m))
	}
	if gaps := len(d.state.sessions[session].done); gaps != 1 {
		t.Errorf("the numbers that are done are in %d places, not one", gaps)
	}
	late := &storepb.Mutation{Session: session, Number: 9, Op: closeOwner(1).Op}
	if got := lockfs.Kind(d.try(mutation(late)).Kind); got != lockfs.ErrInvalid {
		t.Errorf("a late copy of what the client has seen refused: %v", got)
	}

	// Whoever confirms what it never sent gets no larger record for it.
	next := uint64(1 << 30)
	for range 3 * maxSpans / confirmedMax {
		scattered := &storepb.Mutation{Session: session, Number: 1 << 40, Op: closeOwner(1).Op}
		for range 2 * confirmedMax { // half of which nobody looks at
			scattered.Confirmed = append(scattered.Confirmed, &storepb.Range{First: next, Last: next})
			next += 2
		}
		d.try(mutation(scattered))
	}
	if places := len(d.state.sessions[session].done); places > maxSpans {
		t.Errorf("the numbers that are done are in %d places, more than %d", places, maxSpans)
	}
}

func TestSeed(t *testing.T) {
	s := New(testCell)
	refused := func(what string, index uint64, p *storepb.Proposal) {
		t.Helper()
		hash := s.Hash()
		out, err := s.Apply(index, p)
		if err != nil || !out.Refused || s.Hash() != hash || s.Applied() != index {
			t.Errorf("%s: %+v, %v", what, out, err)
		}
	}
	command := []*storepb.Command{{Command: &storepb.Command_CreateSession{CreateSession: &storepb.CreateSession{}}}}
	refused("a command before the seed", 1, &storepb.Proposal{Commands: command})
	refused("no seed", 2, &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{office(nil)}})
	refused("a seed without a cluster id", 3, &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{office(&storepb.Seed{LeaseMs: 1})}})
	refused("a negative limit", 4, &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{office(&storepb.Seed{ClusterId: 1, Limits: &storepb.Limits{Bytes: -1}})}})
	refused("epoch 0", 5, &storepb.Proposal{Commands: []*storepb.Command{office(&storepb.Seed{ClusterId: 1})}})

	seed := &storepb.Seed{ClusterId: 7, LeaseMs: 2000, Limits: &storepb.Limits{Nodes: 10}}
	if out, err := s.Apply(6, &storepb.Proposal{Epoch: 4, Time: 9, Commands: []*storepb.Command{office(seed)}}); err != nil || out.Refused {
		t.Fatalf("%+v, %v", out, err)
	}
	limits := lockfs.DefaultLimits
	limits.Nodes = 10
	if s.ClusterID() != 7 || s.Epoch() != 4 || s.Lease().Seconds() != 2 || s.Grace() != lockfs.DefaultGrace || s.Limits() != limits || s.Level() != 1 {
		t.Errorf("planted %+v", s.cell)
	}
	if st, err := s.Stat("/ls/ny1", 0); err != nil || st.Type != lockfs.Dir || st.Instance != 1 || st.Mtime.UnixNano() != 9 {
		t.Errorf("root %+v, %v", st, err)
	}
	other := &storepb.Seed{ClusterId: 8, LeaseMs: 1}
	if out, err := s.Apply(7, &storepb.Proposal{Epoch: 5, Commands: []*storepb.Command{office(other)}}); err != nil || out.Refused {
		t.Fatalf("%+v, %v", out, err)
	}
	if s.ClusterID() != 7 || s.Lease().Seconds() != 2 || s.Epoch() != 5 {
		t.Errorf("a second seed counted: %+v", s.cell)
	}
}

func TestReadErrors(t *testing.T) {
	d, _ := smallCell(t, nil)
	s := d.state
	for _, test := range []struct {
		path     lockfs.Path
		instance uint64
		want     lockfs.Kind
	}{
		{"/ls/ny1/x", 0, lockfs.ErrNotExist}, {"/ls/ny1/x/y", 0, lockfs.ErrNotExist}, {"/ls/ny1/file/y", 0, lockfs.ErrNotDir},
		{"/ls/ny1/file/y/z", 0, lockfs.ErrNotDir}, {"/ls/ny1/x", 4, lockfs.ErrStale}, {"/ls/ny1/file", 3, lockfs.ErrStale},
		{"/ls/sf1", 0, lockfs.ErrCell}, {"/ls/sf1/file", 0, lockfs.ErrCell}, {"", 0, lockfs.ErrCell}, {"/ls/ny1/file", 4, 0},
	} {
		_, statErr := s.Stat(test.path, test.instance)
		_, _, readErr := s.Contents(test.path, test.instance)
		_, lockErr := s.Lock(test.path, test.instance)
		blocked := s.Blocked(test.path, test.instance, 1, 1, lockfs.Shared)
		for name, err := range map[string]error{"stat": statErr, "read": readErr, "lock": lockErr, "lock2": blocked} {
			if lockfs.KindOf(err) != test.want {
				t.Errorf("%s of %s: %v, want %v", name, test.path, err, test.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), strings.TrimSpace(name[:4]+" "+string(test.path))+": ") {
				t.Errorf("%q does not say what was attempted", err)
			}
		}
	}
	if _, _, err := s.Contents("/ls/ny1/dir", 0); lockfs.KindOf(err) != lockfs.ErrIsDir {
		t.Errorf("contents of a directory: %v", err)
	}
	if _, _, err := s.List("/ls/ny1/file", 0); lockfs.KindOf(err) != lockfs.ErrNotDir {
		t.Errorf("listing of a file: %v", err)
	}
	if err := s.Blocked("/ls/ny1/file", 0, 99, 1, lockfs.Shared); lockfs.KindOf(err) != lockfs.ErrSession {
		t.Errorf("lock of a session that is not there: %v", err)
	}
	if err := s.Blocked("/ls/ny1/file", 0, 1, 1, lockfs.Free); lockfs.KindOf(err) != lockfs.ErrInvalid {
		t.Errorf("lock in no mode: %v", err)
	}
}

func TestACLNames(t *testing.T) {
	d := newDriver(t, nil)
	session := d.session()
	stat := func(p lockfs.Path) lockfs.Stat {
		st, err := d.state.Stat(p, 0)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	d.do(d.number(session, create(&storepb.Create{Path: "/ls/ny1/dir", Type: 2, Acl: &storepb.ACLNames{Read: "/ls/ny1/acl/r", Write: "/ls/ny1/acl/w"}})))
	d.do(d.number(session, create(&storepb.Create{Path: "/ls/ny1/dir/file", Type: 1, Acl: &storepb.ACLNames{Write: "/ls/ny1/acl/w2"}})))
	want := lockfs.ACLNames{Read: "/ls/ny1/acl/r", Write: "/ls/ny1/acl/w2"}
	if got := stat("/ls/ny1/dir/file"); got.ACL != want || got.ACLGeneration != 1 {
		t.Errorf("made with %+v", got)
	}
	for _, wantGeneration := range []uint64{2, 2} { // the second time nothing changes
		d.do(d.number(session, setACL(&storepb.SetACL{Path: "/ls/ny1/dir/file", Acl: &storepb.ACLNames{ChangeAcl: "/ls/ny1/acl/c"}})))
		want.ChangeACL = "/ls/ny1/acl/c"
		if got := stat("/ls/ny1/dir/file"); got.ACL != want || got.ACLGeneration != wantGeneration || got.ContentGeneration != 1 {
			t.Errorf("after a change %+v", got)
		}
	}
	d.do(d.number(session, rename(&storepb.Rename{From: "/ls/ny1/dir/file", To: "/ls/ny1/file"})))
	if got := stat("/ls/ny1/file"); got.ACL != want || got.ACLGeneration != 3 {
		t.Errorf("after a rename %+v", got)
	}
}

// A replica stops at whatever it does not know, at any depth, before it has changed anything.
func TestUnknownStops(t *testing.T) {
	m := batch([]*storepb.Condition{{Path: "/ls/ny1/x", Absent: true}},
		edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{writtenTo(1, "x")}}),
		create(&storepb.Create{Path: "/ls/ny1/x", Type: 1, Acl: &storepb.ACLNames{Read: "/ls/ny1/acl"}}))
	m.Session, m.Number, m.Confirmed = 1, 9, []*storepb.Range{{First: 1, Last: 2}}
	m.Guard = &storepb.Guard{Path: "/ls/ny1/file"}
	good := &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{office(&storepb.Seed{Limits: &storepb.Limits{}}), mutation(m)}}
	if err := checkKnown(good.ProtoReflect()); err != nil {
		t.Fatal(err)
	}
	planted := map[protoreflect.Name]bool{}
	each(good.ProtoReflect(), func(m protoreflect.Message) {
		planted[m.Descriptor().Name()] = true
		m.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 500, protowire.VarintType), 1))
		checkStops(t, good, "a field more in "+string(m.Descriptor().Name()))
		m.SetUnknown(nil)
		for oneofs, i := m.Descriptor().Oneofs(), 0; i < oneofs.Len(); i++ {
			field := m.WhichOneof(oneofs.Get(i))
			value := m.Get(field)
			m.Clear(field)
			checkStops(t, good, "another kind of "+string(m.Descriptor().Name()))
			m.Set(field, value)
		}
	})
	for _, name := range []protoreflect.Name{"Seed", "Limits", "Range", "Guard", "Condition", "WriteAt", "ACLNames"} {
		if !planted[name] {
			t.Errorf("%s was not tried", name)
		}
	}
	checkStops(t, &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{nil}}, "no command")
	checkStops(t, &storepb.Proposal{Epoch: 1, Commands: []*storepb.Command{{Command: &storepb.Command_Mutation{}}}}, "an empty command")
}

func each(m protoreflect.Message, do func(protoreflect.Message)) {
	do(m)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				each(value.List().Get(i).Message(), do)
			}
		default:
			each(value.Message(), do)
		}
		return true
	})
}

func checkStops(t *testing.T, p *storepb.Proposal, what string) {
	t.Helper()
	d, _ := smallCell(t, nil)
	hash, applied := d.state.Hash(), d.state.Applied()
	if _, err := d.state.Apply(applied+1, p); err == nil || d.state.Hash() != hash || d.state.Applied() != applied {
		t.Errorf("%s: error %v, applied %d", what, err, d.state.Applied())
	}
}

func TestLogDoesNotGoBack(t *testing.T) {
	d, _ := smallCell(t, nil)
	if _, err := d.state.Apply(d.index, &storepb.Proposal{Epoch: 1}); err != nil {
		t.Errorf("a second proposal of one entry: %v", err)
	}
	if _, err := d.state.Apply(d.index-1, &storepb.Proposal{Epoch: 1}); err == nil {
		t.Error("an older entry was applied")
	}
}

func TestListsAreInOrder(t *testing.T) {
	d := newDriver(t, nil)
	one, two := d.session(), d.session()
	for _, name := range []string{"b", "a", "b/x", "a-b", "b-c"} {
		d.do(d.number(one, create(&storepb.Create{Path: "/ls/ny1/" + name, Type: 2})))
	}
	for _, name := range []string{"b/x", "b-c", "a"} {
		for owner := range uint64(3) {
			d.do(d.number(two, acquire(&storepb.Acquire{Path: "/ls/ny1/" + name, Owner: 9 - owner, Mode: 1, LockDelayMs: 1000})))
		}
	}
	entries, _, _ := d.state.List("/ls/ny1", 0)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	if got := strings.Join(names, " "); got != "a a-b b b-c" {
		t.Errorf("listing %s", got)
	}
	if got := d.state.LockedBelow("/ls/ny1/b"); len(got) != 1 || got[0] != "/ls/ny1/b/x" {
		t.Errorf("locked below b: %v", got)
	}
	if got := d.state.LockedBelow("/ls/ny1"); len(got) != 3 || got[0] != "/ls/ny1/a" || got[2] != "/ls/ny1/b/x" {
		t.Errorf("locked below the root: %v", got)
	}
	held := d.state.HeldBy(two)
	if len(held) != 9 || held[0].Node.Path != "/ls/ny1/a" || held[0].Owner != 7 || held[2].Owner != 9 || held[8].Node.Path != "/ls/ny1/b/x" {
		t.Errorf("held %v", held)
	}
	if got := d.state.Sessions(); len(got) != 2 || got[0].ID != one || got[1].Identity != "ann" || got[1].Host != "h1" {
		t.Errorf("sessions %+v", got)
	}
	if _, there := d.state.Session(two); !there {
		t.Error("session 2 is not there")
	}
	out := d.apply(expire(two))
	if got := out.Effects.Delays; len(got) != 3 || got[0].Path != "/ls/ny1/a" || len(out.Effects.Lost) != 9 {
		t.Errorf("effects %+v", out.Effects)
	}
	if got := d.state.Delays(); len(got) != 3 || got[1].Path != "/ls/ny1/b-c" || got[2].Index != d.index {
		t.Errorf("delays %+v", got)
	}
	if _, there := d.state.Session(two); there || len(d.state.HeldBy(two)) > 0 {
		t.Error("session 2 is still there")
	}
}
