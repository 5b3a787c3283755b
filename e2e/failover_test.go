package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"lockfs/internal/proccell"
	"lockfs/internal/relay"
)

// load is what both hosts do while the cell is hurt: each appends to one file and counts in another
// under its lock, and a process on host A holds a third one's lock throughout.
type load struct {
	*hosts
	journals  []*journal
	critical  critical
	holder    *proccell.Locker
	sequencer string

	files []string
	stop  chan struct{}
	done  sync.WaitGroup
}

func startLoad(h *hosts) *load {
	l := &load{hosts: h, stop: make(chan struct{})}
	h.play(step{`: > $A/held; echo 0 > $A/counter`, 0, ""})
	l.holder = h.held(h.a, "held")
	l.sequencer = h.sequencerOf(h.a, "held")
	l.journals = []*journal{newJournal(h.a, ""), newJournal(h.b, "")}
	l.nextFile()
	for _, j := range l.journals {
		l.done.Go(func() { j.write(l.stop) })
		l.done.Go(func() { l.critical.run(h.T, j.host, "counter", l.stop) })
	}
	return l
}

// nextFile lets the journals go on in another file.
func (l *load) nextFile() {
	file := fmt.Sprint("journal-", len(l.files))
	l.files = append(l.files, file)
	for _, j := range l.journals {
		j.file.Store(file)
	}
}

// progress waits until each host has had n more lines acknowledged, and returns how long that took.
func (l *load) progress(n int, limit time.Duration) time.Duration {
	l.Helper()
	began := time.Now()
	var goals []int
	for _, j := range l.journals {
		goals = append(goals, j.acknowledged()+n)
	}
	cycles := l.critical.cycles.Load() + 2
	l.until("acknowledged writes from both hosts", limit, func() bool {
		return l.journals[0].acknowledged() >= goals[0] && l.journals[1].acknowledged() >= goals[1] &&
			l.critical.cycles.Load() >= cycles
	})
	return time.Since(began)
}

// stillHeld checks that the lock that was held from the start is what it was.
func (l *load) stillHeld() {
	l.Helper()
	l.play(step{`flock -n $B/held true`, 1, ""})
	if now := l.sequencerOf(l.a, "held"); now != l.sequencer {
		l.Errorf("the sequencer was %s and is %s", l.sequencer, now)
	}
}

// finish stops the load and checks what it left.
func (l *load) finish() {
	l.Helper()
	l.stillHeld()
	close(l.stop)
	stopped := make(chan struct{})
	go func() { l.done.Wait(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(30 * time.Second):
		l.Fatal("30 s after the last call began, some have not ended")
	}
	for _, file := range l.files {
		l.verify(file, l.journals...)
	}
	l.play(step{`cat $B/counter`, 0, fmt.Sprintln(l.critical.adds.Load())})
	l.release(l.holder)
	l.play(step{`flock -w 10 $B/held true`, 0, ""})
	for _, j := range l.journals {
		l.Logf("host %s: %d lines acknowledged, the longest stretch without one was %v; refused: %v",
			j.host.Name, j.mu.count, j.mu.longest.Round(time.Millisecond), j.mu.errors)
	}
	l.Logf("%d increments under the lock", l.critical.adds.Load())
}

// TestMasterKilled kills the master with -9, five times, under load from both hosts: no
// acknowledged write is missing, no refused one is there, no lock is lost, no two hold one, and
// nobody is stuck.
func TestMasterKilled(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	l := startLoad(h)
	for range sized(5, 200) {
		l.progress(20, time.Minute)
		master, err := h.cell.Master(within(t, 30*time.Second))
		h.ok(err)
		h.ok(master.Process().Kill())
		took := l.progress(5, 30*time.Second)
		t.Logf("master %s killed; both hosts had written again after %v", master.Name, took.Round(time.Millisecond))
		l.stillHeld()
		h.ok(master.Start(within(t, 30*time.Second)))
		l.nextFile()
	}
	l.progress(20, time.Minute)
	l.finish()
}

// TestBadNetwork does to the master's connections what networks do, under the same load and with
// the same promises. Peers reach each other through relays as well, so a master that nobody reaches
// is replaced. One that hears all and whose answers are lost is not, as its fellows lack nothing;
// so that lasts for less than a lease, and is about answers to calls that were done.
func TestBadNetwork(t *testing.T) {
	h := twoHosts(t, proccell.Config{Relays: true})
	l := startLoad(h)
	for range sized(1, 40) {
		for _, fault := range []struct {
			relay.Faults
			lasts time.Duration // 0: until both hosts have written again
		}{
			{relay.Faults{Cut: true}, 0},
			{relay.Faults{Hang: true}, 0},
			{relay.Faults{Delay: 50 * time.Millisecond}, 0},
			{relay.Faults{DropAnswers: true}, 3 * time.Second},
		} {
			l.progress(20, time.Minute)
			master, err := h.cell.Master(within(t, 30*time.Second))
			h.ok(err)
			began := time.Now()
			master.Relay.Set(fault.Faults)
			if fault.lasts > 0 {
				<-time.After(fault.lasts)
				master.Relay.Set(relay.Faults{})
			}
			l.progress(5, time.Minute)
			t.Logf("%+v of master %s: both hosts had written again after %v", fault.Faults, master.Name, time.Since(began).Round(time.Millisecond))
			l.stillHeld()
			master.Relay.Set(relay.Faults{})
			l.nextFile()
		}
	}
	l.progress(20, time.Minute)
	l.finish()
}
