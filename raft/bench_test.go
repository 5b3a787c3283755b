package raft

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"

	"lockfs/internal/clock"
)

// A counter is a Machine that tells each proposer when its proposal was applied: the first byte
// of a proposal says whose it is.
type counter struct {
	position []byte
	leading  atomic.Bool
	waiting  [256]chan struct{}
	entries  atomic.Int64
}

func (c *counter) Apply(_ uint64, proposals [][]byte) error {
	c.entries.Add(1)
	for _, p := range proposals {
		if c.leading.Load() {
			c.waiting[p[0]] <- struct{}{}
		}
	}
	return nil
}

func (c *counter) Checkpoint(position []byte) func() error {
	return func() error { c.position = position; return nil }
}
func (c *counter) Snapshot() (Snapshot, error)               { return image{At: c.position}, nil }
func (c *counter) Restore(io.Reader) ([]byte, uint64, error) { return nil, 0, io.ErrUnexpectedEOF }
func (c *counter) Leadership(l Leadership)                   { c.leading.Store(l.Leading) }

// realCell starts three replicas over loopback, each with its log on the disk of $TMPDIR, and
// returns the leader and its machine.
func realCell(tb testing.TB) (*Replica, *counter) {
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	var members []Member
	var listeners []net.Listener
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		listeners = append(listeners, l)
		members = append(members, Member{ID: uint64(i + 1), Name: fmt.Sprint(i + 1), Address: l.Addr().String()})
	}
	var replicas []*Replica
	var machines []*counter
	for i, m := range members {
		quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
		log, err := OpenWAL(filepath.Join(tb.TempDir(), "log"), testCluster, m.ID, quiet)
		if err != nil {
			tb.Fatal(err)
		}
		machine := new(counter)
		for i := range machine.waiting {
			machine.waiting[i] = make(chan struct{}, 1)
		}
		r, err := Start(Config{
			ClusterID: testCluster, ID: m.ID, Members: members, Machine: machine, Storage: log,
			Clock: clock.Monotonic(), Logger: quiet, Dial: dial,
		})
		if err != nil {
			tb.Fatal(err)
		}
		server := grpc.NewServer()
		r.Register(server)
		go server.Serve(listeners[i])
		tb.Cleanup(func() { r.Stop(); server.Stop() })
		replicas, machines = append(replicas, r), append(machines, machine)
	}
	for {
		if i := slices.IndexFunc(machines, func(m *counter) bool { return m.leading.Load() }); i >= 0 {
			return replicas[i], machines[i]
		}
		time.Sleep(time.Millisecond)
	}
}

// BenchmarkPropose measures from Propose to Apply on the leader, with so many proposers each of
// which waits for its last one.
func BenchmarkPropose(b *testing.B) {
	for _, proposers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("proposers=%d", proposers), func(b *testing.B) {
			leader, machine := realCell(b)
			term := leader.Status().Term
			machine.entries.Store(0)
			took := make([][]time.Duration, proposers)
			done := make(chan struct{})
			b.ResetTimer()
			for p := range proposers {
				go func() {
					defer func() { done <- struct{}{} }()
					data := make([]byte, 128)
					data[0] = byte(p)
					for i := p; i < b.N; i += proposers {
						began := time.Now()
						if err := leader.Propose(term, data); err != nil {
							b.Error(err)
							return
						}
						<-machine.waiting[p]
						took[p] = append(took[p], time.Since(began))
					}
				}()
			}
			for range proposers {
				<-done
			}
			b.StopTimer()
			all := slices.Sorted(slices.Values(slices.Concat(took...)))
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "proposals/s")
			b.ReportMetric(float64(len(all))/float64(machine.entries.Load()), "per-entry")
		})
	}
}

func BenchmarkReadIndex(b *testing.B) {
	for _, readers := range []int{1, 128} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			leader, _ := realCell(b)
			b.SetParallelism(readers)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := leader.ReadIndex(context.Background()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
		})
	}
}

// BenchmarkAppendDuringCheckpoints measures how long an append to the log takes while checkpoints
// of so many bytes are written to the same disk, 32 MiB a second of them: what
// Config.CheckpointBytes costs whoever writes meanwhile.
func BenchmarkAppendDuringCheckpoints(b *testing.B) {
	for _, size := range []int{0, 1 << 20, 4 << 20, 16 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("KiB=%d", size>>10), func(b *testing.B) {
			dir := b.TempDir()
			log, err := OpenWAL(filepath.Join(dir, "log"), testCluster, 1, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer log.Close()
			db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for size > 0 {
					if err := saveCheckpoint(db, size); err != nil {
						b.Error(err)
						return
					}
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(size) * time.Second / (32 << 20)): // 32 MiB/s
					}
				}
			}()
			var took []time.Duration
			var index uint64
			for b.Loop() {
				index++
				began := time.Now()
				if err := log.Append(hardState(1, 0, index), []*raftpb.Entry{entry(index, 1, strings.Repeat("x", 1024))}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			close(stop)
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
		})
	}
}

// saveCheckpoint writes so many bytes, as files of 64 KiB, in one transaction.
func saveCheckpoint(db *bbolt.DB, size int) error {
	return db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("nodes"))
		for i := 0; i < size>>16 && err == nil; i++ {
			err = bucket.Put(fmt.Append(nil, "node ", rand.IntN(2000)), make([]byte, 64<<10))
		}
		return err
	})
}
