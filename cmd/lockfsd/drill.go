package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/command"
	"lockfs/store"
)

// drillCommand tries whether a backup could be restored.
func drillCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "drill FILE", Args: command.Arguments(1, 1),
		Short: "Try a backup: restore it beside everything else, read all of it back, take a lock, and throw it away.",
		Long: "Try a backup: restore it into a cell of one replica, on loopback and in a temporary folder, compare\n" +
			"all that a client reads there with the backup, take a lock there, and remove it all again.",
		RunE: func(cmd *cobra.Command, args []string) error {
			said, err := drill(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("drill %s: %w", args[0], err)
			}
			_, err = fmt.Fprintln(stdout, said)
			return err
		},
	}
}

func drill(ctx context.Context, backup string) (said string, err error) {
	state, err := readBackup(backup)
	if err != nil {
		return "", err
	}
	folder, err := os.MkdirTemp("", "lockfs-drill-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	d, release, err := stage(state.Cell(), backup, filepath.Join(folder, "data"), listener.Addr().String())
	if err != nil {
		return "", err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := d.live(ctx, listener)
		cancel() // whoever waits for it waits no longer
		ended <- err
	}()
	said, err = d.rehearse(ctx, state)
	cancel()
	if stopped := <-ended; stopped != nil {
		return "", stopped
	}
	return said, err
}

func readBackup(path string) (*store.State, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := store.CheckSnapshot(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	state, _, err := store.ReadSnapshot(bufio.NewReaderSize(file, 1<<20), info.Cell)
	return state, err
}

// stage restores the backup for a replica that is a cell of its own.
func stage(cell, backup, folder, address string) (d *daemon, release func(), err error) {
	o := &options{cell: cell, name: "drill", data: folder, listen: address,
		lease: lockfs.DefaultLease, grace: lockfs.DefaultGrace}
	o.security.Insecure = true
	members, err := o.members()
	if err != nil {
		return nil, nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	cluster, err := parseCluster("")
	if err != nil {
		return nil, nil, err
	}
	if _, err := restore(backup, o, members, cluster, quiet); err != nil {
		return nil, nil, err
	}
	here, toPeers, err := o.credentials()
	if err != nil {
		return nil, nil, err
	}
	who, release, err := claim(folder, o.compare, nil) // it is not empty
	return &daemon{options: o, log: quiet, who: who, members: members, here: here, toPeers: toPeers}, release, err
}

// rehearse uses the cell as its clients would.
func (d *daemon) rehearse(ctx context.Context, want *store.State) (said string, err error) {
	c, err := client.Open(client.Config{Cell: d.cell, Addresses: []string{d.listen}, Timeout: time.Minute})
	if err != nil {
		return "", err
	}
	defer c.Close(context.WithoutCancel(ctx))
	root, err := lockfs.CellRoot(d.cell)
	if err != nil {
		return "", err
	}
	same := comparison{want: want, have: c.Reader()}
	if err := same.tree(ctx, root); err != nil {
		return "", err
	}
	generation, err := takeLock(ctx, c, root)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("cell %s at entry %d: %d nodes with %d bytes read back equal; the first lock there is of generation %d",
		d.cell, want.Applied(), same.nodes, same.bytes, generation), nil
}

// A comparison goes through what was backed up and what the cell has, but for ephemeral nodes, which
// have gone with their sessions.
type comparison struct {
	want         *store.State
	have         client.Reader
	nodes, bytes int64
}

func (c *comparison) tree(ctx context.Context, path lockfs.Path) error {
	c.nodes++
	children, _, err := c.want.List(path, 0)
	if err != nil {
		return err
	}
	for _, child := range children {
		below, err := path.Child(child.Name)
		if err == nil {
			err = c.node(ctx, below)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) node(ctx context.Context, path lockfs.Path) error {
	st, err := c.want.Stat(path, 0)
	switch {
	case err != nil || st.Ephemeral:
		return err
	case st.Type == lockfs.Dir:
		return c.tree(ctx, path)
	}
	return c.file(ctx, path)
}

func (c *comparison) file(ctx context.Context, path lockfs.Path) error {
	want, before, err := c.want.Contents(path, 0)
	if err != nil {
		return err
	}
	have, now, err := c.have.Read(ctx, path, 0)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, have) || now.ContentGeneration <= before.ContentGeneration || now.LockGeneration <= before.LockGeneration {
		return fmt.Errorf("%s is not what was backed up", path)
	}
	c.nodes++
	c.bytes += int64(len(have))
	return nil
}

// takeLock takes a lock on the root of the cell. Where that was held, its lock-delay is waited for.
func takeLock(ctx context.Context, c *client.Client, root lockfs.Path) (generation uint64, err error) {
	s, err := c.Session(ctx)
	if err != nil {
		return 0, err
	}
	held, err := s.Acquire(ctx, client.Acquire{Path: root, Owner: s.NewOwner(), Mode: lockfs.Exclusive, Wait: true})
	return held.Generation, err
}
