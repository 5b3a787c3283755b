package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"lockfs"
	"lockfs/internal/command"
	"lockfs/raft"
)

// options are the flags of a replica.
type options struct {
	cell, name, data, listen, http string
	peers                          []string // NAME=HOST:PORT of the first members; a cell of its own if that is all
	join                           []string // HOST:PORT of members of a running cell, instead of peers
	lease, grace                   time.Duration
	leaseGiven, graceGiven         bool
	peersGiven                     bool
	security                       command.Security
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.cell, "cell", "", "`name` of the cell (required)")
	flags.StringVar(&o.name, "name", "", "`name` of this replica in its cell (required)")
	flags.StringVar(&o.data, "data", "", "`folder` for this replica's data (required)")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:7420", "`address` for clients and peers")
	flags.StringSliceVar(&o.peers, "peers", nil, "all members as `name=host:port,…`, this one too; without it the replica is a cell of its own")
	flags.StringSliceVar(&o.join, "join", nil, "`host:port,…` of members of a running cell, which this replica was added to by lockfs member add or replace; instead of --peers")
	flags.DurationVar(&o.lease, "lease", lockfs.DefaultLease, "how long a session lives without its client; set by a cell's first start")
	flags.DurationVar(&o.grace, "grace", lockfs.DefaultGrace, "how long a client looks for a master before it gives its session up; set by a cell's first start")
	flags.StringVar(&o.http, "http", "", "loopback `address` that answers /healthz and /debug/pprof/")
	o.security.AddFlags(flags)
}

// members checks the options and returns the cell's first members, this one among them; nil where
// it joins a cell that runs.
func (o *options) members() ([]raft.Member, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if len(o.join) > 0 {
		return nil, o.security.Check(append(o.join, o.listen)...)
	}
	all, err := parseMembers(o.cell, o.peers)
	if err != nil {
		return nil, command.Usage("--peers%v", err)
	}
	if !slices.ContainsFunc(all, func(m raft.Member) bool { return m.Name == o.name }) {
		return nil, command.Usage("--peers does not name this replica, %s", o.name)
	}
	addresses := []string{o.listen}
	for _, m := range all {
		addresses = append(addresses, m.Address)
	}
	return all, o.security.Check(addresses...)
}

// parseMembers makes members of NAME=HOST:PORT, with the ids of a cell's first members. What its
// errors say goes on from where the list was found.
func parseMembers(cell string, list []string) ([]raft.Member, error) {
	var all []raft.Member
	for _, one := range list {
		m, err := parseMember(cell, one)
		if err != nil {
			return nil, fmt.Errorf(": %w", err)
		}
		if slices.ContainsFunc(all, func(o raft.Member) bool { return o.Name == m.Name || o.Address == m.Address }) {
			return nil, fmt.Errorf(" names %s or its address twice", m.Name)
		}
		all = append(all, m)
	}
	return all, nil
}

func parseMember(cell, text string) (raft.Member, error) {
	name, address, ok := strings.Cut(text, "=")
	if !ok {
		return raft.Member{}, fmt.Errorf("%q is not NAME=HOST:PORT", text)
	}
	if err := lockfs.CheckReplicaName(name); err != nil {
		return raft.Member{}, err
	}
	if err := command.CheckAddress(address); err != nil {
		return raft.Member{}, err
	}
	return raft.Member{ID: memberID(cell, name), Name: name, Address: address}, nil
}

func (o *options) check() error {
	if o.cell == "" || o.name == "" || o.data == "" {
		return command.Usage("--cell, --name and --data are required")
	}
	if _, err := lockfs.CellRoot(o.cell); err != nil {
		return command.Usage("--cell: %v", err)
	}
	if err := lockfs.CheckReplicaName(o.name); err != nil {
		return command.Usage("--name: %v", err)
	}
	for flag, address := range map[string]string{"--listen": o.listen, "--http": o.http} {
		if address == "" && flag == "--http" {
			continue
		}
		if err := command.CheckAddress(address); err != nil {
			return command.Usage("%s: %v", flag, err)
		}
	}
	if o.http != "" && !command.Loopback(o.http) {
		return command.Usage("--http is refused on %s: it is for loopback addresses only", o.http)
	}
	if o.lease < time.Second || o.lease > time.Hour {
		return command.Usage("--lease is %v, not between 1s and 1h", o.lease)
	}
	if o.grace < time.Second || o.grace > 24*time.Hour {
		return command.Usage("--grace is %v, not between 1s and 24h", o.grace)
	}
	if len(o.join) > 0 && len(o.peers) > 0 {
		return command.Usage("--join and --peers exclude each other: --peers lists the members of a new cell")
	}
	for _, address := range o.join {
		if err := command.CheckAddress(address); err != nil {
			return command.Usage("--join: %v", err)
		}
	}
	o.peersGiven = len(o.peers) > 0
	if len(o.peers) == 0 && len(o.join) == 0 {
		o.peers = []string{o.name + "=" + o.listen}
	}
	return nil
}
