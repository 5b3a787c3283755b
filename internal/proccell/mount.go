package proccell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// StopTime is how long a daemon may take to end after SIGTERM.
const StopTime = 10 * time.Second

// Mount is a lockfs-mount: what a host is to the cell.
type Mount struct {
	Name string
	Dir  string   // the mount point
	Args []string // what lockfs-mount is started with

	cell    *Cell
	log     Log
	process *Process
	minor   int // the kernel's number of the connection
}

// Mount starts a lockfs-mount of the cell on a folder of its own and waits until it is ready. Flags
// are added to those that name the cell.
func (c *Cell) Mount(ctx context.Context, name string, flags ...string) (*Mount, error) {
	dir := filepath.Join(c.config.Dir, "mount-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	m := &Mount{Name: name, Dir: dir, cell: c}
	m.Args = slices.Concat(c.ClientFlags(), flags, []string{dir})
	c.mounts = append(c.mounts, m)
	return m, m.Start(ctx)
}

// Path returns the path of a node of the cell, given by its names below the cell's root.
func (m *Mount) Path(names string) string {
	return filepath.Join(m.Dir, m.cell.config.Name, names)
}

// Log is what the mount has said, over all its starts.
func (m *Mount) Log() string { return m.log.String() }

// Process is the running lockfs-mount.
func (m *Mount) Process() *Process { return m.process }

// Start starts the mount, for the first time or again, and waits until it is ready.
func (m *Mount) Start(ctx context.Context) error {
	mark := m.log.Mark()
	process, err := Launch("lockfs-mount "+m.Name, exec.Command(m.cell.config.Programs.Mount, m.Args...), &m.log)
	if err != nil {
		return err
	}
	m.process = process
	if err := awaitReady(ctx, process, mark); err != nil {
		return err
	}
	minor, mounted := fuseDevice(m.Dir)
	if !mounted {
		return fmt.Errorf("lockfs-mount %s says it is ready, but nothing is mounted at %s", m.Name, m.Dir)
	}
	m.minor = minor
	return nil
}

// Stop ends the mount as an admin does.
func (m *Mount) Stop() error {
	if err := m.process.Stop(StopTime); err != nil {
		return err
	}
	if _, mounted := fuseDevice(m.Dir); mounted {
		return fmt.Errorf("lockfs-mount %s has ended and left %s mounted", m.Name, m.Dir)
	}
	return nil
}

// close ends the mount by whatever it takes.
func (m *Mount) close() error {
	if m.process == nil {
		return nil
	}
	var err error
	select {
	case <-m.process.Done():
	default:
		err = m.process.Stop(StopTime)
	}
	select {
	case <-m.process.Done():
	default:
		err = errors.Join(err, abort(m.minor), m.process.Kill())
	}
	return errors.Join(err, Detach(m.Dir))
}

// awaitReady waits until the process has said that it is ready.
func awaitReady(ctx context.Context, process *Process, mark int) error {
	ctx, cancel := process.untilEnd(ctx)
	defer cancel()
	if err := process.Log.Await(ctx, "ready", mark); err != nil {
		return fmt.Errorf("%s is not ready: %w; it said:\n%s", process.Name, err, process.Log)
	}
	return nil
}
