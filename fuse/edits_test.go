package fuse

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockfs/client"
)

func at(offset int64, data string) client.Change {
	return client.Change{Kind: client.WriteAt, Offset: offset, Data: []byte(data)}
}

func added(data string) client.Change { return client.Change{Kind: client.Append, Data: []byte(data)} }

func cut(size int64) client.Change { return client.Change{Kind: client.Truncate, Offset: size} }

func TestEditsList(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*edits)
		list []client.Change
	}{
		{"writes that follow each other are one", func(e *edits) { e.write(3, []byte("ab")); e.write(5, []byte("c")) },
			[]client.Change{at(3, "abc")}},
		{"a write inside the last one", func(e *edits) { e.write(0, []byte("abcd")); e.write(1, []byte("XY")) },
			[]client.Change{at(0, "aXYd")}},
		{"a write elsewhere", func(e *edits) { e.write(0, []byte("a")); e.write(5, []byte("b")) },
			[]client.Change{at(0, "a"), at(5, "b")}},
		{"a write before the last one", func(e *edits) { e.write(5, []byte("b")); e.write(0, []byte("a")) },
			[]client.Change{at(5, "b"), at(0, "a")}},
		{"appends are one", func(e *edits) { e.append([]byte("a")); e.append([]byte("b")) },
			[]client.Change{added("ab")}},
		{"cut to nothing forgets what came before", func(e *edits) { e.write(0, []byte("abc")); e.truncate(0); e.write(1, []byte("z")) },
			[]client.Change{cut(0), at(0, "\x00z")}},
		{"cut to nothing alone", func(e *edits) { e.truncate(0) },
			[]client.Change{cut(0)}},
		{"an append after a cut is part of the whole", func(e *edits) { e.truncate(0); e.append([]byte("a")); e.append([]byte("b")) },
			[]client.Change{cut(0), at(0, "ab")}},
		{"a whole that is cut and grown", func(e *edits) { e.truncate(0); e.write(0, []byte("abc")); e.truncate(1); e.truncate(3) },
			[]client.Change{cut(0), at(0, "a\x00\x00")}},
		{"shorter and shorter", func(e *edits) { e.truncate(9); e.truncate(4) },
			[]client.Change{cut(4)}},
		{"longer, whatever it is", func(e *edits) { e.extend(9) },
			[]client.Change{{Kind: client.Extend, Offset: 9}}},
		{"a whole made longer", func(e *edits) { e.truncate(0); e.append([]byte("a")); e.extend(3); e.extend(2) },
			[]client.Change{cut(0), at(0, "a\x00\x00")}},
		{"shorter, then longer", func(e *edits) { e.truncate(4); e.truncate(9) },
			[]client.Change{cut(4), cut(9)}},
	} {
		var e edits
		test.edit(&e)
		if diff := cmp.Diff(test.list, e.list()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.name, diff)
		}
	}
}

// TestEditsAreWhatWasDone makes random edits on a plain slice beside the list, and applies the list.
func TestEditsAreWhatWasDone(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		base := []byte(strings.Repeat("base", random.IntN(4)))
		want := bytes.Clone(base)
		var e edits
		for range 1 + random.IntN(12) {
			data := bytes.Repeat([]byte{byte('a' + random.IntN(26))}, 1+random.IntN(4))
			switch offset := int64(random.IntN(12)); random.IntN(5) {
			case 0, 1:
				e.write(offset, data)
				want = overwrite(want, offset, data)
			case 2:
				e.append(data)
				want = append(want, data...)
			case 3:
				e.truncate(offset)
				want = resize(want, offset)
			case 4:
				e.extend(offset)
				want = resize(want, max(offset, int64(len(want))))
			}
		}
		if got := apply(base, e.list()); !bytes.Equal(got, want) {
			t.Errorf("seed %d: %q becomes %q, want %q", seed, base, got, want)
		}
		if end := e.end(int64(len(base))); end != int64(len(want)) {
			t.Errorf("seed %d: end %d, want %d", seed, end, len(want))
		}
	}
}

func TestEditsAreBounded(t *testing.T) {
	var e edits
	for i := range changesMax {
		if e.full(1) {
			t.Fatalf("full after %d changes", i)
		}
		e.write(int64(i)*2, []byte("x"))
	}
	if !e.full(1) {
		t.Errorf("not full after %d changes", changesMax)
	}
	e = edits{}
	if e.full(2 * changesBytesMax) {
		t.Error("full before the first change") // which is sent, and may be refused
	}
	e.append(make([]byte, changesBytesMax-1))
	if e.full(1) || !e.full(2) {
		t.Errorf("with %d bytes: full for one more %v, for two %v", changesBytesMax-1, e.full(1), e.full(2))
	}
}
