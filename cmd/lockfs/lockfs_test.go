package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/command"
	"lockfs/lockpb"
)

// TestUsage is what people get who call the program wrongly. None of it asks a cell.
func TestUsage(t *testing.T) {
	cell := map[string]string{"LOCKFS_CELL": "ny1=127.0.0.1:1", "LOCKFS_INSECURE": "1"}
	files := map[string]string{"LOCKFS_CELL": "ny1=10.0.0.1:1", "LOCKFS_CERT": "c", "LOCKFS_KEY": "k", "LOCKFS_CA": "a"}
	remote := map[string]string{"LOCKFS_CELL": "ny1=10.0.0.1:1", "LOCKFS_INSECURE": "1"}
	for _, test := range []struct {
		env  map[string]string
		args string
		says string
	}{
		{nil, "", "a command is required; see lockfs --help"},
		{nil, "list", `unknown command "list"; see lockfs --help`},
		{nil, "help list", `unknown command "list"; see lockfs --help`},
		{nil, "ls", "--cell NAME=HOST:PORT,… or LOCKFS_CELL is required"},
		{nil, "ls --cell ny1=127.0.0.1:1", "--insecure, or --cert, --key and --ca, is required"},
		{nil, "ls --cell ny1 --insecure", `cell "ny1" is not NAME=HOST:PORT,…`},
		{remote, "ls", "--insecure is refused on 10.0.0.1:1: only loopback addresses do without TLS"},
		{cell, "ls --cert c", "--cert, --key and --ca are required together"},
		{cell, "ls --size", "unknown flag: --size"},
		{cell, "ls -o yaml", `-o is "yaml", neither text nor json`},
		{cell, "ls --timeout 0s", "--timeout is 0s; it must be more than 0"},
		{cell, "ls --timeout soon", `invalid argument "soon" for "--timeout" flag: time: invalid duration "soon"`},
		{cell, "ls a b", "ls takes at most 1 argument, not 2; see lockfs ls --help"},
		{cell, "get", "get takes 1 argument, not 0; see lockfs get --help"},
		{cell, "put a b c", "put takes 1 to 2 arguments, not 3; see lockfs put --help"},
		{cell, "sessions /ls/ny1", "sessions takes no arguments"},
		{cell, "get master", `name: bad name: "master": a path starts with /ls/<cell>`},
		{cell, "get /ls/ny1/../x", `name: bad name: "..": a component is . or ..`},
		{cell, "get /ls/ny2/x", "/ls/ny2/x is not in cell ny1"},
		{cell, "get /ls/local/../x", `name: bad name: "..": a component is . or ..`},
		{cell, "get /ls", `name: bad name: "/ls": a path starts with /ls/<cell>`},
		{cell, "status now", "status takes no arguments"},
		{nil, "ls --cell ny1=127.0.0.1:1 --insecure --cert c", "--insecure and --cert, --key, --ca exclude each other"},
		{cell, "ls --insecure --cert c --key k --ca a", "--insecure and --cert, --key, --ca exclude each other"},
		{files, "ls --insecure", "--insecure is refused on 10.0.0.1:1: only loopback addresses do without TLS"},
		{nil, "sequencer", "a command is required; see lockfs sequencer --help"},
		{nil, "sequencer set x", `unknown command "set x"; see lockfs sequencer --help`},
		{nil, "sequencer get", "sequencer get takes 1 argument, not 0; see lockfs sequencer get --help"},
		{nil, "sequencer get x -o yaml", `-o is "yaml", neither text nor json`},
		{map[string]string{"LOCKFS_INSECURE": "perhaps"}, "ls", `LOCKFS_INSECURE is "perhaps", neither true nor false`},
	} {
		w := world{strings.NewReader(""), io.Discard, func(name string) string { return test.env[name] }}
		var stderr strings.Builder
		code := command.Report("lockfs", run(t.Context(), strings.Fields(test.args), w), &stderr)
		if says := stderr.String(); code != command.ExitUsage || says != "lockfs: "+test.says+"\n" {
			t.Errorf("lockfs %s: exit code %d saying %q; want %d saying %q", test.args, code, says, command.ExitUsage, test.says)
		}
	}
}

// TestFails is what people get who ask for what cannot be done, without a cell.
func TestFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		says string
	}{
		{"sequencer get " + file + "s", "sequencer get " + file + "s: no such file or directory"},
		{"sequencer get /proc/self/status", "sequencer get /proc/self/status: it is not on a mount of lockfs"},
		{"sequencer get /proc/self/fd/999", "sequencer get /proc/self/fd/999: no such file or directory"},
		// A certificate that is given is asked for, whatever the environment says.
		{"ls --cert " + file + " --key " + file + " --ca " + file, "certificate " + file + " with key " + file + ": "},
	} {
		env := map[string]string{"LOCKFS_CELL": "ny1=127.0.0.1:1", "LOCKFS_INSECURE": "1"}
		var stderr strings.Builder
		err := run(t.Context(), strings.Fields(test.args), world{nil, io.Discard, func(name string) string { return env[name] }})
		code := command.Report("lockfs", err, &stderr)
		if says := stderr.String(); code != command.ExitFailed || !strings.HasPrefix(says, "lockfs: "+test.says) {
			t.Errorf("lockfs %s: exit code %d saying %q; want %d saying %q", test.args, code, says, command.ExitFailed, test.says)
		}
	}
}

// TestHelp is what a new user has to find there.
func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"--help":               "LOCKFS_INSECURE=1 for --insecure",
		"help":                 "PATH is a node's name as on a mount: /ls/<cell>",
		"help sequencer get":   "or /proc/self/fd/N",
		"sequencer get --help": "lockfs sequencer get PATH [flags]",
		"--version":            "lockfs version ",
	} {
		var stdout strings.Builder
		err := run(t.Context(), strings.Fields(args), world{nil, &stdout, func(string) string { return "" }})
		if err != nil || !strings.Contains(stdout.String(), want) {
			t.Errorf("lockfs %s: %v; it said\n%s\nwant %q", args, err, stdout.String(), want)
		}
	}
}

func TestPath(t *testing.T) {
	c := &cli{name: "ny1"}
	for arg, want := range map[string]lockfs.Path{
		"/ls/ny1": "/ls/ny1", "/ls/ny1/": "/ls/ny1", "/ls/ny1/a/b": "/ls/ny1/a/b",
		"/ls/local": "/ls/ny1", "/ls/local/": "/ls/ny1", "/ls/local/a/b": "/ls/ny1/a/b", "/ls/local/a/": "/ls/ny1/a",
		"/ls/locals": "", "/ls/ny2": "", "/ls/local//": "", "/ls": "", "": "",
	} {
		if path, err := c.path(arg); path != want || (err == nil) != (want != "") {
			t.Errorf("path %q is %q, %v; want %q", arg, path, err, want)
		}
	}
}

func TestViewStatus(t *testing.T) {
	member := func(name string, reachable bool) *lockpb.Member {
		return &lockpb.Member{Name: name, Address: name + ":1", Voter: true, Begun: true, Reachable: reachable}
	}
	master := &lockpb.StatusAnswer{
		Cell: "ny1", Replica: "r1", Role: "master", Epoch: 3, Committed: 90, Applied: 90, LeaseMs: 12000, GraceMs: 45000,
		Level: 1, Disk: &lockpb.Disk{Free: 20 << 20, Total: 64 << 20, Low: true},
		Nodes: 1, Bytes: 120, Sessions: 2, Members: []*lockpb.Member{member("r1", true), member("r2", true), member("r3", false),
			{Name: "r5", Address: "r5:1"}},
	}
	deposed := &lockpb.StatusAnswer{Cell: "ny1", Replica: "r2", Role: "master", Epoch: 2, Applied: 80}
	gone := errors.New("connection refused")

	view := viewStatus("ny1", []client.ReplicaStatus{
		{Address: "r1:1", Status: master}, {Address: "r2:1", Status: deposed}, {Address: "r3:1", Err: gone},
		{Address: "r4:1", Err: &lockfs.Error{Op: "status", Kind: lockfs.ErrCell, Detail: `it is a replica of cell "ny2"`}},
	})
	var text strings.Builder
	if err := view.write(&text); err != nil {
		t.Fatal(err)
	}
	const want = `ADDRESS  REPLICA  ROLE    EPOCH  APPLIED  LAG  FREE                    HASH
r1:1     r1       master  3      90       0    20 MiB of 64 MiB (low)  0000000000000000
r2:1     r2       master  2      80       10   -                       0000000000000000
r3:1     -        -       -      -        -    -                       connection refused
r4:1     -        -       -      -        -    -                       it is a replica of cell "ny2"
cell ny1: master r1, epoch 3, level 1, lease 12s, grace 45s, 1 node, 120 bytes, 2 sessions
members: r1=r1:1, r2=r2:1, r3=r3:1 (unreachable), r5=r5:1 (learner) (has not begun); 0 more may be lost
`
	if text.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", text.String(), want)
	}
	if view := viewStatus("ny1", []client.ReplicaStatus{{Address: "r3:1", Err: gone}}); view.Master != "" {
		t.Errorf("a master %q where nobody answers", view.Master)
	}
}

func TestTableIsForATerminal(t *testing.T) {
	var out strings.Builder
	if err := table(&out, []string{"NOTE"}, [][]string{{"a\x1b[31m\tb\n\u009bc é"}}); err != nil || out.String() != "NOTE\na?[31m?b??c é\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestMayLose(t *testing.T) {
	for _, test := range []struct{ voters, live, want int }{
		{1, 1, 0}, {3, 3, 1}, {3, 2, 0}, {3, 1, 0}, {5, 5, 2}, {5, 4, 1}, {4, 4, 1},
	} {
		var members []*lockpb.Member
		for i := range test.voters {
			members = append(members, &lockpb.Member{Voter: true, Reachable: i < test.live})
		}
		members = append(members, &lockpb.Member{Reachable: true}) // a learner carries no vote
		if _, got := viewMembers(&lockpb.StatusAnswer{Members: members}); got != test.want {
			t.Errorf("%d of %d voters live: may lose %d, want %d", test.live, test.voters, got, test.want)
		}
	}
}

func TestViewLocks(t *testing.T) {
	now := time.Unix(1000, 0)
	view := viewLocks([]client.LockState{{
		Path: "/ls/ny1/a", Instance: 7, Mode: lockfs.Exclusive, Generation: 41,
		Holders: []client.Holder{{Session: 5, Owner: 1, Host: "host-a", Note: "flock", Since: now.Add(-12 * time.Second), LockDelay: 30 * time.Second}},
		Waiters: []client.Waiter{{Session: 6, Owner: 2, Host: "host-b", Mode: lockfs.Shared, Waited: 3 * time.Second}},
	}, {
		Path: "/ls/ny1/b", Instance: 8, Generation: 2,
		Delays: []client.Delay{{Mode: lockfs.Exclusive, Left: 27 * time.Second}},
	}}, now)
	var text strings.Builder
	if err := view.write(&text); err != nil {
		t.Fatal(err)
	}
	const want = `PATH       STATE    MODE       GENERATION  HOST    SESSION  TIME  NOTE
/ls/ny1/a  held     EXCLUSIVE  41          host-a  5        12s   flock
/ls/ny1/a  waits    SHARED     41          host-b  6        3s    -
/ls/ny1/b  delayed  EXCLUSIVE  2           -       -        27s   left of the lock-delay
`
	if text.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", text.String(), want)
	}
	data, err := json.Marshal(view.Locks[0])
	if err != nil || !strings.Contains(string(data), `"sequencer":"/ls/ny1/a:EXCLUSIVE:41","holders":[{"host":"host-a","session":5,`) {
		t.Errorf("JSON %s, %v", data, err)
	}
	var nothing strings.Builder
	if err := viewLocks(nil, now).write(&nothing); err != nil || nothing.String() != "" {
		t.Errorf("no locks print %q, %v", nothing.String(), err)
	}
}
