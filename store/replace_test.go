package store

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"lockfs/store/storepb"
)

// bigCell has contents for several pieces.
func bigCell(t *testing.T) *driver {
	d, session := smallCell(t, nil)
	for i := range 40 {
		d.do(d.number(session, create(&storepb.Create{Path: fmt.Sprintf("/ls/ny1/dir/%02d", i), Type: 1,
			Content: bytes.Repeat([]byte{byte(i)}, 250<<10)})))
	}
	return d
}

func TestRestoreInPieces(t *testing.T) {
	d := bigCell(t)
	if d.state.Bytes() < 2*asideBytes {
		t.Fatalf("%d bytes are not several pieces", d.state.Bytes())
	}
	stream := snapshotOf(t, d.state)
	db := savedDB(t, filepath.Join(t.TempDir(), "store"), livedIn(t).state)
	var most int64
	for range 4 { // each in place of the one before
		if _, _, err := db.Restore(bytes.NewReader(stream), testCell); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(streamed(t, db), stream) {
			t.Fatal("what was restored streams other bytes")
		}
		most = max(most, fileSize(t, db))
	}
	if bound := 4*d.state.Bytes() + 16<<20; most > bound {
		t.Errorf("the file grew to %d bytes, want at most %d", most, bound)
	}
	db.Close()
	loaded, _, err := openDB(t, db.path).Load(testCell)
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, "opened again", loaded, d.state)
}

// A process dies while it restores a snapshot: the file holds what it held before, goes on from there,
// and takes the snapshot the next time.
func TestCrashInRestore(t *testing.T) {
	d := bigCell(t)
	records := slices.Collect(d.state.records)
	for name, before := range map[string]*State{"a new file": New(testCell), "a file": livedIn(t).state} {
		for _, written := range []int{0, 1, len(records) / 2, len(records)} {
			t.Run(fmt.Sprintf("%s, %d records", name, written), func(t *testing.T) {
				db := openDB(t, filepath.Join(t.TempDir(), "store"))
				state := before
				if before.ClusterID() != 0 {
					if err := db.Replace(state, []byte("position")); err != nil {
						t.Fatal(err)
					}
				}
				if err := db.bolt.Update(emptyAside); err != nil {
					t.Fatal(err)
				}
				if err := db.writeAside(slices.Values(records[:written])); err != nil {
					t.Fatal(err)
				}
				db.Close()

				db = openDB(t, db.path)
				loaded, _, err := db.Load(testCell)
				if err != nil {
					t.Fatal(err)
				}
				checkSame(t, "after the crash", loaded, state)
				if _, err := loaded.Apply(loaded.Applied()+1, &storepb.Proposal{Epoch: 9, Commands: []*storepb.Command{office(&storepb.Seed{ClusterId: 7})}}); err != nil {
					t.Fatal(err)
				}
				if err := db.Save(loaded.Checkpoint(nil)); err != nil {
					t.Fatal(err)
				}
				again, _, err := db.Restore(bytes.NewReader(snapshotOf(t, d.state)), testCell)
				if err != nil {
					t.Fatal(err)
				}
				checkSame(t, "restored after all", again, d.state)
			})
		}
	}
}
