package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/fuse"
	"lockfs/internal/command"
)

// options are the flags and the argument.
type options struct {
	cells      []string // NAME=HOST:PORT,…
	lockDelay  time.Duration
	timeout    time.Duration
	allowOther bool
	security   command.Security
	mountPoint string
}

// Bounds of the end, which is to take less than ten seconds in all, and of how long the first
// session with a cell is waited for before the mount is used without it.
const (
	endTime     = 8 * time.Second
	hangUpTime  = time.Second
	sessionTime = 5 * time.Second
)

// serve mounts and waits for the end.
func serve(ctx context.Context, o *options, log *slog.Logger) (err error) {
	configs, err := o.configs(log)
	if err != nil {
		return err
	}
	var cells []fuse.Cell
	defer func() { hangUp(cells) }()
	for _, config := range configs {
		c, err := client.Open(config)
		if err != nil {
			return err
		}
		cells = append(cells, fuse.Cell{Name: config.Cell, Client: c})
	}
	mount, err := fuse.Mount(fuse.Config{
		Cells: cells, MountPoint: o.mountPoint, AllowOther: o.allowOther,
		LockDelay: o.lockDelay, Timeout: o.timeout, Logger: log,
	})
	if err != nil {
		return err
	}
	return o.watch(ctx, mount, cells, log)
}

// configs checks the flags and returns what they say of each cell.
func (o *options) configs(log *slog.Logger) ([]client.Config, error) {
	if len(o.cells) == 0 {
		return nil, command.Usage("--cell is required")
	}
	if o.lockDelay < 0 || o.lockDelay > lockfs.MaxLockDelay {
		return nil, command.Usage("--lock-delay is %v, not between 0s and %v", o.lockDelay, lockfs.MaxLockDelay)
	}
	if o.timeout < time.Second || o.timeout > time.Hour {
		return nil, command.Usage("--timeout is %v, not between 1s and 1h", o.timeout)
	}
	var configs []client.Config
	seen := make(map[string]bool)
	for _, value := range o.cells {
		name, addresses, err := command.ParseCell(value)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, command.Usage("--cell names %s twice", name)
		}
		seen[name] = true
		if err := o.security.Check(addresses...); err != nil {
			return nil, err
		}
		configs = append(configs, client.Config{Cell: name, Addresses: addresses, Timeout: o.timeout, Logger: log})
	}
	tls, err := o.security.Client()
	for i := range configs {
		configs[i].TLS = tls
	}
	return configs, err
}

// watch says when all is ready, and ends the mount when ctx ends. It returns an error where the
// mount was taken away by somebody else.
func (o *options) watch(ctx context.Context, mount *fuse.Server, cells []fuse.Cell, log *slog.Logger) error {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		mount.Wait()
	}()
	starting, stop := context.WithCancel(ctx)
	var start sync.WaitGroup
	start.Go(func() {
		if reach(starting, &start, cells, log); starting.Err() == nil {
			log.Info("ready", "mountpoint", o.mountPoint)
		}
	})
	var err error
	select {
	case <-ctx.Done():
		log.Info("stopping", "mountpoint", o.mountPoint)
	case <-gone:
		err = fmt.Errorf("the mount at %s was taken away", o.mountPoint)
	}
	stop()
	start.Wait()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	return errors.Join(err, mount.Close(ending))
}

// reach makes a session with each cell, and returns when there is one, or it is clear that the cell
// does not answer now. Those it goes on asking, in goroutines of group, until ctx ends.
func reach(ctx context.Context, group *sync.WaitGroup, cells []fuse.Cell, log *slog.Logger) {
	var first sync.WaitGroup
	for _, cell := range cells {
		first.Add(1)
		group.Go(func() { reachCell(ctx, cell, log, sync.OnceFunc(first.Done)) })
	}
	first.Wait()
}

// reachCell calls tried after its first attempt.
func reachCell(ctx context.Context, cell fuse.Cell, log *slog.Logger, tried func()) {
	defer tried()
	within, cancel := context.WithTimeout(ctx, sessionTime)
	_, err := cell.Client.Session(within)
	cancel()
	if err == nil || ctx.Err() != nil {
		return
	}
	log.Warn("cell does not answer; it is asked until it does", "cell", cell.Name, "error", err)
	tried()
	for ctx.Err() == nil {
		if _, err := cell.Client.Session(ctx); err == nil {
			log.Info("cell answers", "cell", cell.Name)
			return
		}
		pause(ctx)
	}
}

// pause keeps a refusal that comes at once from being asked for again at once.
func pause(ctx context.Context) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
}

func hangUp(cells []fuse.Cell) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTime)
	defer cancel()
	for _, cell := range cells {
		cell.Client.Close(ctx)
	}
}
