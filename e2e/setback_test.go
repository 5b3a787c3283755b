package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"lockfs/internal/proccell"
	"lockfs/internal/relay"
)

// TestUnreachableMember cuts off what is sent to a member, which goes on speaking, as one behind a
// wrong address does. It does not count as alive: no other is removed on the strength of it.
func TestUnreachableMember(t *testing.T) {
	cell := newCell(t, proccell.Config{Relays: true, Direct: true})
	w := startWriters(t, cell, 1)
	w.progress(10, time.Minute)
	others, _ := followers(t, cell)
	others[1].Relay.Set(relay.Faults{Cut: true})
	until(t, "the member is not counted any more", time.Minute, func() bool {
		for _, m := range members(t, cell) {
			if m.Name == others[1].Name {
				return !m.Reachable
			}
		}
		return false
	})
	_, err := cell.Lockfs(within(t, time.Minute), "member", "remove", others[0].Name)
	refuses(t, err, "of the 2 voters that there would be then 1 are heard from, and 2 are needed")
	w.progress(10, failoverTime)
	others[1].Relay.Set(relay.Faults{})
	w.finish(failoverTime)
}

// TestDisksSetBack puts an old copy of a replica's folder back while another one is down, so that a
// majority has lost what it acknowledged. That cannot be made good; but nobody goes on as if nothing
// had been: whoever is elected so stops when it hears of it.
func TestDisksSetBack(t *testing.T) {
	ok := fatal(t)
	cell := newCell(t, proccell.Config{})
	put := func(text string) {
		t.Helper()
		cmd := exec.Command(programs.Lockfs, append(cell.ClientFlags(), "put", "/ls/ny1/f")...)
		cmd.Stdin = strings.NewReader(text)
		if out, err := proccell.Run(within(t, time.Minute), "lockfs put", cmd); err != nil {
			t.Fatal(err, out)
		}
	}
	put("one")
	others, master := followers(t, cell)
	set, old := others[0], others[0].Dir+".old"
	ok(set.Process().Stop(proccell.StopTime))
	ok(exec.Command("cp", "-a", set.Dir, old).Run())
	ok(set.Start(within(t, time.Minute)))
	ok(others[1].Process().Kill())
	put("two")
	ok(set.Process().Stop(proccell.StopTime))
	ok(master.Process().Kill())
	ok(os.RemoveAll(set.Dir))
	ok(os.Rename(old, set.Dir))
	ok(set.Launch())
	ok(others[1].Launch())
	until(t, "a master of the two that do not know", time.Minute, func() bool { return members(t, cell) != nil })
	ok(master.Launch())
	until(t, "one that was elected so has stopped", time.Minute, func() bool { return !set.Running() || !others[1].Running() })
	for _, r := range others {
		if !r.Running() {
			endsSaying(t, r, "were lost or set back")
		}
	}
}
