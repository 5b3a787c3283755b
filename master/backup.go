package master

import (
	"bufio"
	"bytes"
	"errors"

	"google.golang.org/grpc"

	"lockfs"
	"lockfs/lockpb"
)

// partBytes is what one message of a snapshot carries.
const partBytes = 128 << 10

// SaveSnapshot streams all records as of now, or later, in the format of package store. They are
// read from a checkpoint made for it, while the replica goes on.
func (r *Replica) SaveSnapshot(_ *lockpb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[lockpb.SnapshotPart]) error {
	ctx := stream.Context()
	err := r.confirmed(ctx, func(moment) {})
	if err == nil {
		err = r.raft.Checkpoint(ctx)
	}
	if err != nil {
		return lockpb.StatusOf(err)
	}
	s, err := r.cfg.DB.Snapshot()
	if err != nil {
		return lockpb.StatusOf(&lockfs.Error{Op: "save a snapshot", Kind: lockfs.ErrInternal, Detail: err.Error()})
	}
	w := bufio.NewWriterSize(parts{stream}, partBytes)
	_, err = s.WriteTo(w)
	return lockpb.StatusOf(errors.Join(err, w.Flush(), s.Close()))
}

// parts is a stream of a snapshot's pieces as a writer.
type parts struct {
	stream grpc.ServerStreamingServer[lockpb.SnapshotPart]
}

func (p parts) Write(b []byte) (int, error) {
	// Of its own, for the stream may keep it.
	return len(b), p.stream.Send(&lockpb.SnapshotPart{Chunk: bytes.Clone(b)})
}
