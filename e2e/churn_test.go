package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/proccell"
)

// TestL101 rewrites one big file again and again. What the replicas have on their disks for it stays
// small all the time. In the short form there is one, which has as much on its disk as each of three.
func TestL101(t *testing.T) {
	const most = 200 << 20
	rewrites := sized(600, 50_000)
	some := rewrites / sized(5, 50)
	cell := newCell(t, proccell.Config{Replicas: sized(1, 3)})
	c := newClient(t, cell)
	var largest atomic.Int64
	watched := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(watched)
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for ctx.Err() == nil {
			for _, r := range cell.Replicas {
				largest.Store(max(largest.Load(), onDisk(r)))
			}
			select {
			case <-ctx.Done():
			case <-look.C:
			}
		}
	}()
	var took []time.Duration
	for i := range rewrites {
		began := time.Now()
		if err := rewrite(within(t, time.Minute), c, "/ls/ny1/big", i); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
		if size := largest.Load(); size > most {
			t.Fatalf("after %d rewrites a replica has %d MiB on its disk", i+1, size>>20)
		}
	}
	stop()
	<-watched
	first, last := took[:some], took[rewrites-some:]
	t.Logf("%d rewrites of %d KiB: at most %d MiB on a disk; median of the first %d writes %v, of the last %v, ratio %.2f; p99 %v and %v, ratio %.2f",
		rewrites, bigBytes>>10, largest.Load()>>20, some, quantile(first, 50), quantile(last, 50), ratio(last, first, 50),
		quantile(first, 99), quantile(last, 99), ratio(last, first, 99))
	has(t, cell, "/ls/ny1/big", contents(rewrites-1))
	sameHash(t, cell)
}

// onDisk is how many bytes a replica has in the files of its data folder.
func onDisk(r *proccell.Replica) (bytes int64) {
	filepath.WalkDir(r.Dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // it is gone, as old segments go
		}
		if info, err := entry.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// quantile returns the time within which percent of 100 were done, to three digits.
func quantile(took []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*percent/100].Round(10 * time.Microsecond)
}

func ratio(of, to []time.Duration, percent int) float64 {
	return float64(quantile(of, percent)) / float64(quantile(to, percent))
}

// churners write files of equal sizes, one after the other and then again, several at once.
type churners struct {
	*testing.T
	clients []*client.Client
	files   int64
	content []byte

	next atomic.Int64 // command
	mu   struct {
		sync.Mutex
		took []time.Duration // of each command that was done
	}
	stop chan struct{}
	done sync.WaitGroup
}

// startChurn starts n of them on so many files of so many bytes.
func startChurn(t *testing.T, cell *proccell.Cell, n, files, bytes int) *churners {
	t.Helper()
	c := &churners{T: t, files: int64(files), content: []byte(strings.Repeat("x", bytes)), stop: make(chan struct{})}
	for range n {
		one := newClient(t, cell)
		c.done.Go(func() { c.run(one) })
	}
	t.Cleanup(c.halt)
	return c
}

func (c *churners) run(one *client.Client) {
	for c.Context().Err() == nil {
		select {
		case <-c.stop:
			return
		default:
		}
		path := lockfs.Path(fmt.Sprintf("/ls/ny1/churn-%d", c.next.Add(1)%c.files))
		began := time.Now()
		if err := overwriteFile(c.Context(), one, path, c.content); err != nil {
			if c.Context().Err() == nil {
				c.Errorf("write %s: %v", path, err)
			}
			return
		}
		c.mu.Lock()
		c.mu.took = append(c.mu.took, time.Since(began))
		c.mu.Unlock()
	}
}

// written is how many commands were done.
func (c *churners) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.took)
}

// since returns how long each command took after the first n.
func (c *churners) since(n int) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.mu.took[n:])
}

func (c *churners) halt() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.done.Wait()
}

// TestAway stops a replica while the others do so much that their logs have not kept all of it, and
// starts it again. It is sent a snapshot and what came after, while they go on, and has what they have.
func TestAway(t *testing.T) {
	commands, bytes := sized(4_000, 200_000), sized(48, 1<<10)<<20
	ok := fatal(t)
	cell := newCell(t, proccell.Config{})
	w := startWriters(t, cell, 1)
	w.progress(20, time.Minute)
	others, _ := followers(t, cell)
	away := others[0]
	ok(away.Process().Kill())
	c := startChurn(t, cell, 8, commands/10, bytes/commands)
	until(t, fmt.Sprintf("%d commands", commands), time.Duration(sized(2, 60))*time.Minute, func() bool {
		return c.written() >= commands || t.Failed()
	})

	some := min(commands/5, 5_000)
	before := c.since(c.written() - some)
	mark, from, began := away.Mark(), c.written(), time.Now()
	ok(away.Start(within(t, time.Minute)))
	ok(away.Says(within(t, 5*time.Minute), "restored a snapshot from the leader", mark))
	restored := time.Since(began)
	goal, err := cell.Status(t.Context(), others[1])
	ok(err)
	until(t, "the replica where the others were", 5*time.Minute, func() bool {
		status, err := cell.Status(t.Context(), away)
		return err == nil && status.GetApplied() >= goal.GetApplied()
	})
	during := c.since(from)
	t.Logf("%d commands, %d MiB: the snapshot was there after %v, all of the log after %v; of %d writes before and %d during that p50 was %v and %v, ratio %.2f; p99 %v and %v, ratio %.2f",
		commands, bytes>>20, restored.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), len(before), len(during),
		quantile(before, 50), quantile(during, 50), ratio(during, before, 50), quantile(before, 99), quantile(during, 99), ratio(during, before, 99))
	c.halt()
	w.finish(failoverTime)
}
