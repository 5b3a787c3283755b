package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/internal/command"
	"lockfs/sequencer"
)

func (c *cli) sequencer() *cobra.Command {
	group := &cobra.Command{
		Use: "sequencer", Short: "Work with sequencers, which prove that a lock is held.", RunE: required,
	}
	group.AddCommand(&cobra.Command{
		Use: "get PATH", Short: "Print the sequencer of a lock that this host holds.", Args: command.Arguments(1, 1),
		Long: "Print the sequencer of a lock that a program of this host holds; fail where none does.\n\n" +
			"PATH is not a node's name but a path on this host: that of a file on a mount, or /proc/self/fd/N\n" +
			"for one that the caller has open. The mount is asked, so no flag for a cell is needed. It tells\n" +
			"what it holds and not for whom: ask inside the lock.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.checkFormat(); err != nil {
				return err
			}
			held, err := heldAt(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("sequencer get %s: %w", args[0], err)
			}
			view := sequencerView{held.String(), held.Path, held.Mode.String(), held.Generation}
			return c.print(view, func(w io.Writer) error { _, err := fmt.Fprintln(w, view.Sequencer); return err })
		},
	})
	return group
}

type sequencerView struct {
	Sequencer  string      `json:"sequencer"`
	Path       lockfs.Path `json:"path"`
	Mode       string      `json:"mode"`
	Generation uint64      `json:"generation"`
}

// heldAt returns the sequencer of the lock that the mount of a file holds on it. It opens nothing, so
// a descriptor of the caller, under /proc/self/fd, answers for the file that it is of and no other.
func heldAt(ctx context.Context, path string) (sequencer.Sequencer, error) {
	value := make([]byte, 2*lockfs.MaxPath)
	n, err := unix.Getxattr(path, "user.lockfs.sequencer", value)
	for errors.Is(err, unix.EINTR) && ctx.Err() == nil {
		n, err = unix.Getxattr(path, "user.lockfs.sequencer", value)
	}
	switch {
	case errors.Is(err, unix.ENODATA):
		return sequencer.Sequencer{}, errors.New("no program of this host holds a lock of lockfs on it")
	case errors.Is(err, unix.ESTALE):
		return sequencer.Sequencer{}, errors.New("it was deleted, and its lock has ended with it")
	case errors.Is(err, unix.ENOTSUP):
		return sequencer.Sequencer{}, errors.New("it is not on a mount of lockfs")
	case err != nil:
		return sequencer.Sequencer{}, err
	}
	return sequencer.Parse(string(value[:n]))
}
