package raft

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"lockfs/raft/raftrpc"
)

// FetchConfig is for FetchState. The fields are as those of Config.
type FetchConfig struct {
	ClusterID   uint64
	ID          uint64 // of the member that has lost its state
	Incarnation uint64
	Members     []Member // who may be asked; the member itself may be among them
	Dial        func(ctx context.Context, address string) (net.Conn, error)
	Credentials credentials.TransportCredentials // optional
	Logger      *slog.Logger
	// Least is the entry that the state must be at, or after it: the one before the first in the
	// log, which goes on from there.
	Least uint64
}

// FetchState is for a member that has its log and lost its state, before Start. It asks the other
// members, one after the other, for their last checkpoint, and hands what comes to restore, which
// makes it the state, durably, and returns its position, as Machine.Restore does. If restore fails,
// as it must where the stream breaks off, the next member is asked. The position is for Start.
// It fails with ErrRemoved or ErrReplaced where a member says so.
func FetchState(ctx context.Context, cfg FetchConfig, restore func(io.Reader) (position []byte, err error)) (position []byte, err error) {
	var failed error
	for _, m := range cfg.Members {
		if m.ID == cfg.ID {
			continue
		}
		position, err := cfg.fetch(ctx, m, restore)
		if err == nil {
			cfg.Logger.Info("fetched the state from a member", "member", m.ID, "name", m.Name)
			return position, nil
		}
		if why := cmp.Or(ctx.Err(), refusedForGood(err)); why != nil {
			return nil, why
		}
		cfg.Logger.Warn("cannot fetch the state from a member", "member", m.ID, "name", m.Name, "address", m.Address, "error", plain(err))
		failed = errors.Join(failed, fmt.Errorf("from member %s at %s: %w", m.Name, m.Address, plain(err)))
	}
	return nil, fmt.Errorf("raft: fetch the state of member %d: %w", cfg.ID, cmp.Or(failed, errors.New("there is no other member")))
}

func (cfg FetchConfig) fetch(ctx context.Context, m Member, restore func(io.Reader) ([]byte, error)) ([]byte, error) {
	wire := &wire{dial: cfg.Dial}
	conn, err := wire.client(m.Address, cfg.Credentials)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := raftrpc.NewPeerClient(conn).State(ctx, &raftrpc.StateRequest{Least: cfg.Least, Greeting: &raftrpc.Greeting{
		ClusterId: cfg.ClusterID, From: cfg.ID, To: m.ID, Incarnation: cfg.Incarnation, ToIncarnation: m.Incarnation,
		Sender: &raftrpc.MemberInfo{Id: cfg.ID},
	}})
	if err != nil {
		return nil, err
	}
	from := &stateReader{stream: stream}
	encoded, err := restore(from)
	if err != nil {
		return nil, cmp.Or(wire.trouble(), from.err, err)
	}
	at, err := parsePosition(encoded)
	if err == nil && at.index < cfg.Least {
		err = fmt.Errorf("the state is at entry %d, and it is needed at %d or after it", at.index, cfg.Least)
	}
	return encoded, err
}

// A stateReader reads the state that a stream carries, to its very end.
type stateReader struct {
	stream grpc.ServerStreamingClient[raftrpc.StateFrame]
	chunk  []byte
	end    bool
	err    error // what the stream failed with
}

func (r *stateReader) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 {
		if r.end {
			return 0, io.EOF
		}
		frame, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			r.err = err
			return 0, err
		}
		r.chunk, r.end = frame.GetChunk(), frame.GetEnd()
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// State gives the last checkpoint to a member that has lost its state.
func (s service) State(request *raftrpc.StateRequest, stream grpc.ServerStreamingServer[raftrpc.StateFrame]) error {
	if err := s.r.admit(request.GetGreeting()); err != nil {
		return err
	}
	snapshot, err := s.r.stateSince(stream.Context(), request.GetLeast())
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	w := bufio.NewWriterSize(stateWriter{stream}, chunkBytes)
	_, err = snapshot.WriteTo(w)
	if err := errors.Join(err, w.Flush(), snapshot.Close()); err != nil {
		return err
	}
	return stream.Send(&raftrpc.StateFrame{End: true})
}

// stateSince opens a checkpoint at or after an entry, and makes one if there is none.
func (r *Replica) stateSince(ctx context.Context, least uint64) (Snapshot, error) {
	snapshot, at, err := r.lastCheckpoint(ctx)
	if err == nil && at.index >= least && at.index > 0 {
		return snapshot, nil
	}
	if err == nil {
		err = snapshot.Close()
	}
	if err = errors.Join(err, r.Checkpoint(ctx)); err != nil {
		return nil, err
	}
	if snapshot, at, err = r.lastCheckpoint(ctx); err != nil {
		return nil, err
	}
	if at.index < least || at.index == 0 {
		return nil, errors.Join(fmt.Errorf("this member has the state up to entry %d only, and not up to %d", at.index, least), snapshot.Close())
	}
	return snapshot, nil
}

// lastCheckpoint opens the last durable checkpoint.
func (r *Replica) lastCheckpoint(ctx context.Context) (Snapshot, position, error) {
	type answer struct {
		snapshot Snapshot
		at       position
		err      error
	}
	answers := make(chan answer)
	r.applier.queue.put(func() error {
		var a answer
		if a.snapshot, a.err = r.cfg.Machine.Snapshot(); a.err == nil {
			a.at, a.err = parsePosition(a.snapshot.Position())
		}
		select {
		case answers <- a:
			return nil
		case <-ctx.Done():
		case <-r.stop:
		}
		if a.snapshot != nil {
			return a.snapshot.Close()
		}
		return nil
	})
	select {
	case a := <-answers:
		return a.snapshot, a.at, a.err
	case <-ctx.Done():
		return nil, position{}, ctx.Err()
	case <-r.done:
		return nil, position{}, ErrStopped
	}
}

type stateWriter struct {
	stream grpc.ServerStreamingServer[raftrpc.StateFrame]
}

func (w stateWriter) Write(b []byte) (int, error) {
	for from := 0; from < len(b); from += chunkBytes {
		piece := b[from:min(len(b), from+chunkBytes)]
		if err := w.stream.Send(&raftrpc.StateFrame{Chunk: piece}); err != nil {
			return from, err
		}
	}
	return len(b), nil
}
