package raft

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestOneLeaderAndOneOrder(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		for _, text := range numbered("p%d", 10) {
			c.propose(leader, text)
		}
		c.agree(10)
		for _, h := range c.hosts {
			if h != leader {
				if err := h.replica.Propose(leader.replica.Status().Term, []byte("x")); !errors.Is(err, ErrNotLeader) {
					t.Errorf("a follower took a proposal: %v", err)
				}
				if _, err := h.replica.ReadIndex(context.Background()); !errors.Is(err, ErrNotLeader) {
					t.Errorf("a follower answered ReadIndex: %v", err)
				}
			}
		}
	})
}

func TestKilledLeaderIsReplaced(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		old := c.leader()
		c.propose(old, "before")
		began := time.Now()
		c.crash(old)
		leader := c.leader(old)
		t.Logf("replaced after %v", time.Since(began))
		if took := time.Since(began); took > 2500*time.Millisecond {
			t.Errorf("replaced only after %v", took)
		}
		c.propose(leader, "after")
		c.start(old)
		c.agree(2)
	})
}
