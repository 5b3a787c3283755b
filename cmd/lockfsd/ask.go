package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"lockfs/lockpb"
	"lockfs/raft"
)

// askTime is how long a replica waits for what another one says of the cell.
const askTime = 2 * time.Second

// askJoin asks the replicas at these addresses, all at once, who the member of a name is. It returns
// the first answer of a replica that knows one, since another may lag behind, or else any. The error
// says what each of them said instead.
func askJoin(ctx context.Context, addresses []string, to credentials.TransportCredentials, cell, name string) (*lockpb.JoinAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	type said struct {
		answer *lockpb.JoinAnswer
		err    error
	}
	answers := make(chan said, len(addresses))
	for _, address := range addresses {
		go func() {
			a, err := askJoinOne(ctx, address, to, cell, name)
			answers <- said{a, err}
		}()
	}
	var unknown *lockpb.JoinAnswer
	var failed error
	for range addresses {
		switch s := <-answers; {
		case s.err != nil:
			failed = errors.Join(failed, s.err)
		case s.answer.GetMember().GetId() != 0:
			return s.answer, nil
		default:
			unknown = s.answer
		}
	}
	if unknown != nil {
		return unknown, nil
	}
	return nil, failed
}

func askJoinOne(ctx context.Context, address string, to credentials.TransportCredentials, cell, name string) (*lockpb.JoinAnswer, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(to), grpc.WithContextDialer(dialTCP))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	a, err := lockpb.NewCellClient(conn).Join(ctx, &lockpb.JoinRequest{Name: name})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s does not answer", address)
	case err != nil:
		return nil, fmt.Errorf("%s does not answer: %s", address, status.Convert(err).Message())
	case a.GetCell() != cell:
		return nil, fmt.Errorf("%s is a replica of cell %s, not %s", address, a.GetCell(), cell)
	}
	return a, nil
}

// membersOf returns all members in an answer.
func membersOf(a *lockpb.JoinAnswer) []raft.Member {
	var all []raft.Member
	for _, m := range a.GetMembers() {
		all = append(all, raft.Member{ID: m.GetId(), Name: m.GetName(), Address: m.GetAddress()})
	}
	return all
}
