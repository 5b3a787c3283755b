package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lockfs/internal/proccell"
)

var (
	killSeed = flag.Uint64("kills.seed", 0, "play TestKills with this seed; 0 chooses one")
	killTime = flag.Duration("kills.time", 0, "how long TestKills kills a replica every 2 s; 0 chooses by the form, 10 s or 10 m")
	killSize = flag.Int("kills.replicas", 0, "of how many replicas TestKills is; 0 chooses by the form, 3 or 5")
)

// recovery is how long a cell may take to do work for everybody again after a kill. It is about a
// second where a processor is free.
const recovery = 2 * time.Minute

// TestKills kills a random replica with -9 every two seconds, and then all of them at once several
// times, under load from two mounts and fifty clients of the library. Everything that was asked and
// answered is recorded. There must be an order in which a plain file or lock would have given the
// same answers; nobody loses a session or a lock, no two hold one, no generation goes back, every
// acknowledged line is there once, and all replicas end with the same records.
//
// A kill loses nothing that was written to a file, flushed or not. That what is acknowledged was
// flushed is for the simulations to show.
func TestKills(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	lasts := *killTime
	if lasts == 0 {
		lasts = time.Duration(sized(10, 600)) * time.Second
	}
	replicas := *killSize
	if replicas == 0 {
		replicas = sized(3, 5)
	}
	t.Logf("-kills.seed=%d -kills.time=%v -kills.replicas=%d", seed, lasts, replicas)

	s := besiege(twoHosts(t, proccell.Config{Replicas: replicas}), seed, 50, 4)
	k := &killer{siege: s, random: rand.New(rand.NewPCG(seed, 1<<32))}
	s.awaitProgress(5, recovery)
	k.oneByOne(lasts, 2*time.Second)
	t.Logf("%d replicas killed, %d of them masters; all had work done again after %v", k.kills, k.masters, s.awaitProgress(5, recovery))
	for range sized(1, 10) {
		k.all()
		t.Logf("all %d replicas killed at once; all had work done again after %v", replicas, s.awaitProgress(5, recovery))
	}
	s.end()
	for _, keeper := range s.keepers {
		keeper.end()
	}
	k.all() // what is there now, is there for good
	if _, err := s.cell.Master(within(t, recovery)); err != nil {
		t.Fatal(err)
	}
	s.judge()
	s.sameHashes()
}

// killer kills replicas, which start again at once.
type killer struct {
	*siege
	random         *rand.Rand
	kills, masters int
}

func (k *killer) oneByOne(lasts, every time.Duration) {
	k.Helper()
	ended := time.NewTimer(lasts)
	defer ended.Stop()
	next := time.NewTicker(every)
	defer next.Stop()
	for {
		k.one(k.cell.Replicas[k.random.IntN(len(k.cell.Replicas))])
		select {
		case <-next.C:
		case <-ended.C:
			return
		}
	}
}

func (k *killer) one(r *proccell.Replica) {
	k.Helper()
	if status, err := k.cell.Status(k.Context(), r); err == nil && status.Role == "master" {
		k.masters++
	}
	k.kills++
	k.ok(r.Process().Kill())
	k.ok(r.Launch())
}

// all ends every replica before any is started again.
func (k *killer) all() {
	k.Helper()
	for _, r := range k.cell.Replicas {
		r.Process().Signal(9)
	}
	for _, r := range k.cell.Replicas {
		k.ok(r.Process().Kill())
	}
	for _, r := range k.cell.Replicas {
		k.ok(r.Launch())
	}
}

// sameHashes waits until all replicas have applied the same, and compares their records by hash.
func (h *hosts) sameHashes() {
	h.Helper()
	var shown []string
	h.until("all replicas have applied the same", recovery, func() bool {
		var equal bool
		shown, equal = h.positions(h.Context())
		return equal
	})
	for _, hash := range shown {
		if hash != shown[0] {
			h.Errorf("having applied the same, replicas differ:\n%s", strings.Join(shown, "\n"))
			return
		}
	}
	h.Logf("all replicas: %s", shown[0])
}

// positions shows what each replica has applied, with the hash of its records, and says whether all
// have applied the same.
func (h *hosts) positions(ctx context.Context) (shown []string, equal bool) {
	applied := make(map[uint64]bool)
	for _, r := range h.cell.Replicas {
		status, err := h.cell.Status(ctx, r)
		if err != nil {
			return nil, false
		}
		applied[status.Applied] = true
		shown = append(shown, fmt.Sprintf("applied %d, hash %016x", status.Applied, status.Hash))
	}
	return shown, len(applied) == 1
}
