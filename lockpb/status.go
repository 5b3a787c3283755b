package lockpb

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lockfs"
)

// StatusOf is how err ends a stream or a unary call: as a gRPC status with a kind in it, which
// FromStatus finds again. Answers on a stream carry their kinds themselves and do not need it.
func StatusOf(err error) error {
	if err == nil {
		return nil
	}
	kind, detail := FailureOf(err)
	st, failed := status.New(codes.Aborted, err.Error()).WithDetails(&Answer{Kind: kind, Detail: detail})
	if failed != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return st.Err()
}

// FromStatus is the reverse of StatusOf, for op on path. A status without a kind comes from gRPC or
// from the network, not from a replica: it is lockfs.ErrUnavailable.
func FromStatus(err error, op string, path lockfs.Path) error {
	if err == nil {
		return nil
	}
	var known *lockfs.Error
	if errors.As(err, &known) {
		return err
	}
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if answer, ok := detail.(*Answer); ok && answer.Kind != 0 {
			return answer.Err(op, path)
		}
	}
	return &lockfs.Error{Op: op, Path: path, Kind: lockfs.ErrUnavailable, Detail: st.Message()}
}
