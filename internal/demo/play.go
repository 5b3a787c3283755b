package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lockfs/internal/proccell"
	"lockfs/sequencer"
)

// The file that everything turns about, in the cell's folder of each host, and what stands in it.
const (
	file    = "orders-db/master"
	content = "10.4.7.22:7000\n"
)

// play is the whole story. Each part begins where the one before it has ended.
func (s *stage) play(ctx context.Context) error {
	for _, part := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"A cell of three replicas, and two hosts that mount it.", s.opening},
		{"What is written on one host is read on the other.", s.writeAndRead},
		{"A lock taken with flock on host A keeps host B waiting.", s.lockAndWait},
		{"The master is killed while A holds the lock: lock and content stay.", s.masterDies},
		{"The process that holds the lock is killed: who waits gets it at once.", s.holderDies},
		{fmt.Sprintf("Host A hangs while it holds the lock. (The lease is short here, %v, and so is the lock-delay, %v.)",
			lease, lockDelay), s.hostHangs},
	} {
		s.title(part.title)
		if err := part.do(ctx); err != nil {
			return err
		}
	}
	s.title("All was as told.")
	return nil
}

func (s *stage) opening(ctx context.Context) (err error) {
	if err := s.cell.Start(ctx); err != nil {
		return err
	}
	s.say("three lockfsd run and have elected a master")
	if s.a, err = s.cell.Mount(ctx, "A", "--lock-delay", lockDelay.String()); err != nil {
		return err
	}
	if s.b, err = s.cell.Mount(ctx, "B", "--lock-delay", lockDelay.String()); err != nil {
		return err
	}
	s.say("two lockfs-mount show it, at %s and %s", s.a.Dir, s.b.Dir)
	return nil
}

func (s *stage) writeAndRead(ctx context.Context) error {
	if err := s.must(ctx, s.a, "mkdir orders-db", ""); err != nil {
		return err
	}
	if err := s.must(ctx, s.a, "echo "+strings.TrimSpace(content)+" > "+file, ""); err != nil {
		return err
	}
	return s.must(ctx, s.b, "cat "+file, content)
}

// held starts a process on host A, waits until it has the lock, and returns the sequencer.
func (s *stage) held(ctx context.Context) (*proccell.Locker, sequencer.Sequencer, error) {
	holder, err := s.lock(s.a)
	if err != nil {
		return nil, sequencer.Sequencer{}, err
	}
	if err := holder.Holds(ctx); err != nil {
		return nil, sequencer.Sequencer{}, err
	}
	seq, err := s.sequencer(ctx, s.a)
	if err == nil {
		s.say("A holds the lock; its sequencer is %s", seq)
	}
	return holder, seq, err
}

// waits starts a process on host B and waits until it stands in the queue.
func (s *stage) waits(ctx context.Context) (*proccell.Locker, error) {
	waiter, err := s.lock(s.b)
	if err != nil {
		return nil, err
	}
	if err := s.waiting(ctx); err != nil {
		return nil, err
	}
	s.say("a process on B waits for it in flock")
	return waiter, nil
}

// passes waits until the waiter on B has the lock, checks that it has the generation after the
// one before, and ends it.
func (s *stage) passes(ctx context.Context, waiter *proccell.Locker, before sequencer.Sequencer) error {
	since := time.Now()
	if err := waiter.Holds(ctx); err != nil {
		return err
	}
	took := time.Since(since)
	seq, err := s.sequencer(ctx, s.b)
	if err != nil {
		return err
	}
	s.say("B has the lock, %v later; its sequencer is %s", took.Round(time.Millisecond), seq)
	if seq.Generation != before.Generation+1 {
		return fmt.Errorf("the generation after %d is %d", before.Generation, seq.Generation)
	}
	return nil
}

func (s *stage) lockAndWait(ctx context.Context) error {
	holder, seq, err := s.held(ctx)
	if err != nil {
		return err
	}
	if err := s.refused(ctx, s.b); err != nil {
		return err
	}
	waiter, err := s.waits(ctx)
	if err != nil {
		return err
	}
	s.say("A lets it go")
	if err := holder.Release(ctx); err != nil {
		return err
	}
	if err := s.passes(ctx, waiter, seq); err != nil {
		return err
	}
	return waiter.Release(ctx)
}

func (s *stage) masterDies(ctx context.Context) error {
	holder, seq, err := s.held(ctx)
	if err != nil {
		return err
	}
	master, err := s.cell.Master(ctx)
	if err != nil {
		return err
	}
	s.say("kill -9 of the master, %s", master.Name)
	since := time.Now()
	if err := master.Process().Kill(); err != nil {
		return err
	}
	if err := s.must(ctx, s.b, "cat "+file, content); err != nil {
		return err
	}
	s.say("the content is there, %v after the kill", time.Since(since).Round(time.Millisecond))
	if err := s.refused(ctx, s.b); err != nil {
		return err
	}
	now, err := s.sequencer(ctx, s.a)
	if err != nil {
		return err
	}
	if now != seq {
		return fmt.Errorf("the sequencer was %s and is %s", seq, now)
	}
	s.say("A still holds the lock: %s", now)
	successor, err := s.cell.Master(ctx)
	if err != nil {
		return err
	}
	s.say("the new master is %s; %s starts again and catches up", successor.Name, master.Name)
	if err := master.Start(ctx); err != nil {
		return err
	}
	return holder.Release(ctx)
}

func (s *stage) holderDies(ctx context.Context) error {
	holder, seq, err := s.held(ctx)
	if err != nil {
		return err
	}
	waiter, err := s.waits(ctx)
	if err != nil {
		return err
	}
	s.say("kill -9 of the process on A")
	if err := holder.Kill(); err != nil {
		return err
	}
	since := time.Now()
	if err := s.passes(ctx, waiter, seq); err != nil {
		return err
	}
	if took := time.Since(since); took > time.Second {
		return fmt.Errorf("the waiter got the lock after %v, not at once", took)
	}
	return waiter.Release(ctx)
}

func (s *stage) hostHangs(ctx context.Context) error {
	holder, seq, err := s.held(ctx)
	if err != nil {
		return err
	}
	waiter, err := s.waits(ctx)
	if err != nil {
		return err
	}
	s.say("host A freezes, its lockfs-mount and the process that holds the lock")
	holder.Freeze()
	s.a.Process().Freeze()
	if err := s.passes(ctx, waiter, seq); err != nil {
		return err
	}
	const successor = "10.4.7.23:7000\n"
	if err := s.must(ctx, s.b, "echo "+strings.TrimSpace(successor)+" > "+file, ""); err != nil {
		return err
	}
	s.say("host A wakes up")
	s.a.Process().Thaw()
	holder.Thaw()
	s.say("A's process, which believes that it holds the lock, writes to the file it has open")
	said, err := holder.Tell(ctx, `echo 10.4.7.22:7000 >&9 || cat <&9 || echo "both failed"`)
	if err != nil {
		return err
	}
	if err := s.stale(said); err != nil {
		return err
	}
	if err := s.must(ctx, s.a, "cat "+file, successor); err != nil {
		return err
	}
	return waiter.Release(ctx)
}

// stale checks that writing and reading through the open file both failed.
func (s *stage) stale(said string) error {
	for line := range strings.Lines(said) {
		s.say("   %s", strings.TrimSuffix(line, "\n"))
	}
	if strings.Count(said, "Stale file handle") < 2 || !strings.Contains(said, "both failed") {
		return fmt.Errorf("what a host that lost its lock is told is not an error: %q", said)
	}
	return nil
}
