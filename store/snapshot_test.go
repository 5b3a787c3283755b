package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"lockfs/store/storepb"
)

// livedIn is a cell with some of everything in it.
func livedIn(t testing.TB) *driver {
	d, session := smallCell(t, nil)
	other := d.session()
	d.do(d.number(other, create(&storepb.Create{Path: "/ls/ny1/dir/e", Type: 1, Ephemeral: true, Acl: &storepb.ACLNames{Read: "/ls/ny1/acl"}})))
	d.do(d.number(other, acquire(&storepb.Acquire{Path: "/ls/ny1/dir", Owner: 1, Mode: 1, LockDelayMs: 30000})))
	d.do(d.number(session, acquire(&storepb.Acquire{Path: "/ls/ny1/file", Owner: 1, Mode: 2, Note: "pid 7"})))
	d.do(expire(other))
	d.try(d.number(session, deletion(&storepb.Delete{Path: "/ls/ny1/dir"})))
	return d
}

func TestSnapshotRoundTrip(t *testing.T) {
	d := livedIn(t)
	written := snapshotOf(t, d.state)
	got, position, err := ReadSnapshot(iotest.OneByteReader(bytes.NewReader(written)), testCell)
	if err != nil || string(position) != "position" {
		t.Fatalf("position %q, %v", position, err)
	}
	checkSame(t, "snapshot", got, d.state)
	// What was read can go on.
	more := d.number(1, create(&storepb.Create{Path: "/ls/ny1/more", Type: 1}))
	d.do(more)
	replay(t, got, d.log, d.index-1)
	checkSame(t, "snapshot and an entry", got, d.state)
}

func TestSnapshotOfNothing(t *testing.T) {
	got, _, err := ReadSnapshot(bytes.NewReader(snapshotOf(t, New(testCell))), testCell)
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, "empty", got, New(testCell))
}

// Every single flipped bit, every cut and everything that comes after the end is found.
func TestSnapshotDamage(t *testing.T) {
	written := snapshotOf(t, livedIn(t).state)
	refused := func(what string, at int, damaged []byte) {
		t.Helper()
		state, _, err := ReadSnapshot(bytes.NewReader(damaged), testCell)
		if err == nil || state != nil {
			t.Fatalf("%s at byte %d of %d was not noticed", what, at, len(written))
		}
		inVersion := at >= len(snapshotMagic) && at < len(snapshotMagic)+4
		if !errors.Is(err, ErrCorrupt) && !inVersion {
			t.Errorf("%s at byte %d: %v, which is no ErrCorrupt", what, at, err)
		}
	}
	for i := range written {
		for bit := range 8 {
			damaged := bytes.Clone(written)
			damaged[i] ^= 1 << bit
			refused("a flip", i, damaged)
		}
		refused("a cut", len(written)+i, written[:i])
	}
	refused("a byte more", len(written), append(bytes.Clone(written), 0))
	refused("another snapshot", len(written), append(bytes.Clone(written), written...))
}

// frames splits a snapshot into what is before its parts, and its parts.
func frames(t *testing.T, snapshot []byte) (before []byte, parts [][]byte) {
	t.Helper()
	before, rest := snapshot[:len(snapshotMagic)+4], snapshot[len(snapshotMagic)+4:]
	for len(rest) > 0 {
		size := frameHeadSize + int(binary.BigEndian.Uint32(rest[1:]))
		parts, rest = append(parts, rest[:size]), rest[size:]
	}
	return before, parts
}

// Parts that are whole each for itself, but not together.
func TestSnapshotOfOtherParts(t *testing.T) {
	before, parts := frames(t, snapshotOf(t, livedIn(t).state))
	last := len(parts) - 1
	build := func(order ...int) []byte {
		b := bytes.Clone(before)
		for _, i := range order {
			b = append(b, parts[i]...)
		}
		return b
	}
	var all []int
	for i := range parts {
		all = append(all, i)
	}
	if _, _, err := ReadSnapshot(bytes.NewReader(build(all...)), testCell); err != nil {
		t.Fatal(err)
	}
	without := func(drop int) (order []int) {
		for i := range parts {
			if i != drop {
				order = append(order, i)
			}
		}
		return order
	}
	swapped := append([]int{}, all...)
	swapped[2], swapped[3] = swapped[3], swapped[2]
	for name, order := range map[string][]int{
		"no head": without(0), "no cell": without(1), "a record missing": without(last - 1), "a directory missing": without(4),
		"no end": without(last), "records in other order": swapped, "a record twice": append([]int{0, 1, 2, 2}, all[3:]...),
		"two heads": append([]int{0}, all...), "nothing but head and end": {0, last},
	} {
		if _, _, err := ReadSnapshot(bytes.NewReader(build(order...)), testCell); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := livedIn(t)
	other.do(other.number(1, setACL(&storepb.SetACL{Path: "/ls/ny1/file", Acl: &storepb.ACLNames{Read: "/ls/ny1/acl"}})))
	_, otherParts := frames(t, snapshotOf(t, other.state))
	mixed := bytes.Clone(before)
	for i, part := range parts {
		if i == last-2 {
			part = otherParts[i]
		}
		mixed = append(mixed, part...)
	}
	if _, _, err := ReadSnapshot(bytes.NewReader(mixed), testCell); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "running hash") {
		t.Errorf("a record of another time: %v", err)
	}
}

func TestSnapshotRefusals(t *testing.T) {
	written := snapshotOf(t, livedIn(t).state)
	newer := bytes.Clone(written)
	newer[len(snapshotMagic)+3] = 2
	for _, test := range []struct {
		name   string
		stream []byte
		cell   string
		want   string
	}{
		{"another cell", written, "sf1", `it is of the cell "ny1", not of "sf1"`},
		{"a newer format", newer, testCell, "it is of format 2, this version knows format 1"},
		{"something else", bytes.Repeat([]byte("GIF89a"), 100), testCell, "it does not begin as a snapshot does"},
		{"nothing", nil, testCell, "it ends before its end"},
	} {
		_, _, err := ReadSnapshot(bytes.NewReader(test.stream), test.cell)
		if err == nil || !strings.HasPrefix(err.Error(), "read snapshot of the cell "+test.cell+": ") || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	broken := errors.New("the peer is gone")
	_, _, err := ReadSnapshot(io.MultiReader(bytes.NewReader(written[:300]), iotest.ErrReader(broken)), testCell)
	if !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
		t.Errorf("a stream that breaks: %v", err)
	}
	if err := livedIn(t).state.WriteSnapshot(failingWriter{broken}, nil); !errors.Is(err, broken) {
		t.Errorf("a stream that takes nothing: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// Records that no state has, in frames that are whole: a program that writes such has a fault, and
// no replica takes it over.
func TestLoaderTrustsNothing(t *testing.T) {
	acl := &storepb.ACLNames{}
	root := &storepb.Node{Path: "/ls/ny1", Type: 2, Instance: 1, Checksum: new(node).sum()}
	withNode := func(n *storepb.Node) []*storepb.Record {
		return []*storepb.Record{cellRecord(2, 0), nodeRecord(root), nodeRecord(n)}
	}
	file := func(change func(*storepb.Node)) []*storepb.Record {
		n := &storepb.Node{Path: "/ls/ny1/f", Type: 1, Instance: 2, Checksum: new(node).sum(), Acl: acl}
		change(n)
		return withNode(n)
	}
	session := func(s *storepb.Session) []*storepb.Record {
		return []*storepb.Record{cellRecord(1, 0), nodeRecord(root), {Record: &storepb.Record_Session{Session: s}}}
	}
	holder := &storepb.Holder{Session: 1}
	for name, records := range map[string][]*storepb.Record{
		"no cell":                    {nodeRecord(root)},
		"another cell":               {cellOf(&storepb.Cell{Name: "sf1", Nodes: 1, LastInstance: 9}), nodeRecord(root)},
		"another cluster":            {cellOf(&storepb.Cell{Name: testCell, ClusterId: 7, Nodes: 1, LastInstance: 9}), nodeRecord(root)},
		"other totals":               {cellRecord(2, 0), nodeRecord(root)},
		"a bad path":                 file(func(n *storepb.Node) { n.Path = "/ls/ny1/.." }),
		"a path elsewhere":           file(func(n *storepb.Node) { n.Path = "/ls/sf1/f" }),
		"no directory":               file(func(n *storepb.Node) { n.Path = "/ls/ny1/d/f" }),
		"no type":                    file(func(n *storepb.Node) { n.Type = 0 }),
		"no instance":                file(func(n *storepb.Node) { n.Instance = 0 }),
		"an instance to come":        file(func(n *storepb.Node) { n.Instance = 100 }),
		"another checksum":           file(func(n *storepb.Node) { n.Checksum++ }),
		"held by nobody":             file(func(n *storepb.Node) { n.LockMode = 1 }),
		"free with holders":          file(func(n *storepb.Node) { n.Holders = []*storepb.Holder{holder} }),
		"exclusive to two":           file(func(n *storepb.Node) { n.LockMode, n.Holders = 2, []*storepb.Holder{holder, {Session: 1, Owner: 1}} }),
		"held by a session that was": file(func(n *storepb.Node) { n.LockMode, n.Holders = 1, []*storepb.Holder{holder} }),
		"done backwards":             session(&storepb.Session{Id: 1, Done: []*storepb.Range{{First: 5, Last: 4}}}),
		"done that touch":            session(&storepb.Session{Id: 1, Done: []*storepb.Range{{First: 1, Last: 4}, {First: 5, Last: 6}}}),
		"done from 0":                session(&storepb.Session{Id: 1, Done: []*storepb.Range{{First: 0, Last: 4}}}),
		"a result that is not done":  session(&storepb.Session{Id: 1, Results: []*storepb.Result{{Number: 1}}}),
		"marks of no mode":           {cellRecord(1, 0), {Record: &storepb.Record_Delay{Delay: &storepb.Delay{Path: "/ls/ny1/f"}}}, nodeRecord(root)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := loadAll(records); !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v", err)
			}
		})
	}
	good := file(func(*storepb.Node) {})
	if _, err := loadAll(good); err != nil {
		t.Errorf("without a fault: %v", err)
	}
	l := newLoader(testCell, ours)
	for _, r := range good {
		if _, err := l.add(marshal(nil, r)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.finish(&storepb.Meta{Records: l.count + 1, Hash: l.state.Hash()}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another count: %v", err)
	}
	newer := file(func(n *storepb.Node) { n.ProtoReflect().SetUnknown([]byte{0xa0, 0x1f, 1}) })
	if _, err := loadAll(newer); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("a field more: %v", err)
	}
}

func cellRecord(nodes, bytes int64) *storepb.Record {
	return cellOf(&storepb.Cell{Name: testCell, LastInstance: 9, Nodes: nodes, Bytes: bytes})
}

func cellOf(c *storepb.Cell) *storepb.Record {
	c.Limits = &storepb.Limits{}
	return &storepb.Record{Record: &storepb.Record_Cell{Cell: c}}
}

func nodeRecord(n *storepb.Node) *storepb.Record {
	return &storepb.Record{Record: &storepb.Record_Node{Node: n}}
}

func loadAll(records []*storepb.Record) (*State, error) {
	l := newLoader(testCell, ours)
	for _, r := range records {
		if _, err := l.add(marshal(nil, r)); err != nil {
			return nil, err
		}
	}
	return l.finish(&storepb.Meta{Records: l.count, Hash: l.state.Hash()})
}

// FuzzReadSnapshot: no bytes make ReadSnapshot panic, and what it accepts it writes the same again.
func FuzzReadSnapshot(f *testing.F) {
	written := snapshotOf(f, livedIn(f).state)
	f.Add(written)
	f.Add(written[:len(written)/2])
	f.Add(snapshotOf(f, New(testCell)))
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		checkStable(t, b)
		checkStable(t, withSums(b))
	})
}

func checkStable(t *testing.T, b []byte) {
	state, position, err := ReadSnapshot(bytes.NewReader(b), testCell)
	if err != nil {
		return
	}
	var again bytes.Buffer
	if err := state.WriteSnapshot(&again, position); err != nil {
		t.Fatal(err)
	}
	copied, _, err := ReadSnapshot(&again, testCell)
	if err != nil {
		t.Fatalf("what was accepted once is refused: %v", err)
	}
	checkSame(t, "read again", copied, state)
}

// withSums sets the checksums of all parts right, so that the fuzzer gets past them.
func withSums(b []byte) []byte {
	b = bytes.Clone(b)
	for rest := b[min(len(b), len(snapshotMagic)+4):]; len(rest) >= frameHeadSize; {
		size := uint64(frameHeadSize) + uint64(binary.BigEndian.Uint32(rest[1:]))
		if size > uint64(len(rest)) {
			break
		}
		binary.BigEndian.PutUint64(rest[5:], frameSum(rest[0], rest[frameHeadSize:size]))
		rest = rest[size:]
	}
	return b
}
