package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"lockfs/store/storepb"
)

func openDB(t testing.TB, path string) *DB {
	t.Helper()
	db, err := OpenDB(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func savedDB(t testing.TB, path string, s *State) *DB {
	t.Helper()
	db := openDB(t, path)
	if err := db.Save(s.Checkpoint([]byte("position"))); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestCheckpoints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	db := openDB(t, path)
	s, position, err := db.Load(testCell)
	if err != nil || position != nil {
		t.Fatalf("of a new file: %q, %v", position, err)
	}
	checkSame(t, "a new file", s, New(testCell))

	d := livedIn(t)
	d.state = s // which has seen none of it yet
	replay(t, s, d.log, 0)
	for i := range 3 {
		if err := db.Save(s.Checkpoint(fmt.Append(nil, i))); err != nil {
			t.Fatal(err)
		}
		loaded, position, err := db.Load(testCell)
		if err != nil || string(position) != fmt.Sprint(i) {
			t.Fatalf("checkpoint %d: position %q, %v", i, position, err)
		}
		checkSame(t, "loaded", loaded, s)
		d.do(d.number(1, edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x")}})))
		if i == 2 {
			d.session()
			d.do(d.number(1, deletion(&storepb.Delete{Path: "/ls/ny1/dir/e"})))
			d.do(clearDelay("/ls/ny1/dir", d.index))
			d.do(d.number(1, closeSession()))
			break // what is not in a checkpoint any more
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	loaded, _, err := openDB(t, path).Load(testCell)
	if err != nil {
		t.Fatal(err)
	}
	replay(t, loaded, d.log, loaded.Applied())
	checkSame(t, "opened again and replayed", loaded, s)
}

// A checkpoint writes what changed and nothing else.
func TestCheckpointIsOfChanges(t *testing.T) {
	d := livedIn(t)
	d.state.Checkpoint(nil)
	d.do(d.number(1, edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x")}})))
	if c := d.state.Checkpoint(nil); c.Changes() != 3 || c.Applied() != d.index { // the file, the session, the cell
		t.Errorf("%d records of entry %d", c.Changes(), c.Applied())
	}
	if c := d.state.Checkpoint(nil); c.Changes() != 1 { // the cell
		t.Errorf("%d records where nothing changed", c.Changes())
	}
}

func TestLostCheckpointIsNoticed(t *testing.T) {
	d := livedIn(t)
	db := savedDB(t, filepath.Join(t.TempDir(), "store"), d.state)
	d.session()
	d.state.Checkpoint(nil) // not saved
	d.session()
	err := db.Save(d.state.Checkpoint(nil))
	if err == nil || !strings.Contains(err.Error(), "one was lost") {
		t.Errorf("error %v", err)
	}
	if _, _, err := db.Load(testCell); err != nil {
		t.Errorf("the one before is gone: %v", err)
	}
	other := livedIn(t)
	other.session()
	if err := db.Save(other.state.Checkpoint(nil)); err == nil {
		t.Error("another state's checkpoint was saved over this one's")
	}
}

// What a checkpoint took stays as it was taken, while the state goes on. (The race detector looks
// on.)
func TestSaveWhileApplying(t *testing.T) {
	d := livedIn(t)
	db := savedDB(t, filepath.Join(t.TempDir(), "store"), d.state)
	snapshot, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	want := snapshotOf(t, d.state)
	for range 20 {
		d.do(d.number(1, edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x")}})))
		d.do(d.number(1, acquire(&storepb.Acquire{Path: "/ls/ny1/file", Owner: 1, Mode: 1 + uint32(d.index%2)})))
		taken := snapshotOf(t, d.state)
		c := d.state.Checkpoint([]byte("position"))
		var saving sync.WaitGroup
		var saveErr error
		saving.Go(func() { saveErr = db.Save(c) })
		for range 10 {
			d.do(d.number(1, create(&storepb.Create{Path: "/ls/ny1/new", Type: 1})))
			d.do(d.number(1, acquire(&storepb.Acquire{Path: "/ls/ny1/file", Owner: 1, Mode: 1 + uint32(d.index%2)})))
			d.do(d.number(1, deletion(&storepb.Delete{Path: "/ls/ny1/new"})))
		}
		saving.Wait()
		if saveErr != nil {
			t.Fatal(saveErr)
		}
		if got := streamed(t, db); !bytes.Equal(got, taken) {
			t.Fatalf("saved something else than was taken")
		}
	}
	var got bytes.Buffer
	n, err := snapshot.WriteTo(&got)
	if err != nil || n != int64(got.Len()) || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("a snapshot that was opened before: %d bytes, %v", n, err)
	}
	if string(snapshot.Position()) != "position" || snapshot.Applied() == 0 {
		t.Errorf("position %q of entry %d", snapshot.Position(), snapshot.Applied())
	}
	if err := snapshot.Close(); err != nil {
		t.Error(err)
	}
}

func streamed(t *testing.T, db *DB) []byte {
	t.Helper()
	s, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRestore(t *testing.T) {
	there := savedDB(t, filepath.Join(t.TempDir(), "there"), livedIn(t).state)
	stream := streamed(t, there)
	d := livedIn(t)
	d.do(d.number(1, create(&storepb.Create{Path: "/ls/ny1/not there", Type: 1})))
	here := savedDB(t, filepath.Join(t.TempDir(), "here"), d.state)

	if _, _, err := here.Restore(bytes.NewReader(stream[:len(stream)-1]), testCell); !errors.Is(err, ErrCorrupt) {
		t.Errorf("half a snapshot: %v", err)
	}
	if _, _, err := here.Restore(bytes.NewReader(stream), "sf1"); err == nil {
		t.Error("a snapshot of another cell was taken")
	}
	if kept, _, err := here.Load(testCell); err != nil {
		t.Error(err)
	} else {
		checkSame(t, "after what was refused", kept, d.state)
	}

	state, position, err := here.Restore(bytes.NewReader(stream), testCell)
	if err != nil || string(position) != "position" {
		t.Fatalf("%q, %v", position, err)
	}
	loaded, _, err := here.Load(testCell)
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, "restored", loaded, state)
	if got := streamed(t, here); !bytes.Equal(got, stream) {
		t.Error("what was restored streams other bytes")
	}
	// And goes on from there.
	if _, err := state.Apply(state.Applied()+1, &storepb.Proposal{Epoch: 2, Commands: []*storepb.Command{office(nil)}}); err != nil {
		t.Fatal(err)
	}
	if err := here.Save(state.Checkpoint(nil)); err != nil {
		t.Error(err)
	}
}

func TestSnapshotNeedsACheckpoint(t *testing.T) {
	if _, err := openDB(t, filepath.Join(t.TempDir(), "store")).Snapshot(); err == nil || !strings.HasSuffix(err.Error(), "there is no checkpoint yet") {
		t.Errorf("error %v", err)
	}
}

func TestOpenRefusals(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign")
	makeBolt(t, foreign, func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("key"))
		return err
	})
	newer := filepath.Join(dir, "newer")
	savedDB(t, newer, livedIn(t).state).Close()
	makeBolt(t, newer, func(tx *bbolt.Tx) error {
		return tx.Bucket(metaBucket).Put(formatKey, sealed([]byte("checksumlockfs store 2")))
	})
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a store\n"), 9999), 0o600); err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(dir, "busy")
	savedDB(t, busy, livedIn(t).state)
	for path, want := range map[string]string{
		foreign:                           "it is not a lockfs store: some other program made it",
		newer:                             `its format is "lockfs store 2", this version knows "lockfs store 1"`,
		text:                              "it is not a bbolt file, or its first pages are not whole",
		busy:                              "another process has it open",
		dir:                               "it is not a regular file",
		filepath.Join(dir, "no", "store"): "no such file or directory",
	} {
		_, err := OpenDB(path)
		if err == nil || !strings.HasPrefix(err.Error(), "open store "+path+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		if (path == text) != errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v is ErrCorrupt: %v", path, err, errors.Is(err, ErrCorrupt))
		}
	}
	mine := savedDB(t, filepath.Join(dir, "mine"), livedIn(t).state)
	if _, _, err := mine.Load("sf1"); err == nil || !strings.Contains(err.Error(), `it is of the cell "ny1", not of "sf1"`) {
		t.Errorf("another cell: %v", err)
	}
}

func makeBolt(t *testing.T, path string, do func(tx *bbolt.Tx) error) {
	t.Helper()
	bolt, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer bolt.Close()
	if err := bolt.Update(do); err != nil {
		t.Fatal(err)
	}
}

// Every flipped bit and every cut of every value is found when the file is loaded, and does not
// travel in a snapshot.
func TestDamagedValues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	db := savedDB(t, path, livedIn(t).state)
	db.bolt.NoSync = true
	set := func(bucket, key, value []byte) {
		t.Helper()
		if err := db.bolt.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, value) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range valuesOf(t, db) {
		damaged := [][]byte{nil, v.value[:len(v.value)-1], v.value[:7], append(bytes.Clone(v.value), 0)}
		for i := range v.value {
			flipped := bytes.Clone(v.value)
			flipped[i] ^= 1 << (i % 8)
			damaged = append(damaged, flipped)
		}
		for i, value := range damaged {
			set(v.bucket, v.key, value)
			if _, _, err := db.Load(testCell); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("damage %d of %q: %v", i, v.key, err)
			}
			if err := writeSnapshot(db); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("damage %d of %q in a snapshot: %v", i, v.key, err)
			}
		}
		set(v.bucket, v.key, v.value)
	}
	if _, _, err := db.Load(testCell); err != nil {
		t.Error(err)
	}
}

func writeSnapshot(db *DB) error {
	s, err := db.Snapshot()
	if err != nil {
		return err
	}
	_, err = s.WriteTo(io.Discard)
	return errors.Join(err, s.Close())
}

type stored struct{ bucket, key, value []byte }

func valuesOf(t *testing.T, db *DB) (all []stored) {
	t.Helper()
	if err := db.bolt.View(func(tx *bbolt.Tx) error {
		all = append(all, stored{metaBucket, metaKey, bytes.Clone(tx.Bucket(metaBucket).Get(metaKey))})
		return tx.Bucket(recordsBucket).ForEach(func(k, v []byte) error {
			all = append(all, stored{recordsBucket, bytes.Clone(k), bytes.Clone(v)})
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Records that are whole, but not where or when they belong.
func TestMisplacedValues(t *testing.T) {
	d := livedIn(t)
	path := filepath.Join(t.TempDir(), "store")
	db := savedDB(t, path, d.state)
	old := valuesOf(t, db)
	d.do(d.number(1, edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x"), truncated(0)}})))
	if err := db.Save(d.state.Checkpoint(nil)); err != nil {
		t.Fatal(err)
	}
	now := valuesOf(t, db)
	for name, do := range map[string]func(records, meta *bbolt.Bucket) error{
		"a record of before": func(records, _ *bbolt.Bucket) error { return records.Put(old[len(old)-2].key, old[len(old)-2].value) },
		"meta of before":     func(_, meta *bbolt.Bucket) error { return meta.Put(metaKey, old[0].value) },
		"a record gone":      func(records, _ *bbolt.Bucket) error { return records.Delete(now[len(now)-1].key) },
		"a record elsewhere": func(records, _ *bbolt.Bucket) error { return records.Put([]byte(idKey(77)), now[len(now)-1].value) },
		"a record moved": func(records, _ *bbolt.Bucket) error {
			last := now[len(now)-1]
			return errors.Join(records.Delete(last.key), records.Put([]byte(idKey(77)), last.value))
		},
		"a record of another": func(records, _ *bbolt.Bucket) error { return records.Put(now[3].key, now[4].value) },
		"no meta":             func(_, meta *bbolt.Bucket) error { return meta.Delete(metaKey) },
	} {
		undo := errors.New("not meant")
		err := db.bolt.Update(func(tx *bbolt.Tx) error {
			if err := do(tx.Bucket(recordsBucket), tx.Bucket(metaBucket)); err != nil {
				return err
			}
			if _, _, err := load(tx, testCell, ours); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v", name, err)
			}
			return undo
		})
		if err != undo {
			t.Fatal(err)
		}
	}
}

// TestDamageOfAYoungFile overwrites each page of a file that has no checkpoint yet, and still the list
// of free pages with which bbolt made it.
func TestDamageOfAYoungFile(t *testing.T) {
	for page := range 4 {
		path := filepath.Join(t.TempDir(), "state.db")
		db, err := OpenDB(path)
		if err == nil {
			err = db.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		size := os.Getpagesize()
		copy(content[page*size:], bytes.Repeat([]byte{0xa5}, size))
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if db, err = OpenDB(path); err == nil { // one of the first two, as after a crash
			db.Close()
		} else if !errors.Is(err, ErrCorrupt) {
			t.Errorf("page %d: %v", page, err)
		}
	}
}
