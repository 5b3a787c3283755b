package client

import (
	"context"
	"time"

	"lockfs"
	"lockfs/lockpb"
)

// Client is one host's access to one cell.
type Client struct{}

// ReplicaStatus is what one address answered, or why it did not.
type ReplicaStatus struct {
	Address string
	Status  *lockpb.StatusAnswer // nil where Err is not
	Err     error
}

// SessionInfo is a session as the master sees it.
type SessionInfo struct {
	ID             uint64
	Identity, Host string
	Created        time.Time
	LeaseLeft      time.Duration
	Locks          int
	Caches         bool
}

// Open returns a client of a cell. It does not wait for the cell; an error says what is wrong with cfg.
func Open(cfg Config) (*Client, error) { return &Client{}, nil }

// Close ends the live session, if there is one, waits for that no longer than ctx, and hangs up.
func (c *Client) Close(ctx context.Context) error { return nil }

func (c *Client) Reader() Reader                                { return (*Session)(nil) }
func (c *Client) Session(ctx context.Context) (*Session, error) { return nil, errSkeleton }
func (c *Client) Status(ctx context.Context) []ReplicaStatus    { return nil }
func (c *Client) Locks(ctx context.Context, path lockfs.Path) ([]LockState, error) {
	return nil, errSkeleton
}
func (c *Client) Sessions(ctx context.Context) ([]SessionInfo, error) { return nil, errSkeleton }
