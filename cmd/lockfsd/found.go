package main

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/credentials"
)

// found returns who an empty data folder is to be for.
//
// A cell that runs is asked before, because an empty folder is either that of a member that never
// began, or all that is left of one that did. The latter has lost what it told others it has, and
// must not vote as if nothing had happened.
func (o *options) found(ctx context.Context, to credentials.TransportCredentials) (identity, error) {
	if len(o.join) > 0 {
		return o.joining(ctx, to)
	}
	who := newIdentity(o.cell, o.name, o.peers)
	others, err := parseMembers(o.cell, o.peers)
	if err != nil {
		return who, err
	}
	var addresses []string
	for _, m := range others {
		if m.Name != o.name {
			addresses = append(addresses, m.Address)
		}
	}
	answer, err := askJoin(ctx, addresses, to, o.cell, o.name)
	if err != nil || answer == nil {
		return who, ctx.Err() // nobody is there yet: a new cell begins
	}
	switch have := answer.GetMember(); {
	case have.GetId() == who.Member && have.GetBegun():
		return who, o.lost()
	case have.GetId() == who.Member && answer.GetClusterId() != who.Cluster:
		return who, fmt.Errorf("cell %s runs as cluster %016x, to which --peers does not lead: it began with other ones, or it was restored from a backup "+
			"and %s was not. To restore it too: lockfsd restore with --cluster %016x; to begin anew: lockfs member replace %s HOST:PORT, "+
			"an empty folder and --join", o.cell, answer.GetClusterId(), o.name, answer.GetClusterId(), o.name)
	case answer.GetClusterId() != who.Cluster:
		return who, fmt.Errorf("cell %s runs with other first members than --peers has: "+
			"a new member is added by lockfs member add %s HOST:PORT, and started with --join", o.cell, o.name)
	case have.GetId() != who.Member:
		return who, fmt.Errorf("%s is no member of cell %s any more, or another one: it is started with --join, after "+
			"lockfs member add %s HOST:PORT where it is none", o.name, o.cell, o.name)
	}
	return who, nil
}

// joining returns who was added to a running cell under the name of --name.
func (o *options) joining(ctx context.Context, to credentials.TransportCredentials) (identity, error) {
	answer, err := askJoin(ctx, o.join, to, o.cell, o.name)
	if err != nil {
		return identity{}, fmt.Errorf("join cell %s: %w", o.cell, err)
	}
	switch have := answer.GetMember(); {
	case have.GetId() == 0:
		return identity{}, fmt.Errorf("%s is no member of cell %s: first, lockfs member add %s HOST:PORT", o.name, o.cell, o.name)
	case have.GetBegun():
		return identity{}, o.lost()
	}
	who := identity{Format: dataFormat, Cell: o.cell, Replica: o.name, Joined: true,
		Member: answer.GetMember().GetId(), Cluster: answer.GetClusterId(),
		Peers: []string{o.name + "=" + answer.GetMember().GetAddress()}}
	for _, m := range membersOf(answer) {
		if m.Name != o.name {
			who.Peers = append(who.Peers, m.Name+"="+m.Address)
		}
	}
	slices.Sort(who.Peers)
	return who, nil
}

// lost is the error of a member that took part with another folder than its present one.
func (o *options) lost() error {
	return fmt.Errorf("%s has taken part in cell %s with another data folder, and %s has not what it held: its disk was lost or replaced. "+
		"To begin anew: lockfs member replace %s HOST:PORT, then start it with an empty folder and --join", o.name, o.cell, o.data, o.name)
}
