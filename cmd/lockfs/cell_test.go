package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/command"
	"lockfs/master"
	"lockfs/raft"
	"lockfs/store"
)

// newCell runs a cell ny1 of one replica in this process, and returns its address.
func newCell(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.OpenDB(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	self := raft.Member{ID: 1, Name: "r1", Address: listener.Addr().String()}
	replica, err := master.Start(master.Config{
		Cell: "ny1", Self: self, ClusterID: 1, Members: []raft.Member{self},
		Lease: lockfs.DefaultLease, Grace: lockfs.DefaultGrace, Limits: lockfs.DefaultLimits,
		DB: db, Storage: raft.NewMemoryDisk().Open(),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	replica.Register(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(listener)
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		replica.Stop(ctx)
		server.Stop()
		<-served
	})
	return self.Address
}

// lockfsIn runs the program as somebody would who has set its environment for a cell.
func lockfsIn(t *testing.T, cell, args string) (stdout, stderr string, code int) {
	env := map[string]string{"LOCKFS_CELL": cell, "LOCKFS_INSECURE": "1"}
	var out, says strings.Builder
	err := run(t.Context(), strings.Fields(args), world{strings.NewReader("from stdin"), &out, func(name string) string { return env[name] }})
	code = command.Report("lockfs", err, &says)
	return out.String(), says.String(), code
}

// TestCommands is a session of somebody who looks round in a cell.
func TestCommands(t *testing.T) {
	address := newCell(t)
	for _, test := range []struct {
		args   string
		stdout string
		stderr string
	}{
		{"mkdir /ls/ny1/d", "", ""},
		{"mkdir /ls/ny1/d", "", "lockfs: mkdir /ls/ny1/d: exists already\n"},
		{"put /ls/ny1/d/f hello", "", ""},
		{"get /ls/ny1/d/f", "hello", ""},
		{"put /ls/local/d/f", "", ""},
		{"get /ls/local/d/f", "from stdin", ""},
		{"ls", "d/\n", ""},
		{"ls /ls", "ny1/\n", ""},
		{"ls /ls/", "ny1/\n", ""},
		{"ls /ls/local/d", "f\n", ""},
		{"ls /ls/ny1/none", "", "lockfs: ls /ls/ny1/none: does not exist\n"},
		{"locks", "", ""},
		{"locks /ls/ny1/d", "", ""},
		{"locks /ls/ny1/none", "", "lockfs: locks /ls/ny1/none: does not exist\n"},
		{"locks /ls/local/d/none", "", "lockfs: locks /ls/ny1/d/none: does not exist\n"},
		{"sessions", "", ""},
		{"rm /ls/ny1/d", "", "lockfs: rm /ls/ny1/d: directory is not empty\n"},
		{"rm /ls/local/d/f", "", ""},
		{"rm /ls/ny1/d/", "", ""},
		{"ls", "", ""},
	} {
		stdout, stderr, code := lockfsIn(t, "ny1="+address, test.args)
		if stdout != test.stdout || stderr != test.stderr || (code == 0) != (stderr == "") {
			t.Errorf("lockfs %s: said %q, %q, exit code %d; want %q, %q", test.args, stdout, stderr, code, test.stdout, test.stderr)
		}
	}
}

// TestLocksOfADeletedNode shows a lock-delay though its node is gone.
func TestLocksOfADeletedNode(t *testing.T) {
	cell := "ny1=" + newCell(t)
	if _, stderr, _ := lockfsIn(t, cell, "put /ls/ny1/f x"); stderr != "" {
		t.Fatal(stderr)
	}
	leaveDelay(t, cell, "/ls/ny1/f")
	if _, stderr, _ := lockfsIn(t, cell, "rm /ls/ny1/f"); stderr != "" {
		t.Fatal(stderr)
	}
	if stdout, stderr, code := lockfsIn(t, cell, "locks /ls/ny1/f"); code != 0 || !strings.Contains(stdout, "left of the lock-delay") {
		t.Errorf("it said %q, %q, exit code %d", stdout, stderr, code)
	}
}

// leaveDelay locks a file, and ends the session as if its holder did not know of it.
func leaveDelay(t *testing.T, cell string, path lockfs.Path) {
	t.Helper()
	name, addresses, err := command.ParseCell(cell)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Open(client.Config{Cell: name, Addresses: addresses})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	session, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner := session.NewOwner()
	_, locked := session.Acquire(t.Context(), client.Acquire{Path: path, Owner: owner, Mode: lockfs.Exclusive, LockDelay: time.Minute})
	if err := errors.Join(locked, session.Close(t.Context(), []uint64{owner})); err != nil {
		t.Fatal(err)
	}
}

// TestStatus asks a cell by its name, and by that of another.
func TestStatus(t *testing.T) {
	address := newCell(t)
	lockfsIn(t, "ny1="+address, "ls") // waits for a master, as status does not
	stdout, stderr, code := lockfsIn(t, "ny1="+address, "status")
	if code != 0 || !strings.Contains(stdout, "\ncell ny1: master r1, ") || !strings.Contains(stdout, " 1 node, 0 bytes, 0 sessions\n") {
		t.Errorf("it said %q, %q, exit code %d", stdout, stderr, code)
	}
	stdout, _, code = lockfsIn(t, "ny1="+address+",127.0.0.1:1", "status")
	if code != 0 || !strings.Contains(stdout, "127.0.0.1:1 ") || !strings.Contains(stdout, " dial tcp 127.0.0.1:1: connect: connection refused\n") {
		t.Errorf("with an address of nobody it said %q, exit code %d", stdout, code)
	}
	stdout, stderr, code = lockfsIn(t, "ny2="+address, "status")
	if code != command.ExitFailed || !strings.Contains(stdout, `it is a replica of cell "ny1"`) ||
		strings.Contains(stdout, "master r1") || stderr != "lockfs: status of cell ny2: no master answers\n" {
		t.Errorf("of another cell it said %q, %q, exit code %d", stdout, stderr, code)
	}
}
