package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestMembers is what a replica makes of its flags: its cell's members, or a sentence.
func TestMembers(t *testing.T) {
	const base = "--cell ny1 --name r1 --data d --insecure "
	for _, test := range []struct {
		flags   string
		members string // NAME=ADDRESS …
		refused string
	}{
		{base, "r1=127.0.0.1:7420", ""},
		{base + "--listen localhost:1", "r1=localhost:1", ""},
		{base + "--peers r1=127.0.0.1:1,r2=127.0.0.1:2", "r1=127.0.0.1:1 r2=127.0.0.1:2", ""},
		{base + "--listen 127.0.0.2:1 --peers r1=127.0.0.1:1", "r1=127.0.0.1:1", ""}, // reached through something else
		{"--cell ny1 --name r1 --data d --listen 10.0.0.1:1 --cert c --key k --ca a", "r1=10.0.0.1:1", ""},

		{"--name r1 --data d --insecure", "", "--cell, --name and --data are required"},
		{"--cell ny1 --name r1 --data d", "", "--insecure, or --cert, --key and --ca, is required"},
		{"--cell NY --name r1 --data d --insecure", "", `--cell: name: bad name: "NY"`},
		{"--cell local --name r1 --data d --insecure", "", `and not "local"`},
		{"--cell ny1 --name r/1 --data d --insecure", "", `"r/1": a replica's name is 1 to 64`},
		{base + "--listen 10.0.0.1:7420", "", "--insecure is refused on 10.0.0.1:7420"},
		{base + "--peers r1=127.0.0.1:1,r2=10.0.0.2:1", "", "--insecure is refused on 10.0.0.2:1"},
		{base + "--listen 7420", "", `--listen: address "7420" is not host:port`},
		{base + "--listen 127.0.0.1:0", "", "has no port from 1 to 65535"},
		{base + "--http 0.0.0.0:80", "", "--http is refused on 0.0.0.0:80"},
		{base + "--peers r2=127.0.0.1:2", "", "--peers does not name this replica, r1"},
		{base + "--peers r1=127.0.0.1:1,r1=127.0.0.1:2", "", "--peers names r1 or its address twice"},
		{base + "--peers r1=127.0.0.1:1,r2=127.0.0.1:1", "", "--peers names r2 or its address twice"},
		{base + "--peers 127.0.0.1:1", "", `"127.0.0.1:1" is not NAME=HOST:PORT`},
		{base + "--join 127.0.0.1:1,127.0.0.2:1", "", ""}, // they say who else is
		{base + "--join 127.0.0.1:1 --peers r1=127.0.0.1:1", "", "--join and --peers exclude each other"},
		{base + "--join 10.0.0.1:1", "", "--insecure is refused on 10.0.0.1:1"},
		{base + "--join r1", "", `--join: address "r1" is not host:port`},
		{base + "--lease 10ms", "", "--lease is 10ms, not between 1s and 1h"},
		{base + "--grace 0s", "", "--grace is 0s, not between 1s and 24h"},
	} {
		var o options
		flags := pflag.NewFlagSet("lockfsd", pflag.ContinueOnError)
		o.addFlags(flags)
		if err := flags.Parse(strings.Fields(test.flags)); err != nil {
			t.Fatal(err)
		}
		all, err := o.members()
		if test.refused != "" {
			if err == nil || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%s: %v, want %q", test.flags, err, test.refused)
			}
			continue
		}
		var members []string
		for _, m := range all {
			members = append(members, m.Name+"="+m.Address)
		}
		if err != nil || strings.Join(members, " ") != test.members {
			t.Errorf("%s: members %q, %v; want %q", test.flags, members, err, test.members)
		}
	}
}
