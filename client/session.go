package client

import (
	"context"

	"lockfs"
	"lockfs/sequencer"
)

// Session is one session of the cell. It lives until Close, or until it is lost.
type Session struct{}

var _ Reader = (*Session)(nil)

var errSkeleton = lockfs.ErrUnavailable

func (s *Session) ID() uint64            { return 0 }
func (s *Session) Lost() <-chan struct{} { return nil }
func (s *Session) Err() error            { return nil }
func (s *Session) NewOwner() uint64      { return 0 }

func (s *Session) Stat(ctx context.Context, path lockfs.Path, instance uint64) (lockfs.Stat, error) {
	return lockfs.Stat{}, errSkeleton
}
func (s *Session) Read(ctx context.Context, path lockfs.Path, instance uint64) ([]byte, lockfs.Stat, error) {
	return nil, lockfs.Stat{}, errSkeleton
}
func (s *Session) List(ctx context.Context, path lockfs.Path, instance uint64) ([]lockfs.Entry, lockfs.Stat, error) {
	return nil, lockfs.Stat{}, errSkeleton
}
func (s *Session) LockState(ctx context.Context, path lockfs.Path, instance uint64) (LockState, error) {
	return LockState{}, errSkeleton
}
func (s *Session) Create(ctx context.Context, create Create) (st lockfs.Stat, created bool, err error) {
	return lockfs.Stat{}, false, errSkeleton
}
func (s *Session) Delete(ctx context.Context, path lockfs.Path, instance uint64, typ lockfs.Type) error {
	return errSkeleton
}
func (s *Session) Edit(ctx context.Context, edit Edit) (lockfs.Stat, error) {
	return lockfs.Stat{}, errSkeleton
}
func (s *Session) SetACL(ctx context.Context, path lockfs.Path, instance uint64, names lockfs.ACLNames) (lockfs.Stat, error) {
	return lockfs.Stat{}, errSkeleton
}
func (s *Session) Rename(ctx context.Context, rename Rename) (lockfs.Stat, error) {
	return lockfs.Stat{}, errSkeleton
}
func (s *Session) Acquire(ctx context.Context, acquire Acquire) (sequencer.Sequencer, error) {
	return sequencer.Sequencer{}, errSkeleton
}
func (s *Session) Release(ctx context.Context, path lockfs.Path, instance, owner uint64) error {
	return errSkeleton
}
func (s *Session) CloseOwner(owner uint64) {}
func (s *Session) Close(ctx context.Context, expired []uint64) error {
	return errSkeleton
}
