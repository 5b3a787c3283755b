package e2e

import (
	"strings"
	"testing"
	"time"

	"lockfs/internal/proccell"
	"lockfs/internal/relay"
)

// TestL094 cuts the master off from the other replicas, while the hosts still reach it. They leave it
// for the one that a majority follows: reads are right, locks are what they were, and each host has
// changed once.
func TestL094(t *testing.T) {
	h := twoHosts(t, proccell.Config{Relays: true, Direct: true})
	h.play(step{`echo old > $A/f; echo x > $A/held; cat $B/f`, 0, "old\n"})
	holder := h.held(h.a, "held")
	sequencer := h.sequencerOf(h.a, "held")
	master, err := h.cell.Master(within(t, 30*time.Second))
	h.ok(err)

	// Nothing of the others reaches it, so it leads no more; what it sends on its own changes nothing
	// for them.
	master.Relay.Set(relay.Faults{Cut: true})
	began := time.Now()
	h.play(step{`echo new > $B/f; cat $A/f; cat $B/f`, 0, "new\nnew\n"})
	took := time.Since(began)
	t.Logf("master %s cut off from its peers: the next write and read took %v", master.Name, took.Round(time.Millisecond))
	if took > failoverTime/2 {
		t.Errorf("the hosts stayed with a master that is cut off from its peers for %v", took)
	}
	h.play(step{`flock -n $B/held true`, 1, ""})
	if now := h.sequencerOf(h.a, "held"); now != sequencer {
		t.Errorf("the sequencer was %s and is %s", sequencer, now)
	}
	var others []string // that the host was connected to; of the old one it knows two addresses
	for line := range strings.Lines(h.a.Log()) {
		if strings.Contains(line, "connected to the master") && !strings.Contains(line, "master="+master.Name) {
			others = append(others, line)
		}
	}
	if len(others) != 1 {
		t.Errorf("host a has changed to another master %d times: %v", len(others), others)
	}
	if strings.Contains(h.a.Log(), "session lost") {
		t.Error("host a has lost its session")
	}
	if status, err := h.cell.Status(t.Context(), master); err != nil || status.GetRole() == "master" {
		t.Errorf("the master that is cut off says it is %q, %v", status.GetRole(), err)
	}
	master.Relay.Set(relay.Faults{})
	sameHash(t, h.cell)
	h.release(holder)
	h.play(step{`flock -w 10 $B/held true`, 0, ""})
}
