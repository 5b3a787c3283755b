package fuse

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockfs"
	"lockfs/client"
)

// oneFile is a file at its master, to which one open file's commits go.
type oneFile struct {
	content    string
	generation uint64
}

func (f *oneFile) set(content string) { f.content, f.generation = content, f.generation+1 }

// read is what a mount does for a read of n bytes.
func (f *oneFile) read(c *contents, offset int64, n int) string {
	if c.needsFetch(offset) {
		c.pin([]byte(f.content), f.generation)
	}
	dest := make([]byte, n)
	return string(dest[:c.read(dest, offset)])
}

// commit is what a mount does at a moment of commit. It reports whether the cell took it.
func (f *oneFile) commit(c *contents) bool {
	b := c.take()
	if b.ifGeneration != 0 && b.ifGeneration != f.generation {
		c.lost()
		return false
	}
	f.set(string(apply([]byte(f.content), b.changes)))
	c.committed(f.generation, int64(len(f.content)))
	return true
}

const testLimit = 256 << 10

func opened(cut bool) (*contents, *oneFile) {
	c, f := &contents{}, &oneFile{"hello", 7}
	c.opened(5, testLimit, 1, cut)
	return c, f
}

func (c *contents) mustWrite(t *testing.T, offset int64, data string, atEnd bool) {
	t.Helper()
	if err := c.write(offset, []byte(data), atEnd, writer{owner: 1, known: true}); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestAPassSeesOneVersion(t *testing.T) {
	c, f := opened(false)
	expect(t, "first read", f.read(c, 0, 3), "hel")
	f.set("HELLO, WORLD")
	expect(t, "read on", f.read(c, 3, 3), "lo")
	expect(t, "the end, told from the pinned version", f.read(c, 5, 3), "")
	expect(t, "a read after the end", f.read(c, 5, 100), ", WORLD")
	f.set("anew")
	expect(t, "a read from the start", f.read(c, 0, 100), "anew")
	f.set("more")
	expect(t, "the same place again", f.read(c, 0, 100), "more")
}

func TestAGrantedLockShowsTheCurrentVersion(t *testing.T) {
	c, f := opened(false)
	expect(t, "before", f.read(c, 0, 2), "he")
	f.set("WORLD")
	c.unpin()
	expect(t, "read on under the lock", f.read(c, 2, 9), "RLD")
}

func TestOwnEditsShow(t *testing.T) {
	c, f := opened(false)
	c.mustWrite(t, 1, "E", false)
	c.mustWrite(t, 0, "!", true)
	expect(t, "blind writes", f.read(c, 0, 9), "hEllo!")
	f.set("other")
	expect(t, "again", f.read(c, 0, 9), "hEllo!")
	if f.commit(c) {
		t.Error("an open file that had read generation 7 committed onto 8")
	}

	c, f = opened(true)
	c.mustWrite(t, 0, "new", false)
	expect(t, "cut and written", f.read(c, 0, 9), "new")
	expect(t, "the cell meanwhile", f.content, "hello")
}

func TestCommits(t *testing.T) {
	for _, test := range []struct {
		name  string
		cut   bool
		do    func(t *testing.T, c *contents, f *oneFile)
		taken bool
		want  string
	}{
		{"a blind write goes to the latest", false, func(t *testing.T, c *contents, f *oneFile) {
			c.mustWrite(t, 0, "J", false)
			f.set("HELLO")
		}, true, "JELLO"},
		{"an append goes to the latest", false, func(t *testing.T, c *contents, f *oneFile) {
			c.mustWrite(t, 999, "!", true)
			f.set("HELLO")
		}, true, "HELLO!"},
		{"an append goes to the latest, read or not", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.mustWrite(t, 0, "!", true)
			f.set("HELLO")
		}, true, "HELLO!"},
		{"a write onto what was read", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.mustWrite(t, 0, "J", false)
		}, true, "Jello"},
		{"a write onto what was read and overtaken", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.mustWrite(t, 0, "J", false)
			f.set("HELLO")
		}, false, "HELLO"},
		{"one after the other", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.mustWrite(t, 0, "J", false)
			f.commit(c)
			c.mustWrite(t, 1, "E", false)
		}, true, "JEllo"},
		{"an append of its own is no other's work", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.mustWrite(t, 0, "!", true)
			f.commit(c)
			c.mustWrite(t, 0, "J", false)
		}, true, "Jello!"},
		{"another's change before its own append", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			f.set("HELLO")
			c.mustWrite(t, 0, "!", true)
			f.commit(c)
			c.mustWrite(t, 0, "J", false)
		}, false, "HELLO!"},
		{"what was written stands on what was read before it", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.unpin()
			f.set("HELLO")
			c.mustWrite(t, 0, "J", false)
			f.read(c, 0, 9)
		}, false, "HELLO"},
		{"a cut file is set as a whole", true, func(t *testing.T, c *contents, f *oneFile) {
			c.mustWrite(t, 0, "new", false)
			f.set("HELLO, WORLD")
		}, true, "new"},
		{"and again, whatever others did between", true, func(t *testing.T, c *contents, f *oneFile) {
			c.mustWrite(t, 0, "a\n", false)
			f.commit(c)
			f.set("other\n")
			c.mustWrite(t, 2, "b\n", false)
		}, true, "a\nb\n"},
		{"unless it has read what they did", true, func(t *testing.T, c *contents, f *oneFile) {
			c.mustWrite(t, 0, "a\n", false)
			f.commit(c)
			f.set("other\n")
			f.read(c, 0, 9)
			c.mustWrite(t, 0, "O", false)
		}, true, "Other\n"},
		{"or appends", true, func(t *testing.T, c *contents, f *oneFile) {
			c.mustWrite(t, 0, "a\n", true)
			f.commit(c)
			f.set("other\n")
			c.mustWrite(t, 0, "b\n", true)
		}, true, "other\nb\n"},
		{"read, cut, written: the last writer wins", false, func(t *testing.T, c *contents, f *oneFile) {
			f.read(c, 0, 9)
			c.truncate(0, writer{owner: 1, known: true})
			c.mustWrite(t, 0, "new", false)
			f.set("HELLO")
		}, true, "new"},
		{"a file made shorter, unread", false, func(t *testing.T, c *contents, f *oneFile) {
			c.truncate(2, writer{owner: 1, known: true})
			f.set("HELLO")
		}, true, "HE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, f := opened(test.cut)
			test.do(t, c, f)
			if taken := f.commit(c); taken != test.taken {
				t.Errorf("committed: %v, want %v", taken, test.taken)
			}
			expect(t, "content", f.content, test.want)
		})
	}
}

// TestFlush tells what shells and programs do at close, and what of it is published when.
func TestFlush(t *testing.T) {
	const shell, child = 1, 2
	type event struct {
		write, flush uint64 // by whom
		ask          bool
		commit       bool
	}
	for _, test := range []struct {
		name   string
		cut    bool
		events []event
		owed   bool // at the release
	}{
		{"echo x > f", true, []event{{flush: shell}, {write: shell}, {flush: shell, commit: true}}, false},
		{": > f", true, []event{{flush: shell}, {flush: shell, commit: true}}, false},
		{"open(f, 'w').close()", true, []event{{flush: shell}}, true},
		{"exec 9>f, and commands", true, []event{{flush: shell}, {flush: child}, {flush: child}}, true},
		{"exec 9>f; flock -n 9 || exit", true, []event{{flush: shell}, {ask: true}, {flush: child}, {flush: shell}}, false},
		{"exec 9>f; flock 9; echo x >&9", true, []event{{flush: shell}, {ask: true}, {flush: child}, {write: shell}, {flush: child}, {flush: shell, commit: true}}, false},
		{"for …; do /bin/echo x; done > f", true, []event{{flush: shell}, {write: child}, {flush: child, commit: true}, {write: child}, {flush: child, commit: true}, {flush: shell}}, false},
		{"a child that wrote nothing", false, []event{{write: shell}, {flush: child}, {flush: shell, commit: true}, {flush: shell}}, false},
		{"reading", false, []event{{flush: shell}, {flush: shell}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, f := opened(test.cut)
			for i, e := range test.events {
				switch {
				case e.write != 0:
					c.write(0, []byte("x"), false, writer{owner: e.write, known: true})
				case e.ask:
					c.asked = true
				default:
					commit := c.flush(e.flush)
					if commit != e.commit {
						t.Errorf("event %d: commits: %v, want %v", i, commit, e.commit)
					}
					if commit {
						f.commit(c)
					}
				}
			}
			if owed := c.owed(); owed != test.owed {
				t.Errorf("owed at the release: %v, want %v", owed, test.owed)
			}
		})
	}
}

func TestReturned(t *testing.T) {
	for _, test := range []struct {
		name   string
		cut    bool
		before func(c *contents)
		during func(c *contents)
		want   []client.Change
	}{
		{"changes", false, func(c *contents) { c.write(0, []byte("a"), false, writer{}) },
			func(c *contents) { c.write(3, []byte("b"), false, writer{}) }, []client.Change{at(0, "a"), at(3, "b")}},
		{"changes, then a cut", false, func(c *contents) { c.write(0, []byte("a"), false, writer{}) },
			func(c *contents) { c.truncate(0, writer{}) }, []client.Change{cut(0)}},
		{"a whole", true, func(c *contents) { c.write(0, []byte("a"), false, writer{}) },
			func(c *contents) { c.write(1, []byte("b"), false, writer{}) }, []client.Change{cut(0), at(0, "ab")}},
		{"a whole, then an append", true, func(c *contents) { c.write(0, []byte("a"), false, writer{}) },
			func(c *contents) { c.write(0, []byte("b"), true, writer{}) }, []client.Change{cut(0), at(0, "ab")}},
		{"a cut", true, func(c *contents) {}, func(c *contents) {}, []client.Change{cut(0)}},
	} {
		c, f := opened(test.cut)
		test.before(c)
		c.take()
		test.during(c)
		shown := f.read(c, 0, 9)
		c.returned()
		if again := f.read(c, 0, 9); again != shown {
			t.Errorf("%s: shows %q before it was returned, %q after", test.name, shown, again)
		}
		if !c.owed() {
			t.Errorf("%s: nothing owed", test.name)
		}
		if diff := cmp.Diff(test.want, c.take().changes); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.name, diff)
		}
	}
}

func TestTooLarge(t *testing.T) {
	for _, test := range []struct {
		name   string
		cut    bool
		offset int64
		size   int64
		atEnd  bool
		ok     bool
	}{
		{"all of it", true, 0, testLimit, false, true},
		{"one more", true, 0, testLimit + 1, false, false},
		{"the last byte", false, testLimit - 1, 1, false, true},
		{"past the end", false, testLimit, 1, false, false},
		{"no such offset", false, 1<<63 - 1, 1, false, false},
		{"what fits behind hello", false, 0, testLimit - 5, true, true},
		{"what does not", false, 0, testLimit - 4, true, false},
		{"behind nothing", true, 0, testLimit, true, true},
	} {
		c, _ := opened(test.cut)
		err := c.write(test.offset, make([]byte, test.size), test.atEnd, writer{})
		if ok := err == nil; ok != test.ok || !ok && !errors.Is(err, lockfs.ErrTooLarge) {
			t.Errorf("%s: %v, want ok %v", test.name, err, test.ok)
		}
		if c.edits.dirty != (test.ok || test.cut) {
			t.Errorf("%s: dirty %v", test.name, c.edits.dirty)
		}
	}
}
