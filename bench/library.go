package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/proccell"
)

// contents is what is written to files, and read from them.
var contents = bytes.Repeat([]byte("x"), 256)

// fileName is the file of a client: the one it locks, writes and reads.
func fileName(client int) string { return fmt.Sprintf("f%d", client) }

// passedName is the file whose lock is passed round.
const passedName = "passed"

// library is a crowd of clients of the Go library, each with a connection and a session.
type library struct {
	clients []*libraryClient
	passed  lockfs.Path
}

type libraryClient struct {
	*client.Client
	session *client.Session
	owner   uint64
	file    lockfs.Path
}

// open connects the crowd and makes the files, which the players of mounts use too.
func (l *library) open(ctx context.Context, cell *proccell.Cell) error {
	root, err := lockfs.CellRoot(cell.Name())
	if err != nil {
		return err
	}
	if l.passed, err = root.Child(passedName); err != nil {
		return err
	}
	for i := range crowd {
		c, err := openClient(ctx, cell)
		if err != nil {
			return err
		}
		l.clients = append(l.clients, c)
		if c.file, err = root.Child(fileName(i)); err != nil {
			return err
		}
		if _, _, err = c.session.Create(ctx, client.Create{Path: c.file, Type: lockfs.File, Content: contents}); err != nil {
			return err
		}
	}
	_, _, err = l.clients[0].session.Create(ctx, client.Create{Path: l.passed, Type: lockfs.File})
	return err
}

func openClient(ctx context.Context, cell *proccell.Cell) (*libraryClient, error) {
	config := client.Config{Cell: cell.Name()}
	for _, r := range cell.Replicas {
		config.Addresses = append(config.Addresses, r.Address)
	}
	c, err := client.Open(config)
	if err != nil {
		return nil, err
	}
	session, err := c.Session(ctx)
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return &libraryClient{Client: c, session: session, owner: session.NewOwner()}, nil
}

// close ends the sessions while there is a cell to end them in.
func (l *library) close(ctx context.Context) error {
	return together(len(l.clients), func(i int) error { return l.clients[i].Close(ctx) })
}

// each measures an operation of n clients.
func (l *library) each(n int, op func(ctx context.Context, c *libraryClient) error) func(context.Context, time.Duration) (figures, error) {
	return func(ctx context.Context, d time.Duration) (figures, error) {
		return load(ctx, n, d, func(i int) error { return op(ctx, l.clients[i]) })
	}
}

func (l *library) lock(ctx context.Context, c *libraryClient) error {
	if err := c.acquire(ctx, c.file); err != nil {
		return err
	}
	return c.session.Release(ctx, c.file, 0, c.owner)
}

func (c *libraryClient) acquire(ctx context.Context, path lockfs.Path) error {
	_, err := c.session.Acquire(ctx, client.Acquire{Path: path, Owner: c.owner, Mode: lockfs.Exclusive, Wait: true})
	return err
}

func (l *library) write(ctx context.Context, c *libraryClient) error {
	_, err := c.session.Edit(ctx, client.Edit{Path: c.file, Changes: []client.Change{
		{Kind: client.Truncate}, {Kind: client.WriteAt, Data: contents},
	}})
	return err
}

func (l *library) read(ctx context.Context, c *libraryClient) error {
	got, _, err := c.session.Read(ctx, c.file, 0)
	if err == nil && len(got) != len(contents) {
		err = fmt.Errorf("read %s: %d bytes", c.file, len(got))
	}
	return err
}

// handOff measures n clients who pass a lock round.
func (l *library) handOff(n int) func(context.Context, time.Duration) (figures, error) {
	return func(ctx context.Context, d time.Duration) (figures, error) {
		acquire := func(i int) error { return l.clients[i].acquire(ctx, l.passed) }
		release := func(i int) error { return l.clients[i].session.Release(ctx, l.passed, 0, l.clients[i].owner) }
		return passRound(n, d, acquire, release)
	}
}
