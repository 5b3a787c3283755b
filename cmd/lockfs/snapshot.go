package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"lockfs/internal/command"
	"lockfs/store"
)

func (c *cli) snapshot() *cobra.Command {
	group := &cobra.Command{
		Use: "snapshot", Short: "Back the cell up, and check a backup.", RunE: required,
		Long: "Back the cell up, and check a backup. lockfsd restore makes a new cell of one, and lockfsd drill\n" +
			"tries whether that would succeed.",
	}
	group.AddCommand(&cobra.Command{
		Use: "save FILE", Short: "Save all records of the cell to a file, as they are now.", Args: command.Arguments(1, 1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if err := c.save(ctx, args[0]); err != nil {
				return fmt.Errorf("snapshot save %s: %w", args[0], err)
			}
			return c.check(args[0])
		}),
	}, &cobra.Command{
		Use: "check FILE", Short: "Read a backup to its end and check all of it; no cell is needed.", Args: command.Arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := c.checkFormat(); err != nil {
				return err
			}
			return c.check(args[0])
		},
	})
	return group
}

// save makes the file appear whole, and only when it is on disk. It may hold what only some may read.
func (c *cli) save(ctx context.Context, path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return errors.New("it is there, and not a regular file")
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
	if err != nil {
		return err
	}
	err = c.client.SaveSnapshot(ctx, file)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// check reads a backup and prints what it is.
func (c *cli) check(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("snapshot check: %w", err)
	}
	defer file.Close()
	info, err := store.CheckSnapshot(bufio.NewReader(file))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	view := snapshotView{Cell: info.Cell, Cluster: hex(info.ClusterID), Entry: info.Applied, Epoch: info.Epoch, Level: info.Level,
		Time: info.Time, Nodes: info.Nodes, Bytes: info.Bytes, Sessions: info.Sessions, Records: info.Records, Hash: hex(info.Hash)}
	return c.print(view, view.write)
}

type snapshotView struct {
	Cell     string    `json:"cell"`
	Cluster  string    `json:"cluster"`
	Entry    uint64    `json:"entry"` // the last one of the log in it
	Epoch    uint64    `json:"epoch"`
	Level    uint32    `json:"level"`
	Time     time.Time `json:"time"` // of the last change, by its master's clock
	Nodes    int64     `json:"nodes"`
	Bytes    int64     `json:"bytes"`
	Sessions int       `json:"sessions"`
	Records  uint64    `json:"records"`
	Hash     string    `json:"hash"`
}

func (v snapshotView) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "cell %s, cluster %s, level %d, entry %d of epoch %d, %s: %s, %s, %s, hash %s\n",
		v.Cell, v.Cluster, v.Level, v.Entry, v.Epoch, v.Time.Format(time.RFC3339), count(v.Nodes, "node"), count(v.Bytes, "byte"),
		count(int64(v.Sessions), "session"), v.Hash)
	return err
}
