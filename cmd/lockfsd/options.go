package main

import (
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
	peers                          []string // NAME=HOST:PORT; empty: a cell of its own
	lease, grace                   time.Duration
	leaseGiven, graceGiven         bool
	security                       command.Security
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.cell, "cell", "", "`name` of the cell (required)")
	flags.StringVar(&o.name, "name", "", "`name` of this replica in its cell (required)")
	flags.StringVar(&o.data, "data", "", "`folder` for this replica's data (required)")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:7420", "`address` for clients and peers")
	flags.StringSliceVar(&o.peers, "peers", nil, "all members as `name=host:port,…`, this one too; without it the replica is a cell of its own")
	flags.DurationVar(&o.lease, "lease", lockfs.DefaultLease, "how long a session lives without its client; set by a cell's first start")
	flags.DurationVar(&o.grace, "grace", lockfs.DefaultGrace, "how long a client looks for a master before it gives its session up; set by a cell's first start")
	flags.StringVar(&o.http, "http", "", "loopback `address` that answers /healthz")
	o.security.AddFlags(flags)
}

// members checks the options and returns the cell's first members, this one among them.
func (o *options) members() (self raft.Member, all []raft.Member, err error) {
	if err := o.check(); err != nil {
		return self, nil, err
	}
	addresses := []string{o.listen}
	for _, peer := range o.peers {
		member, err := o.parsePeer(peer)
		if err != nil {
			return self, nil, err
		}
		if slices.ContainsFunc(all, func(m raft.Member) bool { return m.Name == member.Name || m.Address == member.Address }) {
			return self, nil, command.Usage("--peers names %s or its address twice", member.Name)
		}
		if member.Name == o.name {
			self = member
		}
		all = append(all, member)
		addresses = append(addresses, member.Address)
	}
	if self.ID == 0 {
		return self, nil, command.Usage("--peers does not name this replica, %s", o.name)
	}
	return self, all, o.security.Check(addresses...)
}

func (o *options) check() error {
	if o.cell == "" || o.name == "" || o.data == "" {
		return command.Usage("--cell, --name and --data are required")
	}
	if _, err := lockfs.CellRoot(o.cell); err != nil {
		return command.Usage("--cell: %v", err)
	}
	if err := checkReplicaName(o.name); err != nil {
		return err
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
	if len(o.peers) == 0 {
		o.peers = []string{o.name + "=" + o.listen}
	}
	return nil
}

func (o *options) parsePeer(peer string) (raft.Member, error) {
	name, address, ok := strings.Cut(peer, "=")
	if !ok {
		return raft.Member{}, command.Usage("--peers: %q is not NAME=HOST:PORT", peer)
	}
	if err := checkReplicaName(name); err != nil {
		return raft.Member{}, err
	}
	if err := command.CheckAddress(address); err != nil {
		return raft.Member{}, command.Usage("--peers: %v", err)
	}
	return raft.Member{ID: memberID(o.cell, name), Name: name, Address: address}, nil
}

// checkReplicaName holds a replica's name to what can stand in --peers and in a log line.
func checkReplicaName(name string) error {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return command.Usage(`replica's name %q is not 1 to 64 of a-z, 0-9, "-", "_" and "."`, name)
	}
	return nil
}
