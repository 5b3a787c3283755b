package simcell

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/sequencer"
)

var ctx = context.Background()

const file = lockfs.Path("/ls/sim/master")

// session returns a client's session, or fails the test.
func session(t *testing.T, c *Client) *client.Session {
	t.Helper()
	s, err := c.Session(ctx)
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	return s
}

// make makes the file that everybody locks.
func makeFile(t *testing.T, s *client.Session) {
	t.Helper()
	if _, _, err := s.Create(ctx, client.Create{Path: file, Type: lockfs.File}); err != nil {
		t.Fatal(err)
	}
}

// holder is an owner that holds the lock of file, or wants it.
type holder struct {
	s     *client.Session
	owner uint64
	delay time.Duration
}

func newHolder(s *client.Session, delay time.Duration) *holder {
	return &holder{s: s, owner: s.NewOwner(), delay: delay}
}

func (h *holder) lock(wait bool) (sequencer.Sequencer, error) {
	return h.s.Acquire(ctx, client.Acquire{Path: file, Owner: h.owner, Mode: lockfs.Exclusive, Wait: wait, LockDelay: h.delay})
}

func (h *holder) unlock() error { return h.s.Release(ctx, file, 0, h.owner) }

// grant is how a wait for the lock ended, and when.
type grant struct {
	sequencer.Sequencer
	err error
	at  time.Time
}

// wait waits for the lock in the background.
func (h *holder) wait() <-chan grant {
	granted := make(chan grant, 1)
	go func() {
		seq, err := h.lock(true)
		granted <- grant{seq, err, time.Now()}
	}()
	return granted
}

func TestFailoverKeepsLocksContentsAndWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{Delay: time.Millisecond})
		a, b := session(t, c.Client("a")), session(t, c.Client("b"))
		makeFile(t, a)
		holding := newHolder(a, 0)
		first, err := holding.lock(false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Edit(ctx, client.Edit{Path: file, Guard: first, Changes: []client.Change{{Kind: client.Append, Data: []byte("kept")}}}); err != nil {
			t.Fatal(err)
		}
		granted := newHolder(b, 0).wait()

		for range 3 {
			time.Sleep(15 * time.Second)
			old := c.Master()
			old.Kill()
			began := time.Now()
			content, _, err := b.Read(ctx, file, 0)
			if err != nil || string(content) != "kept" {
				t.Errorf("read %q, %v", content, err)
			}
			t.Logf("read again %v after the master was killed", time.Since(began))
			old.Start()
		}
		select {
		case g := <-granted:
			t.Fatalf("the waiter was granted %v, %v while the lock was held", g.Sequencer, g.err)
		default:
		}
		if _, err := a.Edit(ctx, client.Edit{Path: file, Guard: first}); err != nil {
			t.Errorf("the holder's sequencer is not valid any more: %v", err)
		}
		if err := holding.unlock(); err != nil {
			t.Error(err)
		}
		if g := <-granted; g.err != nil || g.Generation != first.Generation+1 {
			t.Errorf("the waiter was granted %v, %v", g.Sequencer, g.err)
		}
	})
}

func TestAFrozenHolderExpiresAndWakesToErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{Delay: time.Millisecond})
		frozen := c.Client("a")
		a, b := session(t, frozen), session(t, c.Client("b"))
		makeFile(t, b)
		holding := newHolder(a, 0)
		first, err := holding.lock(false)
		if err != nil {
			t.Fatal(err)
		}
		granted := newHolder(b, 0).wait()
		time.Sleep(time.Minute)

		frozen.Freeze()
		began := time.Now()
		g := <-granted
		if g.err != nil || g.Generation != first.Generation+1 {
			t.Errorf("the waiter was granted %v, %v", g.Sequencer, g.err)
		}
		// The lease counts from the last renewal, which was up to a third of it ago.
		if d := g.at.Sub(began); d < 8*time.Second || d > 12*time.Second+time.Second/2 {
			t.Errorf("granted %v after the holder froze", d)
		}
		time.Sleep(20 * time.Second)
		frozen.Thaw()
		for what, call := range map[string]func() error{
			"read":   func() error { _, _, err := a.Read(ctx, file, 0); return err },
			"write":  func() error { _, err := a.Edit(ctx, client.Edit{Path: file}); return err },
			"lock":   func() error { _, err := newHolder(a, 0).lock(true); return err },
			"unlock": holding.unlock,
		} {
			if err := call(); !errors.Is(err, lockfs.ErrSession) {
				t.Errorf("%s on waking: %v", what, err)
			}
		}
		<-a.Lost()
		if err := a.Err(); !errors.Is(err, lockfs.ErrSession) {
			t.Errorf("it ended with %v", err)
		}
		next := session(t, frozen)
		if _, _, err := next.Read(ctx, file, 0); err != nil {
			t.Errorf("the next session: %v", err)
		}
	})
}

func TestLockDelayIsHonouredAndStartsAgainWithAMaster(t *testing.T) {
	for _, failover := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := New(t, Options{Delay: time.Millisecond})
			frozen := c.Client("a")
			a, b := session(t, frozen), session(t, c.Client("b"))
			makeFile(t, b)
			if _, err := newHolder(a, 30*time.Second).lock(false); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			frozen.Freeze()
			granted := newHolder(b, 0).wait()
			var expired time.Time
			c.Until("the session's end", 15*time.Second, func() bool {
				state, err := b.LockState(ctx, file, 0)
				if err != nil {
					t.Fatal(err)
				}
				expired = time.Now()
				return state.Mode == lockfs.Free && len(state.Delays) == 1
			})
			if d := expired.Sub(began); d > 12*time.Second+time.Second/2 {
				t.Errorf("expired %v after the freeze", d)
			}
			if _, err := newHolder(b, 0).lock(false); !errors.Is(err, lockfs.ErrLockDelay) && !errors.Is(err, lockfs.ErrBusy) {
				t.Errorf("without waiting: %v", err)
			}
			from := expired
			if failover {
				time.Sleep(20 * time.Second)
				c.Master().Kill()
				from = time.Now()
			}
			g := <-granted
			if g.err != nil {
				t.Fatal(g.err)
			}
			// In full, from the expiry or from the new master's taking office.
			if d := g.at.Sub(from); d < 30*time.Second-100*time.Millisecond || d > 34*time.Second {
				t.Errorf("failover %v: granted after %v", failover, d)
			}
		})
	}
}

func TestWaitersAreGrantedInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{Delay: time.Millisecond})
		a, b := session(t, c.Client("a")), session(t, c.Client("b"))
		makeFile(t, a)
		first := newHolder(a, 0)
		if _, err := first.lock(false); err != nil {
			t.Fatal(err)
		}
		const count = 40
		order := make(chan int, count)
		for i := range count {
			h := newHolder([]*client.Session{a, b}[i%2], 0)
			go func() {
				if _, err := h.lock(true); err != nil {
					t.Error(err)
				}
				order <- i
				if err := h.unlock(); err != nil {
					t.Error(err)
				}
			}()
			c.Until("the waiter is in the queue", time.Second, func() bool {
				state, err := a.LockState(ctx, file, 0)
				if err != nil {
					t.Fatal(err)
				}
				return len(state.Waiters) == i+1
			})
		}
		began := time.Now()
		if err := first.unlock(); err != nil {
			t.Fatal(err)
		}
		for i := range count {
			if got := <-order; got != i {
				t.Errorf("turn %d was of waiter %d", i, got)
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("%d turns took %v", count, d)
		}
	})
}

// A host is frozen while it waits. If its session has ended when it wakes, its wait fails and the
// lock went to the next; if not, it has the lock, and it is told so only while it can be sure.
func TestAFrozenWaiter(t *testing.T) {
	for _, c := range []struct {
		frozen time.Duration
		dead   bool
	}{{6 * time.Second, false}, {20 * time.Second, true}} {
		synctest.Test(t, func(t *testing.T) {
			cell := New(t, Options{Delay: time.Millisecond})
			host := cell.Client("b")
			a, b, other := session(t, cell.Client("a")), session(t, host), session(t, cell.Client("c"))
			makeFile(t, a)
			holding := newHolder(a, 0)
			first, err := holding.lock(false)
			if err != nil {
				t.Fatal(err)
			}
			granted := newHolder(b, 0).wait()
			time.Sleep(time.Second)
			next := newHolder(other, 0).wait()
			time.Sleep(time.Second)

			host.Freeze()
			began := time.Now()
			time.Sleep(c.frozen - time.Second)
			if err := holding.unlock(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Until(began.Add(c.frozen)))
			host.Thaw()
			g := <-granted
			if c.dead {
				if !errors.Is(g.err, lockfs.ErrSession) {
					t.Errorf("frozen for %v it was granted %v, %v", c.frozen, g.Sequencer, g.err)
				}
				g = <-next
			} else if b.Left() == 0 {
				t.Errorf("frozen for %v it was granted %v without a valid lease", c.frozen, g.Sequencer)
			}
			if g.err != nil || g.Generation != first.Generation+1 {
				t.Errorf("frozen for %v: the lock went to %v, %v", c.frozen, g.Sequencer, g.err)
			}
			b.Close(ctx, nil) // so that whoever waits still gets it
			if !c.dead {
				<-next
			}
		})
	}
}
