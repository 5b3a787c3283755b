package simcell

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockfs"
	"lockfs/client"
)

// TestWhoeverComes has many owners on three hosts take, convert, give up and drop the locks of a few
// files at random, while masters fail and hosts lose their way to replicas. At no time may two hold
// what excludes each other, and at the end nobody waits, nothing is held, and every session lives.
func TestWhoeverComes(t *testing.T) {
	for s := uint64(1); s <= max(1, uint64(*seeds)/4); s++ {
		t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { whoeverComes(t, s) })
		})
	}
}

// crowd is who holds which lock, as the holders themselves know it.
type crowd struct {
	mu     sync.Mutex
	inside map[lockfs.Path]map[*visitor]lockfs.Mode
	grants int
}

// visitor is an owner with its own luck.
type visitor struct {
	t      *testing.T
	crowd  *crowd
	s      *client.Session
	owner  uint64
	random *rand.Rand
}

func whoeverComes(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	c := New(t, Options{Seed: seed, Delay: 5 * time.Millisecond})
	var hosts []*Client
	for _, name := range []string{"a", "b", "c"} {
		hosts = append(hosts, c.Client(name))
	}
	files := []lockfs.Path{"/ls/sim/f1", "/ls/sim/f2"}
	for _, f := range files {
		if _, _, err := session(t, hosts[0]).Create(ctx, client.Create{Path: f, Type: lockfs.File}); err != nil {
			t.Fatal(err)
		}
	}
	crowd := &crowd{inside: map[lockfs.Path]map[*visitor]lockfs.Mode{files[0]: {}, files[1]: {}}}
	stop := make(chan struct{})
	var visiting sync.WaitGroup
	for _, h := range hosts {
		for range 5 {
			v := &visitor{t: t, crowd: crowd, s: session(t, h), random: rand.New(rand.NewPCG(seed, random.Uint64()))}
			visiting.Go(func() {
				for !t.Failed() { // time would stand still while everybody fails at once, again and again
					select {
					case <-stop:
						return
					default:
						v.visit(files[v.random.IntN(len(files))])
					}
				}
			})
		}
	}
	for range 4 {
		time.Sleep(2 * time.Second)
		failMasters(c, random)
		h, r := hosts[random.IntN(len(hosts))], c.Replicas[random.IntN(len(c.Replicas))]
		c.Net.Cut(h.Name, r.Name)
		time.Sleep(time.Duration(random.Int64N(int64(5 * time.Second))))
		c.Net.Heal(h.Name, r.Name)
	}
	close(stop)
	visiting.Wait()
	checkNothingIsLeft(t, c, hosts)
	checkAgree(t, c)
	t.Logf("%d grants", crowd.grants)
	if crowd.grants < 100 {
		t.Errorf("there were only %d grants", crowd.grants)
	}
}

func checkNothingIsLeft(t *testing.T, c *Cell, hosts []*Client) {
	t.Helper()
	c.Until("no lock is held or waited for", 20*time.Second, func() bool {
		locks, err := hosts[0].Locks(ctx, "/ls/sim")
		if err != nil {
			t.Fatal(err)
		}
		return len(locks) == 0
	})
	infos, err := hosts[0].Sessions(ctx)
	if err != nil || len(infos) != len(hosts) {
		t.Errorf("%d sessions are left: %+v, %v", len(infos), infos, err)
	}
}

func (v *visitor) pause(most time.Duration) { time.Sleep(time.Duration(v.random.Int64N(int64(most)))) }

func (v *visitor) mode() lockfs.Mode {
	return []lockfs.Mode{lockfs.Shared, lockfs.Exclusive}[v.random.IntN(2)]
}

// visit wants the lock of f, in whatever way, and lets go of it again in whatever way.
func (v *visitor) visit(f lockfs.Path) {
	v.owner = v.s.NewOwner()
	holds := v.want(f)
	if v.random.IntN(3) == 0 {
		holds = v.want(f) || holds // perhaps a conversion, perhaps again
	}
	if !holds {
		return // nothing is left of a wait that was given up
	}
	v.leave(f)
	if v.random.IntN(2) == 0 || !v.release(f) {
		v.s.CloseOwner(v.owner)
	}
}

// release lets go of the lock, if there is one, and reports whether it surely has.
func (v *visitor) release(f lockfs.Path) bool {
	err := v.s.Release(ctx, f, 0, v.owner)
	switch {
	case err == nil, errors.Is(err, lockfs.ErrNotHeld):
		return true
	case !errors.Is(err, lockfs.ErrUnknown) && !errors.Is(err, lockfs.ErrUnavailable):
		v.t.Errorf("release: %v", err)
	}
	return false
}

// want asks for the lock, and stays in it for a while if it is granted.
func (v *visitor) want(f lockfs.Path) (granted bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second+time.Duration(v.random.Int64N(int64(5*time.Second))))
	defer cancel()
	v.leave(f) // a conversion may pass over to another at any moment from here on
	mode := v.mode()
	seq, err := v.s.Acquire(ctx, client.Acquire{Path: f, Owner: v.owner, Mode: mode, Wait: v.random.IntN(3) > 0})
	switch {
	case err == nil && seq.Mode != mode:
		v.t.Errorf("granted %v and not %v", seq, mode)
	case err == nil:
		v.enter(f, mode)
		v.pause(200 * time.Millisecond)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, lockfs.ErrBusy), errors.Is(err, lockfs.ErrDeadlock), errors.Is(err, lockfs.ErrUnavailable):
	default:
		v.t.Errorf("acquire: %v", err)
	}
	return err == nil
}

func (v *visitor) enter(f lockfs.Path, mode lockfs.Mode) {
	v.crowd.mu.Lock()
	defer v.crowd.mu.Unlock()
	for other, theirs := range v.crowd.inside[f] {
		if other != v && theirs.Conflicts(mode) {
			v.t.Errorf("%s is held %v by owner %d of session %d, and %v by owner %d of session %d",
				f, theirs, other.owner, other.s.ID(), mode, v.owner, v.s.ID())
		}
	}
	v.crowd.inside[f][v] = mode
	v.crowd.grants++
}

func (v *visitor) leave(f lockfs.Path) {
	v.crowd.mu.Lock()
	defer v.crowd.mu.Unlock()
	delete(v.crowd.inside[f], v)
}
