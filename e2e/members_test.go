package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// cellMember is what lockfs member list shows of one.
type cellMember struct {
	Name, Address        string
	ID                   uint64 `json:",string"`
	Voter, Begun, Master bool
	Reachable            bool
	Matched              uint64
}

// members returns what lockfs member list shows, nil where no master answers.
func members(t *testing.T, cell *proccell.Cell) []cellMember {
	t.Helper()
	said, err := cell.Lockfs(within(t, time.Minute), "member", "list", "-o", "json")
	if err != nil {
		return nil
	}
	var list struct{ Members []cellMember }
	if err := json.Unmarshal([]byte(said), &list); err != nil {
		t.Fatal(err)
	}
	return list.Members
}

// awaitVoters waits until exactly these are members, with a vote each.
func awaitVoters(t *testing.T, cell *proccell.Cell, names ...string) {
	t.Helper()
	until(t, fmt.Sprintf("votes of %v and of nobody else", names), time.Minute, func() bool {
		var voters []string
		for _, m := range members(t, cell) {
			if !m.Voter || !m.Begun {
				return false
			}
			voters = append(voters, m.Name)
		}
		return slices.Equal(voters, names)
	})
}

// change runs lockfs member, and tries again where another change is under way.
func change(t *testing.T, cell *proccell.Cell, args ...string) {
	t.Helper()
	var err error
	until(t, "lockfs member "+strings.Join(args, " "), time.Minute, func() bool {
		_, err = cell.Lockfs(within(t, time.Minute), append([]string{"member"}, args...)...)
		return err == nil || !strings.Contains(err.Error(), "another change of the membership is under way")
	})
	if err != nil {
		t.Fatal(err)
	}
}

// refuses expects a command to fail with words, and with one line of them.
func refuses(t *testing.T, err error, words ...string) {
	t.Helper()
	if proccell.ExitCode(unwrapped(err)) != 1 {
		t.Errorf("%v; want exit code 1", err)
		return
	}
	for _, want := range words {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want it to say %q", err, want)
		}
	}
}

// endsSaying expects a replica to end of itself with exit code 1, and to say words last.
func endsSaying(t *testing.T, r *proccell.Replica, words ...string) {
	t.Helper()
	if err := r.Process().Wait(within(t, time.Minute)); proccell.ExitCode(err) != 1 {
		t.Fatalf("replica %s ended with %v; want exit code 1", r.Name, err)
	}
	lines := strings.Split(strings.TrimSpace(r.Log()), "\n")
	for _, want := range words {
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "lockfsd: ") || !strings.Contains(last, want) {
			t.Errorf("replica %s said last %q; want %q in it", r.Name, last, want)
		}
	}
}

func replica(t *testing.T, cell *proccell.Cell, name string) *proccell.Replica {
	t.Helper()
	for _, r := range cell.Replicas {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no replica %s", name)
	return nil
}

// followers returns the running replicas but the master, and that.
func followers(t *testing.T, cell *proccell.Cell) (others []*proccell.Replica, master *proccell.Replica) {
	t.Helper()
	master, err := cell.Master(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range cell.Replicas {
		if r != master && r.Running() {
			others = append(others, r)
		}
	}
	return others, master
}

// TestL091 adds a member at an address where nobody is: to a cell of one and of three. It gets no
// vote, so it stops nothing; it is not given one, and it can be removed.
func TestL091(t *testing.T) {
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			cell := newCell(t, proccell.Config{Replicas: size})
			w := startWriters(t, cell, 2)
			w.progress(20, time.Minute)
			dead, err := proccell.FreeAddresses(1)
			if err != nil {
				t.Fatal(err)
			}
			change(t, cell, "add", "r9", dead[0])
			w.progress(50, failoverTime)

			_, err = cell.Lockfs(within(t, time.Minute), "member", "promote", "r9")
			refuses(t, err, "(r9): it is not heard from at "+dead[0])
			_, err = cell.Lockfs(within(t, time.Minute), "member", "add", "r9", "127.0.0.1:1")
			refuses(t, err, "r9 is a member already, at "+dead[0])
			status, err := cell.Lockfs(within(t, time.Minute), "status")
			if want := fmt.Sprintf("r9=%s (learner) (has not begun); %d more may be lost\n", dead[0], size/2); err != nil || !strings.HasSuffix(status, want) {
				t.Errorf("status says %s, %v; want %q at its end", status, err, want)
			}
			if size == 3 { // a majority of the voters is enough, whatever learners there are
				others, _ := followers(t, cell)
				if err := others[0].Process().Kill(); err != nil {
					t.Fatal(err)
				}
				w.progress(50, failoverTime)
				if err := others[0].Start(within(t, time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
			change(t, cell, "remove", "r9")
			if list := members(t, cell); len(list) != size {
				t.Errorf("after it was removed the members are %v", list)
			}
			_, err = cell.Lockfs(within(t, time.Minute), "member", "remove", "r9")
			refuses(t, err, `the cell has no member "r9"`)
			if size == 1 {
				_, err = cell.Lockfs(within(t, time.Minute), "member", "remove", "r1")
				refuses(t, err, "r1 is the only voter")
			}
			w.progress(50, failoverTime)
			w.finish(failoverTime)
		})
	}
}

// oneHost starts a cell with one mount.
func oneHost(t *testing.T, config proccell.Config) *hosts {
	t.Helper()
	fusetest.Need(t)
	h := &hosts{T: t, cell: newCell(t, config)}
	var err error
	h.a, err = h.cell.Mount(within(t, time.Minute), "a")
	h.ok(err)
	h.b = h.a
	return h
}

// a mountedWriter is a journal that is being written on a mount.
type mountedWriter struct {
	*journal
	stop, done chan struct{}
}

func (h *hosts) startJournal(file string) *mountedWriter {
	m := &mountedWriter{newJournal(h.a, file), make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(m.done)
		m.write(m.stop)
	}()
	return m
}

// finishJournal ends the writing, and checks what is there.
func (h *hosts) finishJournal(m *mountedWriter, longest time.Duration) {
	h.Helper()
	close(m.stop)
	select {
	case <-m.done:
	case <-within(h.T, time.Minute).Done():
		h.Fatal("a write on the mount has not ended after a minute")
	}
	h.verify(m.file.Load().(string), m.journal)
	h.Logf("the mount: %d lines acknowledged, the longest stretch without one was %v; refused: %v",
		m.mu.count, m.mu.longest.Round(time.Millisecond), m.mu.errors)
	if m.mu.longest > longest {
		h.Errorf("on the mount nothing was acknowledged for %v; a failover may take %v", m.mu.longest, longest)
	}
}

// TestL092 deletes the data folder of a follower, and then that of the master, under load. Such a
// replica does not start again, and names the way back; that way, it comes back.
func TestL092(t *testing.T) {
	h := oneHost(t, proccell.Config{})
	w := startWriters(t, h.cell, 2)
	mounted := h.startJournal("journal")
	for _, whom := range []string{"follower", "master"} {
		w.progress(50, time.Minute)
		others, lost := followers(t, h.cell)
		if whom == "follower" {
			lost = others[0]
		}
		h.Logf("%s %s loses its disk", whom, lost.Name)
		h.ok(lost.Process().Kill())
		h.ok(os.RemoveAll(lost.Dir))
		w.progress(10, failoverTime)
		h.ok(lost.Launch())
		endsSaying(t, lost, lost.Name+" has taken part in cell ny1 with another data folder",
			"lockfs member replace "+lost.Name+" HOST:PORT", "--join")
		w.progress(10, failoverTime)

		if whom == "master" { // comes back on another host
			free, err := proccell.FreeAddresses(1)
			h.ok(err)
			lost.Address = free[0]
		}
		change(t, h.cell, "replace", lost.Name, lost.Address)
		h.cell.Join(lost)
		h.ok(lost.Start(within(t, time.Minute)))
		awaitVoters(t, h.cell, "r1", "r2", "r3")
		w.progress(10, failoverTime)
	}
	h.finishJournal(mounted, failoverTime)
	w.finish(failoverTime)
}

// TestMembers lets a cell of three grow to five under load, lose two of them, and shrink again, the
// master among those who go.
func TestMembers(t *testing.T) {
	cell := newCell(t, proccell.Config{})
	w := startWriters(t, cell, 2)
	ok := fatal(t)
	for _, name := range []string{"r4", "r5"} {
		w.progress(20, time.Minute)
		r, err := cell.Add(name)
		ok(err)
		ok(r.Launch()) // before the cell knows it: it is told so, and to be started again
		endsSaying(t, r, name+" is no member of cell ny1: first, lockfs member add "+name+" HOST:PORT")
		added := make(chan error, 1)
		go func() {
			_, err := cell.Lockfs(within(t, time.Minute), "member", "add", "--wait", name, r.Address)
			added <- err
		}()
		until(t, "the new member in the list", time.Minute, func() bool {
			return slices.ContainsFunc(members(t, cell), func(m cellMember) bool { return m.Name == name })
		})
		ok(r.Start(within(t, time.Minute)))
		ok(<-added)
	}
	awaitVoters(t, cell, "r1", "r2", "r3", "r4", "r5")
	status, err := cell.Lockfs(within(t, time.Minute), "status")
	if err != nil || !strings.HasSuffix(status, "; 2 more may be lost\n") {
		t.Errorf("of five members, status says\n%s, %v", status, err)
	}

	others, master := followers(t, cell)
	ok(master.Process().Kill())
	ok(others[0].Process().Kill())
	w.progress(20, failoverTime)
	change(t, cell, "remove", others[0].Name) // it does not run
	left, now := followers(t, cell)
	change(t, cell, "remove", left[0].Name) // of four three run, and then two of three
	endsSaying(t, left[0], left[0].Name+" was removed from cell ny1: its data folder is of no more use")
	_, err = cell.Lockfs(within(t, time.Minute), "member", "remove", left[1].Name)
	refuses(t, err, "("+left[1].Name+"): of the 2 voters that there would be then 1 are heard from, and 2 are needed")
	ok(master.Start(within(t, time.Minute)))
	w.progress(20, failoverTime)

	ok(others[0].Launch()) // it learns only now
	endsSaying(t, others[0], others[0].Name+" was removed from cell ny1")
	change(t, cell, "remove", now.Name) // the master hands over first
	endsSaying(t, now, now.Name+" was removed from cell ny1: its data folder is of no more use")
	ok(now.Launch())
	endsSaying(t, now, now.Name+" was removed from cell ny1: its data folder is of no more use")
	w.progress(20, failoverTime)
	names := []string{master.Name, left[1].Name}
	slices.Sort(names)
	awaitVoters(t, cell, names...)
	w.finish(failoverTime)
}

// TestReplaceKilled kills the new member or the master with -9 in the middle of a replacement, at
// each of its stages: when the log has the new member, when it knows its folder, and when it has
// given it its vote. Whoever leads then goes on.
func TestReplaceKilled(t *testing.T) {
	type round struct{ stage, victim string }
	var rounds []round
	for _, stage := range []string{"learner", `"data folder known"`, "voter"} {
		for _, victim := range []string{"new member", "master"} {
			rounds = append(rounds, round{stage, victim})
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(rounds), func(i, j int) { rounds[i], rounds[j] = rounds[j], rounds[i] })
	cell := newCell(t, proccell.Config{})
	w := startWriters(t, cell, 2)
	for _, now := range rounds[:sized(3, len(rounds))] {
		w.progress(20, time.Minute)
		t.Logf("kill -9 of the %s at the stage %s", now.victim, now.stage)
		replaceKilled(t, cell, now.stage, now.victim)
	}
	w.progress(20, time.Minute)
	w.finish(2 * failoverTime) // with the old member gone, there is no majority without the master
}

func replaceKilled(t *testing.T, cell *proccell.Cell, stage, victim string) {
	t.Helper()
	ok := fatal(t)
	others, master := followers(t, cell)
	lost := others[0]
	ok(lost.Process().Kill())
	ok(os.RemoveAll(lost.Dir))
	mark := master.Mark()
	change(t, cell, "replace", lost.Name, lost.Address)
	cell.Join(lost)
	ok(lost.Launch())
	ok(master.Says(within(t, time.Minute), "change="+stage, mark))
	killed := master
	if victim == "new member" {
		killed = lost
	}
	ok(killed.Process().Kill())
	ok(killed.Start(within(t, time.Minute)))
	awaitVoters(t, cell, "r1", "r2", "r3")
	if !lost.Running() {
		t.Fatalf("the new member ended: %s", lost.Log())
	}
}
