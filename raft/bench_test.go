package raft

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

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
