package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockfs"
	"lockfs/sequencer"
)

var ctx = context.Background()

// story runs do in a bubble of virtual time, with a cell of three replicas of which r1 is the master.
func story(t *testing.T, do func(t *testing.T, f *fakeCell)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCell(t, "r1", "r2", "r3")
		f.elect("r1")
		do(t, f)
	})
}

// session returns a session, or fails the test.
func (f *fakeCell) session(c *Client) *Session {
	f.t.Helper()
	s, err := c.Session(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// write appends to a file, or fails the test.
func write(t *testing.T, s *Session, path lockfs.Path, text string) {
	t.Helper()
	if _, err := s.Edit(ctx, Edit{Path: path, Changes: []Change{{Kind: Append, Data: []byte(text)}}}); err != nil {
		t.Fatal(err)
	}
}

func lock(s *Session, owner uint64, wait bool) (sequencer.Sequencer, error) {
	return s.Acquire(ctx, Acquire{Path: "/ls/c/x", Owner: owner, Mode: lockfs.Exclusive, Wait: wait})
}

func TestTheMasterIsFoundByAnyReplica(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		f.elect("r3")
		c := f.open("r2") // which knows who is the master; nobody told the client of r3
		defer c.Close(ctx)
		write(t, f.session(c), "/ls/c/x", "hello")
		content, st, err := c.Reader().Read(ctx, "/ls/c/x", 0)
		if err != nil || string(content) != "hello" || st.Size != 5 {
			t.Errorf("read %q %+v %v", content, st, err)
		}
		if _, _, err := c.Reader().Read(ctx, "/ls/c/none", 0); !errors.Is(err, lockfs.ErrNotExist) {
			t.Errorf("what is not there: %v", err)
		}
	})
}

func TestAWaitOutlivesMasters(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1", "r2", "r3")
		defer c.Close(ctx)
		s := f.session(c)
		holder, waiter := s.NewOwner(), s.NewOwner()
		if _, err := lock(s, holder, false); err != nil {
			t.Fatal(err)
		}
		var granted sequencer.Sequencer
		var waiting sync.WaitGroup
		waiting.Go(func() {
			var err error
			if granted, err = lock(s, waiter, true); err != nil {
				t.Error(err)
			}
		})
		for _, master := range []string{"r2", "r3", "r1"} {
			time.Sleep(20 * time.Second) // longer than the timeout of anything else
			f.elect(master)
		}
		time.Sleep(time.Second)
		if err := s.Release(ctx, "/ls/c/x", 0, holder); err != nil {
			t.Fatal(err)
		}
		waiting.Wait()
		if granted.String() != "/ls/c/x:EXCLUSIVE:2" {
			t.Errorf("granted %v", granted)
		}
		numbers := make(map[string]bool)
		f.with(func() {
			for _, text := range f.calls {
				if strings.Contains(text, fmt.Sprintf("acquire %d:", waiter)) {
					fields := strings.Fields(text)
					numbers[fields[2]] = true
				}
			}
		})
		if len(numbers) != 1 {
			t.Errorf("the wait went under the numbers %v", numbers)
		}
	})
}

// A master that neither answers nor hangs up is left after a third of the lease, well before the
// session is in jeopardy.
func TestASilentMasterIsLeft(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1", "r2", "r3")
		defer c.Close(ctx)
		s := f.session(c)
		f.with(func() {
			f.replicas["r1"].mute = true
			f.replicas["r2"].master, f.replicas["r3"].hint = true, "r2"
			f.epoch++
		})
		took(t, 0, 9*time.Second, func() { write(t, s, "/ls/c/x", "hello") })
		time.Sleep(time.Minute)
		if err := s.Err(); err != nil {
			t.Error(err)
		}
	})
}

// So is one whose host has gone without a word: nothing is refused, nothing is answered.
func TestAReplicaThatHangsDoesNotHoldUpTheRest(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		f.elect("r3")
		f.with(func() { f.replicas["r1"].hang = true })
		c := f.open("r1", "r2", "r3")
		defer c.Close(ctx)
		took(t, 0, dialTimeout+time.Second, func() { f.session(c) })
	})
}

func TestAForeignCellIsRefused(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		f.with(func() { f.replicas["r1"].name = "d" })
		c := f.open("r1")
		defer c.Close(ctx)
		took(t, 0, time.Second, func() {
			_, err := c.Reader().Stat(ctx, "/ls/c/x", 0)
			if !errors.Is(err, lockfs.ErrCell) || err.Error() != "stat /ls/c/x: another cell: r1 is a replica of cell d, not of c" {
				t.Errorf("%v", err)
			}
		})
		if _, err := c.Session(ctx); !errors.Is(err, lockfs.ErrCell) {
			t.Errorf("and later: %v", err)
		}
	})
}

// One address that leads elsewhere does no harm while others lead to the cell.
func TestAForeignReplicaIsPassedOver(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		f.with(func() { f.replicas["r1"].name = "d" })
		f.elect("r2")
		c := f.open("r1", "r2")
		defer c.Close(ctx)
		f.session(c)
	})
}

func TestPathsOfOtherCellsAreNotSent(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		s := f.session(c)
		_, rename := s.Rename(ctx, Rename{From: "/ls/c/x", To: "/ls/d/x"})
		_, stat := s.Stat(ctx, "/ls/d/x", 0)
		if !errors.Is(rename, lockfs.ErrInvalid) || !errors.Is(stat, lockfs.ErrInvalid) {
			t.Errorf("%v, %v", rename, stat)
		}
	})
}

// TestWhatIsNoUTF8 cannot be sent. That is one call's fault, and the connection stays.
func TestWhatIsNoUTF8(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		s := f.session(c)
		waiting := make(chan error, 1)
		go func() {
			_, err := s.SetACL(ctx, "/ls/c/x", 0, lockfs.ACLNames{Read: "\xff"})
			waiting <- err
		}()
		if err := <-waiting; !errors.Is(err, lockfs.ErrInvalid) {
			t.Errorf("%v", err)
		}
		if _, err := s.Acquire(ctx, Acquire{Path: "/ls/c/x", Owner: s.NewOwner(), Mode: lockfs.Exclusive, Note: "half an \xc3"}); err != nil {
			t.Error(err)
		}
		f.with(func() {
			if f.dialed != 2 { // for calls and for keep-alives
				t.Errorf("%d connections were made", f.dialed)
			}
		})
	})
}

func TestWithoutAMasterCallsFailInTime(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r8", "r9")
		defer c.Close(ctx)
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		took(t, 50*time.Millisecond, 60*time.Millisecond, func() {
			if _, err := c.Reader().Stat(short, "/ls/c/x", 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
		unavailable := func() {
			_, err := c.Session(ctx)
			if !errors.Is(err, lockfs.ErrUnavailable) || !strings.Contains(err.Error(), "nobody listens at r") {
				t.Errorf("%v", err)
			}
		}
		took(t, DefaultTimeout-time.Second, DefaultTimeout+time.Second, unavailable)
		took(t, 0, time.Second, unavailable) // it has been seen that nobody is there
	})
}

func TestASessionIsShared(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		var mu sync.Mutex
		all := make(map[*Session]bool)
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				s := f.session(c)
				mu.Lock()
				defer mu.Unlock()
				all[s] = true
			})
		}
		asking.Wait()
		if len(all) != 1 {
			t.Errorf("%d sessions", len(all))
		}
	})
}

func TestALostSessionIsReplaced(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1", "r2")
		defer c.Close(ctx)
		s := f.session(c)
		f.with(func() {
			for _, r := range f.replicas {
				r.hang = true
			}
			f.epoch++
		})
		f.elect("none")
		took(t, 55*time.Second, 58*time.Second, func() { <-s.Lost() })
		if err := s.Err(); !errors.Is(err, lockfs.ErrSession) {
			t.Errorf("it ended with %v", err)
		}
		f.with(func() { f.replicas["r2"].hang = false })
		f.elect("r2")
		time.Sleep(2 * lateTimeout) // it may be asking r1, in vain, and a late call does not wait for all that
		if next := f.session(c); next.ID() == s.ID() {
			t.Error("the session was revived")
		}
		if _, err := s.Stat(ctx, "/ls/c/x", 0); !errors.Is(err, lockfs.ErrSession) {
			t.Errorf("the old one says %v", err)
		}
	})
}

func TestAnInterruptedWaitEndsSoon(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		s := f.session(c)
		holder, waiter := s.NewOwner(), s.NewOwner()
		if _, err := lock(s, holder, false); err != nil {
			t.Fatal(err)
		}
		for _, mute := range []bool{false, true} {
			short, cancel := context.WithTimeout(ctx, time.Second)
			time.AfterFunc(900*time.Millisecond, func() { f.with(func() { f.replicas["r1"].mute = mute }) })
			took(t, time.Second, time.Second+giveUpWait, func() {
				_, err := s.Acquire(short, Acquire{Path: "/ls/c/x", Owner: waiter, Mode: lockfs.Exclusive, Wait: true})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
			})
			cancel()
		}
		f.with(func() { f.replicas["r1"].mute = false })
		if err := s.Release(ctx, "/ls/c/x", 0, holder); err != nil {
			t.Error(err)
		}
		// The master heard nothing of the second give-up, and granted the lock to the waiter. Once
		// that is known it is given back, and only then does the waiter's next call go.
		if seq, err := lock(s, waiter, true); err != nil || seq.Generation != 3 {
			t.Errorf("then %v %v", seq, err)
		}
	})
}

// Two thousand wait on one host while it reads, and all are interrupted at once.
func TestManyWaiters(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		s := f.session(c)
		if _, err := lock(s, s.NewOwner(), false); err != nil {
			t.Fatal(err)
		}
		interrupted, interrupt := context.WithCancel(ctx)
		var waiting sync.WaitGroup
		for range 2000 {
			waiting.Go(func() {
				_, err := s.Acquire(interrupted, Acquire{Path: "/ls/c/x", Owner: s.NewOwner(), Mode: lockfs.Exclusive, Wait: true})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
			})
		}
		time.Sleep(time.Second)
		write(t, s, "/ls/c/y", "still there")
		interrupt()
		took(t, 0, giveUpWait, waiting.Wait)
		f.with(func() {
			if n := len(f.locks["/ls/c/x"].waiting); n != 0 {
				t.Errorf("%d still wait at the master", n)
			}
		})
	})
}

func TestCloseOwnerComesBeforeLaterCalls(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		s := f.session(c)
		a, b := s.NewOwner(), s.NewOwner()
		if _, err := lock(s, a, false); err != nil {
			t.Fatal(err)
		}
		if _, err := lock(s, b, false); !errors.Is(err, lockfs.ErrBusy) {
			t.Fatalf("a second holder: %v", err)
		}
		s.CloseOwner(a)
		if _, err := lock(s, b, false); err != nil {
			t.Error(err)
		}
	})
}

func TestALongListing(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		defer c.Close(ctx)
		if entries, _, err := c.Reader().List(ctx, "/ls/c", 0); err != nil || len(entries) != 100_000 {
			t.Errorf("%d entries, %v", len(entries), err)
		}
	})
}

func TestAdminCalls(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		f.elect("r2")
		f.with(func() { f.replicas["r3"].hang = true })
		c := f.open("r1", "r2", "r3", "r9")
		defer c.Close(ctx)
		took(t, 0, DefaultTimeout+time.Second, func() {
			if up, down := f.status(c); up != "r1 r2" || down != "r3 r9" {
				t.Errorf("%q answer, %q do not", up, down)
			}
		})
		if locks, err := c.Locks(ctx, "/ls/c"); err != nil || len(locks) != 1 || locks[0].Mode != lockfs.Exclusive || locks[0].Holders[0].Owner != 1 {
			t.Errorf("%+v, %v", locks, err)
		}
		if _, err := c.Sessions(ctx); !errors.Is(err, lockfs.ErrPermission) || err.Error() != "list sessions: permission denied: not you" {
			t.Errorf("%v", err)
		}
	})
}

// status is who answers a client that asks for the status, and who does not.
func (f *fakeCell) status(c *Client) (up, down string) {
	var lists [2][]string
	for _, st := range c.Status(ctx) {
		if st.Err == nil {
			lists[0] = append(lists[0], st.Status.GetReplica())
		} else {
			lists[1] = append(lists[1], st.Address)
		}
	}
	return strings.Join(lists[0], " "), strings.Join(lists[1], " ")
}

func TestStatusAsksTheMembersThatAnswersName(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r3", "r9")
		defer c.Close(ctx)
		if up, down := f.status(c); up != "r3 r1 r2" || down != "r9" {
			t.Errorf("%q answer, %q do not", up, down)
		}
		// r2 is reached by another address too, which is the one that was given.
		f.with(func() { f.replicas["r2.example.com"] = f.replicas["r2"] })
		c = f.open("r2.example.com")
		defer c.Close(ctx)
		if up, down := f.status(c); up != "r2 r1 r3" || down != "" {
			t.Errorf("%q answer, %q do not", up, down)
		}
	})
}

// A replica of another cell is none of this one, and what it names is not asked.
func TestStatusOfAForeignReplica(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		f.with(func() { f.replicas["r1"].name = "d" })
		c := f.open("r1")
		defer c.Close(ctx)
		all := c.Status(ctx)
		if len(all) != 1 || !errors.Is(all[0].Err, lockfs.ErrCell) || !strings.HasSuffix(all[0].Err.Error(), `it is a replica of cell "d"`) {
			t.Errorf("%+v", all)
		}
	})
}

func TestClose(t *testing.T) {
	story(t, func(t *testing.T, f *fakeCell) {
		c := f.open("r1")
		s := f.session(c)
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
		f.with(func() {
			if len(f.sessions) != 0 {
				t.Error("the session is still there")
			}
		})
		<-s.Lost()
		for _, call := range []func() error{
			func() error { return s.Err() },
			func() error { _, err := c.Session(ctx); return err },
			func() error { _, err := c.Reader().Stat(ctx, "/ls/c/x", 0); return err },
			func() error { return s.Close(ctx, nil) },
		} {
			if err := call(); !errors.Is(err, lockfs.ErrSession) {
				t.Errorf("after the end: %v", err)
			}
		}

		// Without a master it does not wait longer than it is told to.
		c = f.open("r1")
		f.session(c)
		f.elect("none")
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		took(t, time.Second, time.Second+giveUpWait, func() {
			if err := c.Close(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
		f.open("r1").Close(ctx) // one that was never used
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Cell: "Ny1", Addresses: []string{"r1"}}, "bad name"},
		{Config{Cell: "c"}, "no address"},
		{Config{Cell: "c", Addresses: []string{"r1"}, Timeout: -1}, "cannot be negative"},
	} {
		if _, err := Open(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}
