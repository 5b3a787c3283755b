package fuse

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/clock"
	"lockfs/internal/simcell/simnet"
	"lockfs/master"
	"lockfs/raft"
	"lockfs/store"
)

// shortLease is of cells whose sessions are lost in a test. It passes in real time: the kernel has
// no other. On a busy machine it can pass by itself.
const shortLease = time.Second

// testCell is a cell of one replica in this process, with a network that can be cut.
type testCell struct {
	t               *testing.T
	net             *simnet.Network
	*client.Session // which looks on, as any other host could
}

const replica = "r1"

func newTestCell(t *testing.T, lease time.Duration) *testCell {
	t.Helper()
	return newLimitedCell(t, lease, lockfs.DefaultLimits)
}

func newLimitedCell(t *testing.T, lease time.Duration, limits lockfs.Limits) *testCell {
	t.Helper()
	c := &testCell{t: t, net: simnet.New(0)}
	db, err := store.OpenDB(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	member := raft.Member{ID: 1, Name: replica, Address: replica}
	running, err := master.Start(master.Config{
		Cell: "ny1", Self: member, ClusterID: 1, Members: []raft.Member{member},
		Lease: lease, Grace: lease, Limits: limits,
		DB: db, Storage: raft.NewMemoryDisk().Open(), Clock: clock.Monotonic(), Wall: time.Now, Dial: c.net.Dialer(replica),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	running.Register(server)
	served := make(chan struct{})
	listener := c.net.Listen(replica)
	go func() {
		defer close(served)
		server.Serve(listener)
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		running.Stop(ctx)
		server.Stop()
		<-served
	})
	c.Session, err = c.client("observer", 0).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.mkdir("/ls/ny1/d")
	return c
}

// client is one of a host of its own.
func (c *testCell) client(host string, timeout time.Duration) *client.Client {
	c.t.Helper()
	cl, err := client.Open(client.Config{
		Cell: "ny1", Addresses: []string{replica}, Host: host, Timeout: timeout, Dial: c.net.Dialer(host),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		cl.Close(ctx)
	})
	return cl
}

func (c *testCell) mkdir(path lockfs.Path) {
	c.t.Helper()
	if _, _, err := c.Create(c.t.Context(), client.Create{Path: path, Type: lockfs.Dir, Exclusive: true}); err != nil {
		c.t.Fatal(err)
	}
}

// stat is what the cell knows of a node.
func (c *testCell) stat(path lockfs.Path) lockfs.Stat {
	c.t.Helper()
	st, err := c.Stat(c.t.Context(), path, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	return st
}

// content is what is in a file.
func (c *testCell) content(path lockfs.Path) string {
	c.t.Helper()
	content, _, err := c.Read(c.t.Context(), path, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

func (c *testCell) lock(path lockfs.Path) client.LockState {
	c.t.Helper()
	state, err := c.LockState(c.t.Context(), path, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	return state
}

// held is how many hold the lock of a node, waiting how many want it.
func (c *testCell) held(path lockfs.Path) int    { return len(c.lock(path).Holders) }
func (c *testCell) waiting(path lockfs.Path) int { return len(c.lock(path).Waiters) }

// leave makes the cell silent to a host until the returned function is called.
func (c *testCell) leave(h *host) (back func()) {
	c.net.Cut(h.name, replica)
	return func() { c.net.Heal(h.name, replica) }
}

// expire ends the session of a host, which is cut off for longer than its lease.
func (c *testCell) expire(h *host) {
	c.t.Helper()
	var sessions []*tenancy
	until(c.t, "the host has a session", func() bool { sessions = h.fs.allTenancies(); return len(sessions) == 1 })
	back := c.leave(h)
	defer back()
	select {
	case <-sessions[0].Lost(): // when the grace period is over too
	case <-time.After(20 * time.Second):
		c.t.Fatal("the session is not lost")
	}
}

// path of the test's directory on a host.
func (h *host) path(name string) string { return filepath.Join(h.here, name) }
