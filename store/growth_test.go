package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockfs/store/storepb"
)

// Checkpoints are due after so much, as raft makes them.
const (
	checkpointBytes   = 16 << 20
	checkpointEntries = 20_000
)

// One file of 200 KiB is written anew, over and over, while small ones change beside it, and now and
// then a snapshot is sent, which keeps its pages for as long. The file of the checkpoints stays bounded
// by what lives, not by what was ever written (case L101).
func TestGrowth(t *testing.T) {
	d, session := smallCell(t, nil)
	populate(d, session, 2000, 1000)
	db := savedDB(t, filepath.Join(t.TempDir(), "store"), d.state)
	db.bolt.NoSync, db.bolt.NoGrowSync = true, true
	var sending *Snapshot
	var entries, bytes, most int64
	checkpoints := 0
	rewrites := sized(2000, 50_000)
	for i := range rewrites {
		bytes += rewrite(d, session, i)
		entries += 2
		if bytes < checkpointBytes && entries < checkpointEntries {
			continue
		}
		entries, bytes = 0, 0
		if checkpoints%5 == 0 {
			sending = sendAnother(t, db, sending)
		}
		if err := db.Save(d.state.Checkpoint([]byte("position"))); err != nil {
			t.Fatal(err)
		}
		checkpoints++
		most = max(most, fileSize(t, db))
	}
	sendAnother(t, db, sending).Close()
	live := len(snapshotOf(t, d.state))
	// What lives once, what a snapshot holds, what a checkpoint writes, and what bbolt keeps ahead.
	const bound = 16<<20 + 8<<20
	if most > bound || checkpoints < rewrites/100 {
		t.Errorf("after %d checkpoints the file has up to %d KiB, of which %d KiB live", checkpoints, most>>10, live>>10)
	}
	t.Logf("%d rewrites, %d checkpoints: the file has up to %d KiB, of which %d KiB live", rewrites, checkpoints, most>>10, live>>10)
	if err := db.Save(d.state.Checkpoint([]byte("position"))); err != nil {
		t.Fatal(err)
	}
	loaded, _, err := db.Load(testCell)
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, "loaded", loaded, d.state)
}

// rewrite writes the big file anew, and a small one, and returns how many bytes that put into the log.
func rewrite(d *driver, session uint64, i int) int64 {
	content := make([]byte, 200<<10)
	copy(content, fmt.Sprint(i))
	d.do(d.number(session, edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{truncated(0), appended(string(content))}})))
	small := fmt.Sprintf("/ls/ny1/dir/%03d/service-%06d", i%2, i%2*1000+i*7%1000)
	d.do(d.number(session, edit(&storepb.Edit{Path: small, Changes: []*storepb.Change{truncated(int64(i % 1000))}})))
	d.log = d.log[:0]
	return int64(len(content))
}

// sendAnother ends one snapshot and begins the next.
func sendAnother(t *testing.T, db *DB, sending *Snapshot) *Snapshot {
	t.Helper()
	if sending != nil {
		if err := sending.Close(); err != nil {
			t.Fatal(err)
		}
	}
	next, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func fileSize(t testing.TB, db *DB) int64 {
	t.Helper()
	info, err := os.Stat(db.path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
