package raft

import (
	"errors"
	"fmt"
	"io"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// A service is this replica as the others send to it.
type service struct {
	raftrpc.UnimplementedPeerServer
	r *Replica
}

// Register makes s serve the other replicas.
func (r *Replica) Register(s grpc.ServiceRegistrar) { raftrpc.RegisterPeerServer(s, service{r: r}) }

// A received is a message of another member; with a snapshot goes the state.
type received struct {
	message *raftpb.Message
	spool   Spool
}

// expected are the types of message that members send each other; no other gets in. Proposals and
// reads are never forwarded, and what raft sends to itself is nobody else's to send.
var expected = map[raftpb.MessageType]bool{
	raftpb.MsgApp: true, raftpb.MsgAppResp: true,
	raftpb.MsgVote: true, raftpb.MsgVoteResp: true,
	raftpb.MsgPreVote: true, raftpb.MsgPreVoteResp: true,
	raftpb.MsgHeartbeat: true, raftpb.MsgHeartbeatResp: true,
	raftpb.MsgTimeoutNow: true,
}

func (s service) Messages(stream grpc.ClientStreamingServer[raftrpc.PeerFrame, raftrpc.PeerDone]) error {
	frame, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.r.admit(frame.GetGreeting()); err != nil {
		return err
	}
	if err := stream.SendHeader(metadata.Pairs(accepted, "")); err != nil {
		return err
	}
	for greeting := frame.GetGreeting(); ; {
		for _, b := range frame.GetMessages() {
			if err := s.r.hear(greeting.From, b); err != nil {
				return err
			}
		}
		if frame, err = stream.Recv(); errors.Is(err, io.EOF) {
			return stream.SendAndClose(&raftrpc.PeerDone{})
		} else if err != nil {
			return err
		}
		if err := s.r.admit(greeting); err != nil {
			return err
		}
	}
}

// hear takes in one message.
func (r *Replica) hear(from uint64, b []byte) error {
	m, err := r.parse(from, b)
	if err != nil {
		return err
	}
	if !expected[m.GetType()] {
		return status.Errorf(codes.InvalidArgument, "members do not send each other %v", m.GetType())
	}
	return r.deliver(received{message: m})
}

func (r *Replica) parse(from uint64, b []byte) (*raftpb.Message, error) {
	m := new(raftpb.Message)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "a message cannot be read: %v", err)
	}
	if m.GetFrom() != from || m.GetTo() != r.cfg.ID {
		return nil, status.Errorf(codes.InvalidArgument, "a message from %d to %d came from %d to %d",
			m.GetFrom(), m.GetTo(), from, r.cfg.ID)
	}
	return m, nil
}

// deliver hands m to the run goroutine, and waits while that has much to do.
func (r *Replica) deliver(m received) error {
	if p, ok := r.members.peer(m.message.GetFrom()); ok {
		p.hears()
	}
	select {
	case r.inbox <- m:
		return nil
	case <-r.stop:
		return status.Error(codes.Unavailable, "the replica is stopping")
	}
}

func (s service) Snapshot(stream grpc.ClientStreamingServer[raftrpc.SnapshotFrame, raftrpc.PeerDone]) error {
	frame, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.r.admit(frame.GetGreeting()); err != nil {
		return err
	}
	m, err := s.r.parse(frame.GetGreeting().GetFrom(), frame.GetMessage())
	if err != nil {
		return err
	}
	if err := checkSnapshot(m); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	spool, err := s.r.receive(stream)
	if err != nil {
		return err
	}
	if err := s.r.admit(frame.GetGreeting()); err != nil {
		return errors.Join(err, spool.Close())
	}
	if err := s.r.deliver(received{message: m, spool: spool}); err != nil {
		return errors.Join(err, spool.Close())
	}
	return stream.SendAndClose(&raftrpc.PeerDone{})
}

// checkSnapshot keeps out what would stop this replica later: raft must be told of the very place
// in the log at which the state stands.
func checkSnapshot(m *raftpb.Message) error {
	if m.GetType() != raftpb.MsgSnap {
		return fmt.Errorf("a snapshot must begin with %v, not with %v", raftpb.MsgSnap, m.GetType())
	}
	at, err := parsePosition(m.GetSnapshot().GetData())
	if err != nil {
		return err
	}
	if meta := m.GetSnapshot().GetMetadata(); at.index == 0 || at.index != meta.GetIndex() || at.term != meta.GetTerm() ||
		at.confState().Equivalent(raftpb.EnsureConfState(meta.GetConfState())) != nil {
		return fmt.Errorf("a snapshot at entry %d is said to be at entry %d", at.index, meta.GetIndex())
	}
	return nil
}

// receive stores the state that a snapshot consists of.
func (r *Replica) receive(stream grpc.ClientStreamingServer[raftrpc.SnapshotFrame, raftrpc.PeerDone]) (Spool, error) {
	spool, err := r.storage.Spool()
	if err != nil {
		return nil, fmt.Errorf("make room for a snapshot: %w", err)
	}
	turn := r.receptions.Add(1)
	for end := false; !end; {
		frame, err := stream.Recv()
		if err == nil && r.receptions.Load() != turn {
			// Whoever began later knows more, and there is room for one.
			err = status.Error(codes.Aborted, "another snapshot is being received")
		}
		if err == nil {
			_, err = spool.Write(frame.GetChunk())
		}
		if err != nil {
			return nil, errors.Join(err, spool.Close())
		}
		end = frame.GetEnd()
	}
	return spool, nil
}
