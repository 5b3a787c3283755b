package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// stage is all that runs while something is measured.
type stage struct {
	dir     string // scratch folder
	cell    *proccell.Cell
	library library
	echo    echo

	// Where rows with mounts are measured.
	a, b    *proccell.Mount
	bare    *proccell.Talker
	bareDir string
	player  *proccell.Talker
}

// set starts everything. Whatever the error, clear ends what was started.
func (s *stage) set(ctx context.Context, bin string, mounts bool) (err error) {
	if mounts && os.Geteuid() != 0 {
		return errors.New("mounting needs root; -rows 'floor|library' does without")
	}
	programs := proccell.In(bin)
	if bin == "" {
		if programs, err = proccell.Build(ctx, s.dir); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, slack, fmt.Errorf("not started within %v", slack))
	defer cancel()
	if s.cell, err = proccell.New(proccell.Config{Programs: programs, Dir: s.dir}); err != nil {
		return err
	}
	if err := s.cell.Start(ctx); err != nil {
		return err
	}
	if err := s.library.open(ctx, s.cell); err != nil {
		return err
	}
	if err := s.echo.open(ctx, s.dir); err != nil {
		return err
	}
	if mounts {
		return s.mount(ctx)
	}
	return nil
}

// mount mounts two hosts and the bare file system, and starts who plays on them.
func (s *stage) mount(ctx context.Context) (err error) {
	if s.a, err = s.cell.Mount(ctx, "a"); err != nil {
		return err
	}
	if s.b, err = s.cell.Mount(ctx, "b"); err != nil {
		return err
	}
	s.bareDir = filepath.Join(s.dir, "bare")
	if err := os.Mkdir(s.bareDir, 0o755); err != nil {
		return err
	}
	if s.bareDir, err = filepath.EvalSymlinks(s.bareDir); err != nil { // as mounts are known by
		return err
	}
	if s.bare, err = startWorker("fuse", s.bareDir); err != nil {
		return err
	}
	var mounted string
	if err := hear(ctx, s.bare, 0, &mounted); err != nil {
		return err
	}
	s.player, err = startWorker("player", s.dir)
	return err
}

func (s *stage) oneMount() []string   { return []string{s.a.Path("")} }
func (s *stage) bothMounts() []string { return []string{s.a.Path(""), s.b.Path("")} }
func (s *stage) bareMount() []string  { return []string{filepath.Join(s.bareDir, bareCell)} }

// clear ends all that was started. After a failure, other than a Ctrl-C, it shows what the daemons
// said.
func (s *stage) clear(failed error, out io.Writer) error {
	var errs []error
	if s.player != nil {
		s.player.Signal(unix.SIGKILL) // before the mounts whose files it holds
	}
	ctx, cancel := context.WithTimeout(context.Background(), proccell.StopTime)
	defer cancel()
	errs = append(errs, s.library.close(ctx), s.echo.close())
	if s.bare != nil {
		errs = append(errs, s.bare.Stop(proccell.StopTime), proccell.Detach(s.bareDir))
	}
	if s.cell != nil {
		errs = append(errs, s.cell.Close())
		if failed != nil && !errors.Is(failed, context.Canceled) {
			fmt.Fprintln(out, s.cell.Logs())
		}
	}
	if s.player != nil {
		errs = append(errs, s.player.Kill())
	}
	return errors.Join(errs...)
}

// describe prints what and where is measured.
func (s *stage) describe(o options, out io.Writer) {
	disk := ""
	const inMemory = 0x01021994 // tmpfs
	if fs := (unix.Statfs_t{}); unix.Statfs(s.dir, &fs) == nil && fs.Type == inMemory {
		disk = " (in memory, where a sync costs nothing: set TMPDIR to a folder on a disk)"
	}
	fmt.Fprintf(out, "%d replicas and their clients on %d processors, %s; data in %s%s\n",
		len(s.cell.Replicas), runtime.NumCPU(), runtime.Version(), s.dir, disk)
	fmt.Fprintf(out, "rounds: %d, of %v a row\n", o.rounds, o.time)
}

// appendAndSync is the floor under a log: records appended to a file and synced one by one.
func (s *stage) appendAndSync(ctx context.Context, d time.Duration) (figures, error) {
	file, err := os.Create(filepath.Join(s.dir, "appended"))
	if err != nil {
		return figures{}, err
	}
	defer file.Close()
	return load(ctx, 1, d, func(int) error {
		if _, err := file.Write(contents); err != nil {
			return err
		}
		return unix.Fdatasync(int(file.Fd()))
	})
}
