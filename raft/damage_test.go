package raft

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// sized returns how often to do something: in the short form of a test, and in the long one.
func sized(short, long int) int {
	if os.Getenv("LOCKFS_SOAK") != "" {
		return long
	}
	return short
}

// A remains is what a replica left that was killed: its log, its last checkpoint, and what it had
// acknowledged.
type remains struct {
	log     string // folder
	saved   image
	applied []string
}

// killedReplica runs a cell of one on a real log of many segments, with checkpoints, and kills it.
func killedReplica(t *testing.T, dir string) (left remains) {
	left.log = filepath.Join(dir, "log")
	tune := func(cfg *Config) {
		cfg.CheckpointEntries, cfg.TailEntries = 150, 150
		cfg.Storage = walDisk{left.log}.open(t)
	}
	inCell(t, 1, tune, func(t *testing.T, c *cell) {
		h := c.leader()
		random := rand.New(rand.NewPCG(5, 5))
		for i := range 420 {
			c.propose(h, fmt.Sprint(i, strings.Repeat("x", random.IntN(400))))
		}
		synctest.Wait()
		c.crash(h)
		left.saved, left.applied = h.machine.durable(), h.machine.list()
	})
	return left
}

// start starts a replica on the log in dir and on the checkpoint that was left, and returns all it
// has applied once it leads, or why it does not start.
func (left remains) start(t *testing.T, dir string) ([]string, error) {
	log, err := OpenWAL(dir, testCluster, 1, testLogger("wal"))
	if err != nil {
		return nil, err
	}
	c := layCell(t, 1, 1, nil)
	h := c.hosts[0]
	h.machine = newRecorder(t, left.saved)
	cfg := c.config(h)
	cfg.Storage = log
	r, err := Start(cfg)
	if err != nil {
		log.Close()
		return nil, err
	}
	defer r.Stop()
	for s := r.Status(); s.Role != "leader" || s.Applied < s.Committed || h.machine.told().Leader == 0; s = r.Status() {
		select {
		case <-r.Done():
			return nil, r.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	if _, err := r.ReadIndex(t.Context()); err != nil {
		return nil, err
	}
	synctest.Wait()
	return h.machine.list(), nil
}

// proposalsUntil returns how many proposals are in the log of dir, and after each record of its
// last segment how many there are up to it, by where the record ends.
func proposalsUntil(t *testing.T, dir string) (ends []int64, counts []int) {
	t.Helper()
	seen := make(map[uint64]int)
	paths := segmentPaths(t, dir)
	for i, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		decoder, record := wal.NewDecoder(fileutil.NewFileReader(f)), new(walpb.Record)
		for decoder.Decode(record) == nil {
			switch record.GetType() {
			case wal.CrcType:
				decoder.UpdateCRC(record.GetCrc())
			case wal.EntryType:
				entry, data := new(raftpb.Entry), new(raftrpc.EntryData)
				if err := proto.Unmarshal(record.GetData(), entry); err != nil {
					t.Fatal(err)
				}
				if entry.GetType() == raftpb.EntryNormal && proto.Unmarshal(entry.GetData(), data) == nil {
					seen[entry.GetIndex()] = len(data.Proposals)
				}
			}
			if i == len(paths)-1 {
				ends, counts = append(ends, decoder.LastOffset()), append(counts, 0)
				for index, n := range seen {
					if index > 0 {
						counts[len(counts)-1] += n
					}
				}
			}
		}
		f.Close()
	}
	return ends, counts
}

// Copies of what a killed replica left, cut at every record of the end of the log and at random
// places, and with bytes flipped anywhere. Each start serves exactly what was synced up to there,
// or refuses in one sentence; never anything else.
func TestCutAndFlip(t *testing.T) {
	smallSegments(t, 16<<10)
	dir := t.TempDir()
	left := killedReplica(t, dir)
	paths := segmentPaths(t, left.log)
	last := filepath.Base(paths[len(paths)-1])
	ends, counts := proposalsUntil(t, left.log)
	all := counts[len(counts)-1]
	before := len(left.applied) - all // proposals whose entries are gone from the log
	if len(paths) < 3 || before <= 0 || len(ends) < 10 || len(left.saved.Applied) >= len(left.applied) {
		t.Fatalf("%d segments, %d records in the last, %d proposals before the log, %d of %d in the checkpoint: too little to damage",
			len(paths), len(ends), before, len(left.saved.Applied), len(left.applied))
	}
	bad := filepath.Join(dir, "bad")
	random := rand.New(rand.NewPCG(1, 1))
	try := func(t *testing.T, how string, damage func(), want func(n int) bool) (refused bool) {
		t.Helper()
		copyLog(t, left.log, bad)
		damage()
		got, err := left.start(t, bad)
		switch {
		case err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 400):
			t.Errorf("%s: refused in more than a sentence: %v", how, err)
		case err != nil:
			return true
		case len(got) > len(left.applied) || !slices.Equal(got, left.applied[:len(got)]):
			t.Errorf("%s: it serves what never was", how)
		case !want(len(got)):
			t.Errorf("%s: it serves %d proposals of %d", how, len(got), len(left.applied))
		}
		return false
	}
	t.Run("cut", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var cuts []int64
			for i := 2; i < len(ends); i += sized(4, 1) { // the head was written before the segment got its name
				cuts = append(cuts, ends[i])
			}
			for range sized(15, 200) {
				cuts = append(cuts, ends[2]+random.Int64N(ends[len(ends)-1]-ends[2]))
			}
			for _, at := range cuts {
				whole := 0
				for i, end := range ends {
					if end <= at {
						whole = before + counts[i]
					}
				}
				whole = max(whole, len(left.saved.Applied))
				how := fmt.Sprintf("cut at byte %d of %s", at, last)
				refused := try(t, how, func() {
					if err := os.Truncate(filepath.Join(bad, last), at); err != nil {
						t.Fatal(err)
					}
				}, func(n int) bool { return n == whole })
				if refused {
					t.Errorf("%s: refused", how)
				}
			}
			t.Logf("%d cuts", len(cuts))
		})
	})
	t.Run("flip", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			refused, tries := 0, sized(80, 1000)
			for range tries {
				path := paths[random.IntN(len(paths))]
				bytes := records(t, path)
				at, flip := random.Int64N(bytes[len(bytes)-1]), byte(1)<<random.IntN(8)
				// Of the last records nobody can say whether they were ever whole: a crash leaves
				// them so. Before them nothing may be missing.
				end := filepath.Base(path) == last && at >= ends[len(ends)-3]
				how := fmt.Sprintf("byte %d of %s changed by %#x", at, filepath.Base(path), flip)
				if try(t, how, func() { flipByte(t, filepath.Join(bad, filepath.Base(path)), at, flip) }, func(n int) bool {
					return n == len(left.applied) || end && n >= len(left.applied)-2
				}) {
					refused++
				}
			}
			t.Logf("%d of %d flips are refused", refused, tries)
			if refused < tries/2 {
				t.Error("too many flips are without consequence")
			}
		})
	})
}
