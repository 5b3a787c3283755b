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
		Use: "lockfs", Short: "Lockfs reads and changes a cell from the command line.", Long: about, RunE: required,
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
	flags.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to look for a master; of status, how long to wait for each replica")
	c.security.AddFlags(flags)
	root.AddCommand(c.status(), c.ls(), c.stat(), c.get(), c.put(), c.rm(), c.mkdir(), c.locks(), c.sessions(), c.sequencer(),
		c.hash(), c.member(), c.snapshot())
	return root, nil
}

const about = `Lockfs reads and changes a cell from the command line, on hosts with a mount or without.

PATH is a node's name as on a mount: /ls/<cell> is the root of the cell that --cell names, and
/ls/<cell>/… what is below it. /ls/local is that cell too, and without PATH it is all of the cell.

For lockfs, and for lockfs alone, the environment stands in for flags: LOCKFS_CELL for --cell,
LOCKFS_INSECURE=1 for --insecure, LOCKFS_CERT, LOCKFS_KEY and LOCKFS_CA for --cert, --key and --ca.
A flag outranks it.

The exit code is 0, 1 if what was asked for failed, or 2 if it made no sense.`

// required is what a command says that does nothing without one of its subcommands.
func required(cmd *cobra.Command, _ []string) error {
	return command.Usage("a command is required; see %s --help", cmd.CommandPath())
}

// checkFormat makes sense of -o.
func (c *cli) checkFormat() error {
	if c.format != "text" && c.format != "json" {
		return command.Usage("-o is %q, neither text nor json", c.format)
	}
	return nil
}

// open makes sense of the flags, and a client of them.
func (c *cli) open(cmd *cobra.Command) error {
	if err := c.checkFormat(); err != nil {
		return err
	}
	if c.timeout <= 0 {
		return command.Usage("--timeout is %v; it must be more than 0", c.timeout)
	}
	if c.cell == "" {
		return command.Usage("--cell NAME=HOST:PORT,… or LOCKFS_CELL is required")
	}
	name, addresses, err := command.ParseCell(c.cell)
	if err != nil {
		return err
	}
	security := c.outranked(cmd)
	if err := security.Check(addresses...); err != nil {
		return err
	}
	tls, err := security.Client()
	if err != nil {
		return err
	}
	c.name = name
	c.client, err = client.Open(client.Config{Cell: name, Addresses: addresses, TLS: tls, Timeout: c.timeout})
	return err
}

// outranked is the security that flags ask for, without what the environment says to the contrary.
func (c *cli) outranked(cmd *cobra.Command) command.Security {
	flags := cmd.Flags()
	insecure := flags.Changed("insecure") && c.security.Insecure
	files := flags.Changed("cert") || flags.Changed("key") || flags.Changed("ca")
	security := c.security
	switch {
	case insecure && files: // is refused
	case insecure:
		security = command.Security{Insecure: true}
	case files:
		security.Insecure = false
	}
	return security
}

// does makes a command's work of do: with its arguments, and with a client that ends behind it.
func (c *cli) does(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := c.open(cmd); err != nil {
			return err
		}
		err := do(cmd.Context(), args)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeTime)
		defer cancel()
		c.client.Close(ctx) // its failure leaves a session that ends with its lease, and nothing undone
		return err
	}
}

// local is the name of the cell of --cell, as on a mount that shows it first.
const local = lockfs.Root + "/local/"

// path parses an argument, which must lie in the cell; a slash at the end does no harm.
func (c *cli) path(arg string) (lockfs.Path, error) {
	name := strings.TrimSuffix(arg, "/")
	if below, ok := strings.CutPrefix(name+"/", local); ok {
		name = strings.TrimSuffix(lockfs.Root+"/"+c.name+"/"+below, "/")
	}
	path, err := lockfs.ParsePath(name)
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
