package simcell

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/sequencer"
)

var (
	seeds = flag.Int("seeds", 8, "with how many seeds the forty-second story is played")
	seed  = flag.Uint64("seed", 0, "play the forty-second story with this seed alone")
)

// TestFortySeconds is the story that lockfs is for. Host b holds a lock and writes under it, and c
// waits for it. Then b's host freezes for forty seconds, at any moment of its lease, while masters
// fail, clocks run differently and messages dawdle. c gets the lock with the next generation, not
// before b's own lease is over and b's lock-delay has passed; and b wakes to errors, without having
// written anything after c.
func TestFortySeconds(t *testing.T) {
	first, last := uint64(1), uint64(*seeds)
	if *seed != 0 {
		first, last = *seed, *seed
	}
	for s := first; s <= last; s++ {
		for _, delay := range []time.Duration{0, 30 * time.Second} {
			t.Run(fmt.Sprintf("seed=%d/delay=%v", s, delay), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { fortySeconds(t, s, delay) })
			})
		}
	}
}

// drift is how much faster or slower a clock may run. Two of them differ by less than the sixteenth
// that a client keeps off its lease.
const drift = 0.025

func fortySeconds(t *testing.T, seed uint64, delay time.Duration) {
	random := rand.New(rand.NewPCG(seed, uint64(delay)))
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
	c := New(t, Options{Seed: seed, Delay: time.Millisecond + upTo(20*time.Millisecond)})
	hostB, hostC := c.Client("b"), c.Client("c")
	for _, h := range []*Host{c.Replicas[0].Host, c.Replicas[1].Host, c.Replicas[2].Host, hostB.Host, hostC.Host} {
		h.Clock.SetRate(1 - drift + 2*drift*random.Float64())
	}
	b, other := session(t, hostB), session(t, hostC)
	makeFile(t, b)
	holding := newHolder(b, delay)
	for range random.IntN(10) { // some generations have gone
		if _, err := holding.lock(true); err != nil {
			t.Fatal(err)
		}
		if err := holding.unlock(); err != nil {
			t.Fatal(err)
		}
	}
	held, err := holding.lock(true)
	if err != nil {
		t.Fatal(err)
	}
	written := writer(hostB, b, held)

	granted := make(chan grant, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		seq, err := newHolder(other, 0).lock(true)
		if left := b.Left(); left > 0 {
			t.Errorf("granted %v while b could be sure of its session for another %v", seq, left)
		}
		granted <- grant{seq, err, time.Now()}
		if err == nil {
			_, err = other.Edit(ctx, client.Edit{Path: file, Guard: seq, Changes: []client.Change{{Kind: client.Append, Data: []byte("c\n")}}})
		}
		if err != nil {
			t.Errorf("c: %v", err)
		}
	})

	time.Sleep(upTo(15 * time.Second))
	frozen := time.Now()
	hostB.Freeze()
	failMasters(c, random)
	time.Sleep(time.Until(frozen.Add(40 * time.Second)))
	hostB.Thaw()
	checkWaking(t, holding, written)

	g := <-granted
	waiting.Wait()
	if g.err == nil && g.Generation != held.Generation+1 {
		t.Errorf("c was granted %v after %v", g.Sequencer, held)
	}
	// b's lease has at least two thirds left at the master when b freezes, and by the master's clock
	// the delay follows.
	least := time.Duration(float64(2*lockfs.DefaultLease/3+delay) * (1 - 2*drift))
	if d := g.at.Sub(frozen); d < least || d > 40*time.Second+2*delay {
		t.Errorf("c was granted %v after b froze", d)
	}
	content, _, err := other.Read(ctx, file, 0)
	if lines := strings.Fields(string(content)); err != nil || slices.Index(lines, "c") != len(lines)-1 {
		t.Errorf("the file reads %q, %v", lines, err)
	}
	checkAgree(t, c)
}

// writer writes under a lock, as long as it can, and tells how that ended.
func writer(host *Client, s *client.Session, held sequencer.Sequencer) <-chan error {
	ended := make(chan error, 1)
	go func() {
		timer := host.Clock.NewTimer(0)
		for {
			<-timer.C()
			_, err := s.Edit(ctx, client.Edit{Path: file, Guard: held, Changes: []client.Change{{Kind: client.Append, Data: []byte("b\n")}}})
			if err != nil {
				ended <- err
				return
			}
			timer.Reset(250 * time.Millisecond)
		}
	}()
	return ended
}

// failMasters makes up to two masters fail, one after the other, in about the first twenty seconds.
func failMasters(c *Cell, random *rand.Rand) {
	for range random.IntN(3) {
		time.Sleep(time.Duration(random.Int64N(int64(5 * time.Second))))
		r := c.Master()
		fail, mend := r.Kill, r.Start
		switch random.IntN(3) {
		case 0:
			fail, mend = r.Freeze, r.Thaw
		case 1:
			fail, mend = r.Isolate, r.Rejoin
		}
		fail()
		time.Sleep(time.Second + time.Duration(random.Int64N(int64(4*time.Second))))
		mend()
	}
}

// checkWaking checks what b finds when it wakes.
func checkWaking(t *testing.T, b *holder, written <-chan error) {
	for what, call := range map[string]func() error{
		"read":   func() error { _, _, err := b.s.Read(ctx, file, 0); return err },
		"write":  func() error { _, err := b.s.Edit(ctx, client.Edit{Path: file}); return err },
		"lock":   func() error { _, err := b.lock(false); return err },
		"unlock": b.unlock,
		"writer": func() error { return <-written },
	} {
		if err := call(); !errors.Is(err, lockfs.ErrSession) {
			t.Errorf("%s on waking: %v", what, err)
		}
	}
	<-b.s.Lost()
}

// checkAgree checks that all replicas have the same records once they have applied the same.
func checkAgree(t *testing.T, c *Cell) {
	t.Helper()
	c.Until("all have applied the same", time.Minute, func() bool {
		for _, r := range c.Replicas {
			if r.Status().GetApplied() != c.Replicas[0].Status().GetApplied() {
				return false
			}
		}
		return true
	})
	for _, r := range c.Replicas {
		if hash := r.Status().GetHash(); hash != c.Replicas[0].Status().GetHash() {
			t.Errorf("%s has other records than %s", r.Name, c.Replicas[0].Name)
		}
	}
}
