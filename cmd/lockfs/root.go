package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/command"
)

// cli is one call of the program: its flags, and what became of them.
type cli struct {
	world
	cell     string
	format   string
	timeout  time.Duration
	security command.Security

	name   string // of the cell
	client *client.Client
}

// closeTime bounds how long a command that has its answer waits to end its session cleanly. The
// cell would end it anyway, after its lease.
const closeTime = 2 * time.Second

// newRoot returns the command with all its subcommands. Flags have their defaults from the
// environment.
func newRoot(w world) (*cobra.Command, error) {
	c := &cli{world: w}
	root := &cobra.Command{
		Use:   "lockfs",
		Short: "Lockfs reads and changes a cell from the command line.",
		RunE: func(*cobra.Command, []string) error {
			return command.Usage("a command is required; see lockfs --help")
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.check(cmd) },
	}
	root.SetOut(w.stdout)
	c.security = command.Security{
		Cert: w.getenv("LOCKFS_CERT"), Key: w.getenv("LOCKFS_KEY"), CA: w.getenv("LOCKFS_CA"),
	}
	if value := w.getenv("LOCKFS_INSECURE"); value != "" {
		insecure, err := strconv.ParseBool(value)
		if err != nil {
			return nil, command.Usage("LOCKFS_INSECURE is %q, neither true nor false", value)
		}
		c.security.Insecure = insecure
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.cell, "cell", w.getenv("LOCKFS_CELL"), "the cell, as `name=host:port,…`; default $LOCKFS_CELL")
	flags.StringVarP(&c.format, "output", "o", "text", "text or json")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to look for a master")
	c.security.AddFlags(flags)
	root.AddCommand(c.status(), c.ls(), c.stat(), c.get(), c.put(), c.rm(), c.mkdir(), c.locks(), c.sessions())
	return root, nil
}

// check makes sense of the flags before any command runs.
func (c *cli) check(cmd *cobra.Command) error {
	switch {
	case cmd.Parent() == nil:
		return nil
	case c.format != "text" && c.format != "json":
		return command.Usage("-o is %q, neither text nor json", c.format)
	case c.timeout <= 0:
		return command.Usage("--timeout is %v, not more than 0", c.timeout)
	case c.cell == "":
		return command.Usage("--cell NAME=HOST:PORT,… or LOCKFS_CELL is required")
	}
	// A flag outranks what the environment says to the contrary.
	flags := cmd.Flags()
	if flags.Changed("insecure") {
		c.security = command.Security{Insecure: c.security.Insecure}
	} else if flags.Changed("cert") || flags.Changed("key") || flags.Changed("ca") {
		c.security.Insecure = false
	}
	name, addresses, err := command.ParseCell(c.cell)
	if err != nil {
		return err
	}
	if err := c.security.Check(addresses...); err != nil {
		return err
	}
	tls, err := c.security.Client()
	if err != nil {
		return err
	}
	c.name = name
	c.client, err = client.Open(client.Config{Cell: name, Addresses: addresses, TLS: tls, Timeout: c.timeout})
	return err
}

// does makes a command's work of do: with its arguments, and ending the client behind it.
func (c *cli) does(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := do(cmd.Context(), args)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeTime)
		defer cancel()
		c.client.Close(ctx) // its failure leaves a session that ends with its lease, and nothing undone
		return err
	}
}

// path parses an argument, which must lie in the cell; a slash at the end does no harm.
func (c *cli) path(arg string) (lockfs.Path, error) {
	path, err := lockfs.ParsePath(strings.TrimSuffix(arg, "/"))
	if err != nil {
		return "", command.Usage("%v", err)
	}
	if path.Cell() != c.name {
		return "", command.Usage("%s is not in cell %s", path, c.name)
	}
	return path, nil
}

// root is the path for a command that was given none.
func (c *cli) root(args []string) (lockfs.Path, error) {
	if len(args) == 0 {
		return lockfs.CellRoot(c.name)
	}
	return c.path(args[0])
}

// print writes v as JSON, or as text does.
func (c *cli) print(v any, text func(io.Writer) error) error {
	if c.format == "text" {
		return text(c.stdout)
	}
	out := json.NewEncoder(c.stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

// failed says what was attempted in the user's words, which are not always the client's.
func failed(op string, path lockfs.Path, err error) error {
	var known *lockfs.Error
	switch {
	case !errors.As(err, &known):
		return fmt.Errorf("%s %s: %w", op, path, err)
	case known.Path == "" || known.Path == path:
		return &lockfs.Error{Op: op, Path: path, Kind: known.Kind, Detail: known.Detail}
	}
	return err
}
