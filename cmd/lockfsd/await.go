package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"lockfs/master"
)

// waitTime is how long a replica looks for a master before it tells what it waits for. An election
// takes a second or two.
const waitTime = 5 * time.Second

// await waits until a master is known. If the replica ends before it returns false, and an error
// where it did so of itself.
func await(ctx context.Context, replica *master.Replica, log *slog.Logger) (ready bool, err error) {
	const looks = 20
	look := time.NewTicker(waitTime / looks)
	defer look.Stop()
	heard := make(map[string]bool) // members, at any look; those without a leader speak now and then
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return false, nil
		case <-replica.Done():
			return false, stopped(replica)
		case <-replica.Ready():
			return true, nil
		case <-look.C:
		}
		status, err := replica.Status(ctx, nil)
		if err != nil || n > looks {
			continue
		}
		var missing []string
		for _, m := range status.GetMembers() {
			heard[m.GetName()] = heard[m.GetName()] || m.GetReachable()
			if !heard[m.GetName()] {
				missing = append(missing, m.GetName()+"="+m.GetAddress())
			}
		}
		if n == looks {
			slices.Sort(missing)
			log.Warn("no master is known: waiting for a majority of the members", "members", len(status.GetMembers()),
				"not_heard_from", strings.Join(missing, ","))
		}
	}
}
