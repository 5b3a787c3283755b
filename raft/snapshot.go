package raft

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"slices"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// chunkBytes is what a frame of a snapshot carries.
const chunkBytes = 128 << 10

// An outgoing is a snapshot on its way to a member.
type outgoing struct {
	message *raftpb.Message
	state   Snapshot
}

// sendSnapshot has the last checkpoint sent to the member that m is for. The log stays from there
// on until the member has it.
func (r *Replica) sendSnapshot(m *raftpb.Message) {
	p, ok := r.members.peer(m.GetTo())
	if !ok {
		return
	}
	r.pins[m.GetTo()] = m.GetSnapshot().GetMetadata().GetIndex()
	r.applier.queue.put(func() error {
		s, err := r.applier.openSnapshot(m)
		if err != nil {
			r.snapshotEnded(p, err)
			return nil
		}
		r.senders.Go(func() {
			err := p.transfer(s)
			r.snapshotEnded(p, errors.Join(err, s.state.Close()))
		})
		return nil
	})
}

// snapshotEnded tells raft how it went: it tries again, or goes on with the log.
func (r *Replica) snapshotEnded(p *peer, err error) {
	how, trouble := etcdraft.SnapshotFinish, ""
	if err != nil {
		how, trouble = etcdraft.SnapshotFailure, plain(err).Error()
	}
	r.call(func() {
		r.node.ReportSnapshot(p.ID, how)
		if err == nil {
			r.log.Info("sent a snapshot", "member", p.ID, "name", p.Name)
		} else {
			delete(r.pins, p.ID)
			if trouble != p.snapshotTrouble { // it is tried again and again
				r.log.Warn("sending a snapshot failed", "member", p.ID, "name", p.Name, "error", trouble)
			}
		}
		p.snapshotTrouble = trouble
	})
}

// transfer sends s over the connection that p has now.
func (p *peer) transfer(s outgoing) error {
	conn, ctx, err := p.connection()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // if it fails half way, the stream goes
	stream, err := raftrpc.NewPeerClient(conn).Snapshot(ctx)
	if err != nil {
		return err
	}
	message, err := proto.Marshal(s.message)
	if err != nil {
		return err
	}
	out := &chunks{stream: stream}
	out.send(&raftrpc.SnapshotFrame{Greeting: p.r.greeting(p.ID), Message: message})
	w := bufio.NewWriterSize(out, chunkBytes)
	_, err = s.state.WriteTo(w)
	err = errors.Join(err, w.Flush())
	if err == nil {
		out.send(&raftrpc.SnapshotFrame{End: true})
	}
	if out.err != nil || err == nil {
		_, err = stream.CloseAndRecv() // of a stream that the peer has ended, this tells why
	}
	return err
}

// chunks are the frames of a snapshot as a writer.
type chunks struct {
	stream interface {
		Send(*raftrpc.SnapshotFrame) error
	}
	err error // what sending failed with
}

func (c *chunks) send(f *raftrpc.SnapshotFrame) {
	if c.err == nil {
		c.err = c.stream.Send(f)
	}
}

func (c *chunks) Write(b []byte) (int, error) {
	for piece := range slices.Chunk(b, chunkBytes) {
		c.send(&raftrpc.SnapshotFrame{Chunk: bytes.Clone(piece)})
	}
	if c.err != nil {
		return 0, c.err
	}
	return len(b), nil
}
