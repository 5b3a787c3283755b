package store

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"lockfs/store/storepb"
)

var cellNodes = flag.Int("nodes", 100_000, "nodes in BenchmarkCell's cell; the design plans for a million")

func BenchmarkApply(b *testing.B) {
	bench := func(name string, prepare func(d *driver, session uint64), m func(i int) *storepb.Mutation) {
		b.Run(name, func(b *testing.B) {
			d, session := smallCell(b, nil)
			if prepare != nil {
				prepare(d, session)
			}
			d.log = nil
			for i := 0; b.Loop(); i++ {
				d.do(d.number(session, m(i)))
				d.log = d.log[:0]
			}
		})
	}
	write := func(path string, content string) *storepb.Mutation {
		return edit(&storepb.Edit{Path: path, Changes: []*storepb.Change{truncated(0), appended(content)}})
	}
	big := string(make([]byte, 256<<10))
	bench("write", nil, func(int) *storepb.Mutation { return write("/ls/ny1/file", "10.4.7.22:7000\n") })
	bench("write 256 KiB", nil, func(int) *storepb.Mutation { return write("/ls/ny1/file", big) })
	lock := func(i int) *storepb.Mutation {
		if i%2 == 0 {
			return acquire(&storepb.Acquire{Path: "/ls/ny1/file", Owner: 1, Mode: 2, LockDelayMs: 30000})
		}
		return release(&storepb.Release{Path: "/ls/ny1/file", Owner: 1})
	}
	bench("lock or unlock", nil, lock)
	bench("lock or unlock of 256 KiB", func(d *driver, session uint64) { d.do(d.number(session, write("/ls/ny1/file", big))) }, lock)
	makeOrDelete := func(i int) *storepb.Mutation {
		if i%2 == 0 {
			return create(&storepb.Create{Path: "/ls/ny1/dir/new", Type: 1})
		}
		return deletion(&storepb.Delete{Path: "/ls/ny1/dir/new"})
	}
	bench("create or delete", nil, makeOrDelete)
	bench("create or delete among 90,000", func(d *driver, session uint64) { populate(d, session, 90_000, 90_000) }, makeOrDelete)
	bench("waiter that stays blocked", func(d *driver, session uint64) {
		d.do(d.number(session, acquire(&storepb.Acquire{Path: "/ls/ny1/file", Owner: 1, Mode: 2})))
	}, func(int) *storepb.Mutation {
		return acquire(&storepb.Acquire{Path: "/ls/ny1/dir", Owner: 2, Mode: 2, Waits: true})
	})
}

// populate makes so many files, so many in a directory.
func populate(d *driver, session uint64, files, each int) {
	for i := range files {
		dir := fmt.Sprintf("/ls/ny1/dir/%03d", i/each)
		if i%each == 0 {
			d.do(d.number(session, create(&storepb.Create{Path: dir, Type: 2})))
		}
		d.do(d.number(session, create(&storepb.Create{Path: fmt.Sprintf("%s/service-%06d", dir, i), Type: 1, Content: []byte("10.4.7.22:7000\n")})))
		d.log = d.log[:0]
	}
}

// BenchmarkCell tells what a big cell costs: memory, a first checkpoint, loading, a snapshot.
func BenchmarkCell(b *testing.B) {
	whole := b
	d, session := smallCell(b, &storepb.Limits{Nodes: int64(2 * *cellNodes)})
	populate(d, session, *cellNodes, 10_000)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	db := openDB(b, filepath.Join(b.TempDir(), "store"))
	b.Run("checkpoint of all", func(b *testing.B) {
		for b.Loop() {
			if err := db.Save(d.state.Checkpoint(nil)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(m.HeapAlloc)/float64(*cellNodes), "B/node")
	})
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := db.Load(testCell); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
			db = openDB(whole, db.path)
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			if err := writeSnapshot(db); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("checkpoint of 100", func(b *testing.B) {
		for b.Loop() {
			for i := range 100 {
				d.do(d.number(session, edit(&storepb.Edit{Path: fmt.Sprintf("/ls/ny1/dir/000/service-%06d", i*97), Changes: []*storepb.Change{appended("x")}})))
			}
			d.log = d.log[:0]
			if err := db.Save(d.state.Checkpoint(nil)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("list of 10,000", func(b *testing.B) {
		for b.Loop() {
			d.state.List("/ls/ny1/dir/001", 0)
		}
	})
	var stream bytes.Buffer
	if err := d.state.WriteSnapshot(&stream, nil); err != nil {
		b.Fatal(err)
	}
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := db.Restore(bytes.NewReader(stream.Bytes()), testCell); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkGigabyte tells what a cell costs that is as full as it may be: 1 GiB of contents, half of it
// in files of 200 KiB and half in small ones. It takes minutes, and runs where LOCKFS_SOAK is set.
func BenchmarkGigabyte(b *testing.B) {
	if os.Getenv("LOCKFS_SOAK") == "" {
		b.Skip("takes minutes; LOCKFS_SOAK=1 runs it")
	}
	d, session := smallCell(b, &storepb.Limits{Bytes: 2 << 30})
	const big, bigBytes, small, smallBytes = 2600, 200 << 10, 260_000, 2 << 10
	fill := func(i int, path string, size int) {
		content := bytes.Repeat(fmt.Appendf(nil, "%08d", i), size/8)
		d.do(d.number(session, create(&storepb.Create{Path: path, Type: 1, Content: content})))
		d.log = d.log[:0]
	}
	for i := range big {
		fill(i, fmt.Sprintf("/ls/ny1/dir/big-%06d", i), bigBytes)
	}
	for i := range small {
		if i%10_000 == 0 {
			d.do(d.number(session, create(&storepb.Create{Path: fmt.Sprintf("/ls/ny1/dir/%03d", i/10_000), Type: 2})))
		}
		fill(i, fmt.Sprintf("/ls/ny1/dir/%03d/small-%06d", i/10_000, i), smallBytes)
	}
	folder := b.TempDir()
	db := openDB(b, filepath.Join(folder, "store"))
	stream, err := os.Create(filepath.Join(folder, "stream"))
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	position := []byte("position")
	step := func(name string, do func() error) {
		b.Run(name, func(b *testing.B) {
			runtime.GC()
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(d.state.Bytes())/(1<<20), "MiB-contents")
			b.ReportMetric(float64(m.HeapInuse)/(1<<20), "MiB-heap")
			b.ReportMetric(float64(fileSize(b, db))/(1<<20), "MiB-file")
		})
	}
	step("checkpoint of all", func() error { return db.Replace(d.state, position) })
	step("checkpoint of 1 %", func() error {
		for i := range small / 100 {
			path := fmt.Sprintf("/ls/ny1/dir/%03d/small-%06d", i*100/10_000, i*100)
			d.do(d.number(session, edit(&storepb.Edit{Path: path, Changes: []*storepb.Change{writtenTo(0, "changed")}})))
		}
		for i := range big / 100 {
			path := fmt.Sprintf("/ls/ny1/dir/big-%06d", i*100)
			d.do(d.number(session, edit(&storepb.Edit{Path: path, Changes: []*storepb.Change{writtenTo(0, "changed")}})))
		}
		d.log = d.log[:0]
		return db.Save(d.state.Checkpoint(position))
	})
	step("snapshot", func() error {
		s, err := db.Snapshot()
		if err != nil {
			return err
		}
		defer s.Close()
		if _, err := stream.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err = s.WriteTo(stream)
		return err
	})
	step("load", func() error { _, _, err := db.Load(testCell); return err })
	step("restore", func() error {
		if _, err := stream.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, _, err := db.Restore(stream, testCell)
		return err
	})
	step("open", func() error {
		if err := db.Close(); err != nil {
			return err
		}
		db = openDB(b, db.path)
		return nil
	})
}
