package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"lockfs/store/storepb"
)

// A churn is a cell whose files come and go, and its file after each of its last two checkpoints.
type churn struct {
	*driver
	rand         *rand.Rand
	path         string
	db           *DB
	session      uint64
	before, file []byte // as many pages as bbolt uses
	was, is      []byte // snapshots of the states in them
}

func newChurn(t *testing.T, seed uint64) *churn {
	d, session := smallCell(t, nil)
	c := &churn{driver: d, session: session, rand: rand.New(rand.NewPCG(seed, 0)), path: filepath.Join(t.TempDir(), "store")}
	c.db = openDB(t, c.path)
	c.db.bolt.NoSync, c.db.bolt.NoGrowSync = true, true
	for range 4 {
		c.work(40)
		c.save()
	}
	if err := c.db.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

// work makes, writes and deletes files, small ones and such as need pages of their own.
func (c *churn) work(steps int) {
	c.t.Helper()
	for range steps {
		path := fmt.Sprintf("/ls/ny1/dir/%090d", c.rand.IntN(80)) // long, for pages above the pages
		content := strings.Repeat("x", []int{0, 9, 300, 5000}[c.rand.IntN(4)])
		c.try(c.number(c.session, [...]*storepb.Mutation{
			create(&storepb.Create{Path: path, Type: 1, Content: []byte(content), Ephemeral: c.rand.IntN(4) == 0}),
			edit(&storepb.Edit{Path: path, Changes: []*storepb.Change{truncated(0), appended(content)}}),
			deletion(&storepb.Delete{Path: path}),
			acquire(&storepb.Acquire{Path: path, Mode: 2, LockDelayMs: 1000}),
		}[c.rand.IntN(4)]))
	}
}

func (c *churn) save() {
	c.t.Helper()
	if err := c.db.Save(c.state.Checkpoint([]byte("position"))); err != nil {
		c.t.Fatal(err)
	}
	c.before, c.was = c.file, c.is
	c.file, c.is = usedPages(c.t, c.db), snapshotOf(c.t, c.state)
}

// usedPages returns as much of the file as bbolt uses.
func usedPages(t testing.TB, db *DB) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := db.bolt.View(func(tx *bbolt.Tx) error { _, err := tx.WriteTo(&file); return err }); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(db.path)
	if err != nil {
		t.Fatal(err)
	}
	return raw[:file.Len()] // not what WriteTo wrote, which makes meta pages of its own
}

// open opens a file that something happened to. It is refused in a sentence, as damaged, or it loads
// as exactly one of the states that it may hold, and goes on from there. It returns which: -1 where it
// was refused.
func (c *churn) open(what string, file []byte, may ...[]byte) (holds int) {
	c.t.Helper()
	if err := os.WriteFile(c.path, file, 0o600); err != nil {
		c.t.Fatal(err)
	}
	db, err := OpenDB(c.path)
	if err == nil {
		defer db.Close()
		db.bolt.NoSync, db.bolt.NoGrowSync = true, true
		var s *State
		if s, _, err = db.Load(testCell); err == nil {
			return c.checkLoaded(what, db, s, may)
		}
	}
	if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "\n") {
		c.t.Fatalf("%s: %v", what, err)
	}
	return -1
}

// checkLoaded also saves something more, for which bbolt looks for room in the file.
func (c *churn) checkLoaded(what string, db *DB, s *State, may [][]byte) (holds int) {
	c.t.Helper()
	got := snapshotOf(c.t, s)
	for holds < len(may) && !bytes.Equal(got, may[holds]) {
		holds++
	}
	if holds == len(may) {
		c.t.Fatalf("%s: loads as another state", what)
	}
	more := &churn{driver: &driver{t: c.t, state: s, epoch: s.Epoch(), index: s.Applied(), next: map[uint64]uint64{}}, rand: c.rand}
	more.session = more.driver.session()
	more.work(10)
	if err := db.Save(s.Checkpoint(nil)); err != nil {
		c.t.Fatalf("%s: it loads, and takes no checkpoint: %v", what, err)
	}
	if again, _, err := db.Load(testCell); err != nil {
		c.t.Fatalf("%s: it loads, but not after another checkpoint: %v", what, err)
	} else {
		checkSame(c.t, what, again, s)
	}
	return holds
}

// mayHold returns what a file may load as that is damaged in these bytes. Where the newest page of
// bbolt's own is not whole, as after a crash, it takes the one before.
func (c *churn) mayHold(from int) [][]byte {
	if from < 2*os.Getpagesize() {
		return [][]byte{c.is, c.was}
	}
	return [][]byte{c.is}
}

// Flips at the head of every page and in many other places, cuts at every page and blank pages.
func TestDamagedFile(t *testing.T) {
	c := newChurn(t, 1)
	flips, refused := 0, 0
	page := os.Getpagesize()
	for at := 0; at < len(c.file); at += sized(17, 1) {
		if at%page > 100 && at%23 != 0 {
			continue // the heads of the pages are what bbolt itself reads
		}
		damaged := bytes.Clone(c.file)
		damaged[at] ^= 1 << (at % 8)
		flips++
		if c.open(fmt.Sprintf("a flip at %d of %d", at, len(c.file)), damaged, c.mayHold(at)...) < 0 {
			refused++
		}
	}
	for at := 0; at < len(c.file); at += page {
		for _, cut := range []int{at, at + 1, at + 700} {
			if cut > 0 && c.open(fmt.Sprintf("a cut at %d", cut), c.file[:cut], c.mayHold(cut)...) >= 0 && cut < len(c.file) {
				t.Errorf("a cut at %d of %d was not noticed", cut, len(c.file))
			}
		}
		blank := bytes.Clone(c.file)
		clear(blank[at : at+page])
		c.open(fmt.Sprintf("a blank page at %d", at), blank, c.mayHold(at)...)
	}
	if c.open("no damage", c.file, c.is) != 0 || refused < flips/5 {
		t.Errorf("%d of %d flips were refused", refused, flips)
	}
	t.Logf("%d of %d flips in %d bytes were refused", refused, flips, len(c.file))
}

// Damage of any kind anywhere: a few flips, garbage, a cut, pages that were lost on their way to the
// disk or went to the wrong place.
func TestRandomDamage(t *testing.T) {
	for seed := range uint64(sized(1, 100)) {
		c := newChurn(t, seed+1)
		refused := 0
		for i := range 150 {
			damaged, what, first := c.damage(c.file, c.before)
			if c.open(fmt.Sprintf("seed %d, damage %d: %s from byte %d of %d", seed+1, i, what, first, len(c.file)), damaged, c.mayHold(first)...) < 0 {
				refused++
			}
		}
		if refused < 40 {
			t.Errorf("seed %d: %d damages were noticed", seed+1, refused)
		}
	}
}

// The same with a stream, which has no bytes that do not count.
func TestRandomDamageOfSnapshot(t *testing.T) {
	c := newChurn(t, 1)
	for i := range sized(300, 20_000) {
		damaged, what, first := c.damage(c.is, c.was)
		_, _, err := ReadSnapshot(bytes.NewReader(damaged), testCell)
		switch format := first < len(snapshotMagic)+4; {
		case bytes.Equal(damaged, c.is) && err == nil:
		case err == nil || strings.Contains(err.Error(), "\n") || !format && !errors.Is(err, ErrCorrupt):
			t.Fatalf("damage %d: %s from byte %d of %d: %v", i, what, first, len(c.is), err)
		}
	}
}

// damage does something to a copy of a file and returns the first byte that it is about.
func (c *churn) damage(whole, before []byte) (file []byte, what string, first int) {
	file = bytes.Clone(whole)
	page := os.Getpagesize()
	at, other := c.rand.IntN(len(file)), page*c.rand.IntN(len(file)/page)
	switch c.rand.IntN(6) {
	case 0:
		file[at] ^= 1 << c.rand.IntN(8)
		return file, "a flip", at
	case 1:
		for i := range 1 + c.rand.IntN(8) {
			file[min(at+i*c.rand.IntN(50), len(file)-1)] ^= byte(1 + c.rand.IntN(255))
		}
		return file, "flips", at
	case 2:
		for i := range min(c.rand.IntN(2*page), len(file)-at) {
			file[at+i] = byte(c.rand.Uint32())
		}
		return file, "garbage", at
	case 3:
		return file[:max(at, 1)], "a cut", max(at, 1)
	case 4:
		at -= at % page
		copy(file[at:min(at+page, len(file))], before[min(at, len(before)-page):])
		return file, "a page of before", at
	}
	at -= at % page
	copy(file[at:], whole[other:other+page])
	return file, "a page of elsewhere", at
}

// A process or a machine that dies while a checkpoint is saved leaves any part of its pages behind,
// and perhaps half of the one that makes them count. The file is then exactly as before, or after,
// and never refused.
func TestCrashInCheckpoint(t *testing.T) {
	for seed := range uint64(sized(1, 100)) {
		c := newChurn(t, seed+1)
		page := os.Getpagesize()
		before, after := grown(c.before, len(c.file)), c.file
		for i := range 40 {
			file := bytes.Clone(before)
			for at := 2 * page; at < len(file); at += page {
				if c.rand.IntN(2) == 0 {
					copy(file[at:at+page], after[at:])
				}
			}
			what := fmt.Sprintf("seed %d, crash %d", seed+1, i)
			if c.open(what+" among its pages", file, c.was) != 0 {
				t.Fatalf("%s among its pages: the checkpoint before it was refused", what)
			}
			copy(file[2*page:], after[2*page:])
			torn := c.rand.IntN(2 * page)
			copy(file[:torn], after)
			if c.open(what+" at its end", file, c.was, c.is) < 0 {
				t.Fatalf("%s at its end, after %d bytes: the file was refused", what, torn)
			}
		}
	}
}

func grown(file []byte, size int) []byte {
	return append(bytes.Clone(file), make([]byte, max(0, size-len(file)))...)[:max(size, len(file))]
}

// sized chooses between the short form of a test and the long one, of LOCKFS_SOAK=1.
func sized(short, long int) int {
	if os.Getenv("LOCKFS_SOAK") != "" {
		return long
	}
	return short
}
