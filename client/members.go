package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// AddMember adds a member to the cell, which has no vote until its log has caught up with the
// others'; then the master gives it one. With replace it takes the place of the member of that name,
// which goes when the new one has its vote. It fails with lockfs.ErrExist where the name is taken,
// and to replace with lockfs.ErrNotExist where it is not.
func (c *Client) AddMember(ctx context.Context, name, address string, replace bool) (*lockpb.Member, error) {
	verb := "add"
	if replace {
		verb = "replace"
	}
	return c.changeMember(ctx, verb+" member "+name, &lockpb.ChangeMemberRequest{Change: &lockpb.ChangeMemberRequest_Add{
		Add: &lockpb.AddMember{Name: name, Address: address, Replace: replace}}})
}

// PromoteMember gives a member its vote that has none. It fails with lockfs.ErrInvalid where the log
// of that member has not caught up.
func (c *Client) PromoteMember(ctx context.Context, name string) (*lockpb.Member, error) {
	return c.changeMember(ctx, "promote member "+name, &lockpb.ChangeMemberRequest{
		Change: &lockpb.ChangeMemberRequest_Promote{Promote: name}})
}

// RemoveMember removes a member. It fails with lockfs.ErrInvalid where those that stay could be left
// without a majority.
func (c *Client) RemoveMember(ctx context.Context, name string) (*lockpb.Member, error) {
	return c.changeMember(ctx, "remove member "+name, &lockpb.ChangeMemberRequest{
		Change: &lockpb.ChangeMemberRequest_Remove{Remove: name}})
}

func (c *Client) changeMember(ctx context.Context, op string, q *lockpb.ChangeMemberRequest) (*lockpb.Member, error) {
	var m *lockpb.Member
	err := c.atMaster(ctx, op, "", func(ctx context.Context, cell lockpb.CellClient) error {
		a, err := cell.ChangeMember(ctx, q)
		m = a.GetMember()
		return err
	})
	return m, err
}

// SaveSnapshot writes all records of the cell, as they are now or somewhat later, to w, in the format
// of package store. It takes as long as that takes; what w has got of one that failed is of no use.
func (c *Client) SaveSnapshot(ctx context.Context, w io.Writer) error {
	const op = "save a snapshot"
	if _, err := c.do(ctx, newCall(wantMaster, nil, op, "", nil)); err != nil {
		return err
	}
	address := c.masterAddress()
	conn, err := c.clientConn(address)
	if err != nil {
		return &lockfs.Error{Op: op, Kind: lockfs.ErrInvalid, Detail: err.Error()}
	}
	defer conn.Close()
	stream, err := lockpb.NewCellClient(conn).SaveSnapshot(ctx, &lockpb.SaveSnapshotRequest{})
	for err == nil {
		var part *lockpb.SnapshotPart
		if part, err = stream.Recv(); err == nil {
			if _, failed := w.Write(part.GetChunk()); failed != nil {
				return fmt.Errorf("%s: %w", op, failed)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return lockpb.FromStatus(err, op, "")
}

// masterAddress is where the master was last seen, "" for nowhere.
func (c *Client) masterAddress() (address string) {
	c.input(func(clock.Instant) {
		if c.link != nil {
			address = c.link.address
		}
	})
	return address
}
