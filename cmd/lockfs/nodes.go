package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/command"
)

func (c *cli) ls() *cobra.Command {
	return &cobra.Command{
		Use: "ls [PATH]", Short: "List a directory, or the cell.", Args: command.Arguments(0, 1),
		Long: "List a directory, or without PATH the root of the cell. /ls itself is listed as the folder of the cell.",
		RunE: c.does(func(ctx context.Context, args []string) error {
			if len(args) == 1 && strings.TrimSuffix(args[0], "/") == lockfs.Root {
				return c.lsCells(ctx)
			}
			path, err := c.root(args)
			if err != nil {
				return err
			}
			entries, _, err := c.client.Reader().List(ctx, path, 0)
			if err != nil {
				return failed("ls", path, err)
			}
			return c.printListing(string(path), entries)
		}),
	}
}

// lsCells lists the folder of all cells, as far as this call knows of any.
func (c *cli) lsCells(ctx context.Context) error {
	root, err := lockfs.CellRoot(c.name)
	if err != nil {
		return err
	}
	stat, err := c.client.Reader().Stat(ctx, root, 0)
	if err != nil {
		return failed("ls", root, err)
	}
	return c.printListing(lockfs.Root, []lockfs.Entry{{Name: c.name, Type: stat.Type, Instance: stat.Instance}})
}

func (c *cli) printListing(path string, entries []lockfs.Entry) error {
	listing := struct {
		Path    string      `json:"path"`
		Entries []entryView `json:"entries"`
	}{path, []entryView{}}
	for _, e := range entries {
		listing.Entries = append(listing.Entries, entryView{e.Name, typeName(e.Type), e.Instance})
	}
	return c.print(listing, func(w io.Writer) error { return writeEntries(w, listing.Entries) })
}

func (c *cli) stat() *cobra.Command {
	return &cobra.Command{
		Use: "stat PATH", Short: "Show what is known of a node.", Args: command.Arguments(1, 1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			path, err := c.path(args[0])
			if err != nil {
				return err
			}
			stat, err := c.client.Reader().Stat(ctx, path, 0)
			if err != nil {
				return failed("stat", path, err)
			}
			return c.printStat(stat)
		}),
	}
}

func (c *cli) get() *cobra.Command {
	return &cobra.Command{
		Use: "get PATH", Short: "Print the contents of a file.", Args: command.Arguments(1, 1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			path, err := c.path(args[0])
			if err != nil {
				return err
			}
			content, stat, err := c.client.Reader().Read(ctx, path, 0)
			if err != nil {
				return failed("get", path, err)
			}
			file := struct {
				statView
				Content       *string `json:"content,omitempty"`        // where it is valid UTF-8
				ContentBase64 *string `json:"content_base64,omitempty"` // where it is not
			}{statView: viewStat(stat)}
			if text := string(content); utf8.Valid(content) {
				file.Content = &text
			} else {
				text = base64.StdEncoding.EncodeToString(content)
				file.ContentBase64 = &text
			}
			return c.print(file, func(w io.Writer) error { _, err := w.Write(content); return err })
		}),
	}
}

func (c *cli) put() *cobra.Command {
	return &cobra.Command{
		Use: "put PATH [CONTENT]", Short: "Make CONTENT, or standard input, the whole contents of a file.",
		Long: "Make CONTENT, or without it standard input, the whole contents of a file, in one step. The file is\n" +
			"made where there is none; its directory is not. CONTENT is stored as it is given, without a newline.",
		Args: command.Arguments(1, 2),
		RunE: c.does(func(ctx context.Context, args []string) error {
			path, err := c.path(args[0])
			if err != nil {
				return err
			}
			content, err := c.content(args[1:])
			if err != nil {
				return err
			}
			stat, err := c.write(ctx, path, content)
			if err != nil {
				return failed("put", path, err)
			}
			return c.printChanged(stat)
		}),
	}
}

// content is the argument, if there is one, or standard input, of which no more is read than shows
// that it is too large.
func (c *cli) content(args []string) ([]byte, error) {
	if len(args) == 1 {
		return []byte(args[0]), nil
	}
	content, err := io.ReadAll(io.LimitReader(c.stdin, maxInput))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return content, nil
}

// maxInput is beyond what a cell lets a file be, unless it was given far larger limits.
const maxInput = 16 << 20

// write replaces the contents of a file, or makes it. Another client may delete the file between
// our finding it and our writing it; then we are the ones who make it.
func (c *cli) write(ctx context.Context, path lockfs.Path, content []byte) (lockfs.Stat, error) {
	session, err := c.client.Session(ctx)
	if err != nil {
		return lockfs.Stat{}, err
	}
	changes := []client.Change{{Kind: client.Truncate}}
	if len(content) > 0 {
		changes = append(changes, client.Change{Kind: client.Append, Data: content})
	}
	for {
		stat, created, err := session.Create(ctx, client.Create{Path: path, Type: lockfs.File, Content: content})
		if err != nil || created {
			return stat, err
		}
		stat, err = session.Edit(ctx, client.Edit{Path: path, Changes: changes})
		if !errors.Is(err, lockfs.ErrNotExist) {
			return stat, err
		}
	}
}

func (c *cli) rm() *cobra.Command {
	return &cobra.Command{
		Use: "rm PATH", Short: "Delete a file or an empty directory.", Args: command.Arguments(1, 1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			path, err := c.path(args[0])
			if err != nil {
				return err
			}
			session, err := c.client.Session(ctx)
			if err == nil {
				err = session.Delete(ctx, path, 0, 0)
			}
			if err != nil {
				return failed("rm", path, err)
			}
			deleted := struct {
				Path lockfs.Path `json:"path"`
			}{path}
			return c.print(deleted, func(io.Writer) error { return nil })
		}),
	}
}

func (c *cli) mkdir() *cobra.Command {
	return &cobra.Command{
		Use: "mkdir PATH", Short: "Make a directory.", Args: command.Arguments(1, 1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			path, err := c.path(args[0])
			if err != nil {
				return err
			}
			session, err := c.client.Session(ctx)
			if err != nil {
				return failed("mkdir", path, err)
			}
			stat, _, err := session.Create(ctx, client.Create{Path: path, Type: lockfs.Dir, Exclusive: true})
			if err != nil {
				return failed("mkdir", path, err)
			}
			return c.printChanged(stat)
		}),
	}
}

func (c *cli) printStat(stat lockfs.Stat) error {
	view := viewStat(stat)
	return c.print(view, view.write)
}

// printChanged says nothing to people about what they asked for and got.
func (c *cli) printChanged(stat lockfs.Stat) error {
	return c.print(viewStat(stat), func(io.Writer) error { return nil })
}

// statView is lockfs.Stat as it is printed.
type statView struct {
	Path              lockfs.Path `json:"path"`
	Type              string      `json:"type"`
	Permanence        string      `json:"permanence"`
	OwnerSession      uint64      `json:"owner_session,omitempty"`
	Size              int64       `json:"size"`
	Mtime             time.Time   `json:"mtime"`
	Instance          uint64      `json:"instance"`
	ContentGeneration uint64      `json:"content_generation"`
	LockGeneration    uint64      `json:"lock_generation"`
	ACLGeneration     uint64      `json:"acl_generation"`
	Checksum          string      `json:"checksum"` // hexadecimal, as the mount's attribute
	ACL               aclView     `json:"acl"`
}

type aclView struct {
	Read      string `json:"read"`
	Write     string `json:"write"`
	ChangeACL string `json:"change_acl"`
}

type entryView struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Instance uint64 `json:"instance"`
}

func viewStat(s lockfs.Stat) statView {
	permanence := "permanent"
	if s.Ephemeral {
		permanence = "ephemeral"
	}
	return statView{
		Path: s.Path, Type: typeName(s.Type), Permanence: permanence, OwnerSession: s.OwnerSession,
		Size: s.Size, Mtime: s.Mtime, Instance: s.Instance,
		ContentGeneration: s.ContentGeneration, LockGeneration: s.LockGeneration, ACLGeneration: s.ACLGeneration,
		Checksum: fmt.Sprintf("%016x", s.Checksum), ACL: aclView(s.ACL),
	}
}

func typeName(t lockfs.Type) string {
	if t == lockfs.Dir {
		return "directory"
	}
	return "file"
}
