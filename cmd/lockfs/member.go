package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockfs/internal/command"
	"lockfs/lockpb"
)

func (c *cli) member() *cobra.Command {
	group := &cobra.Command{
		Use: "member", Short: "Show and change who is a member of the cell.", RunE: required,
		Long: "Show and change who is a member of the cell.\n\n" +
			"A member that is added has no vote until its log has caught up with the others'; then the master\n" +
			"gives it one. What could leave the cell without a majority is refused. A member that lost its disk,\n" +
			"or whose log is damaged, is replaced: under the same name, with an empty data folder.",
	}
	var wait bool
	add := c.memberCommand("add NAME HOST:PORT", "Add a member; it is to be started with lockfsd --join.", 2,
		func(ctx context.Context, args []string) (*lockpb.Member, error) {
			return c.client.AddMember(ctx, args[0], args[1], false)
		}, &wait)
	replace := c.memberCommand("replace NAME HOST:PORT", "Have a member with an empty data folder take the place of one.", 2,
		func(ctx context.Context, args []string) (*lockpb.Member, error) {
			return c.client.AddMember(ctx, args[0], args[1], true)
		}, &wait)
	for _, cmd := range []*cobra.Command{add, replace} {
		cmd.Flags().BoolVar(&wait, "wait", false, "wait until the new member has its vote, and the one that it replaces is gone")
	}
	group.AddCommand(c.memberList(), add, replace,
		c.memberCommand("promote NAME", "Give a member its vote now, where its log has caught up.", 1,
			func(ctx context.Context, args []string) (*lockpb.Member, error) {
				return c.client.PromoteMember(ctx, args[0])
			}, nil),
		c.memberCommand("remove NAME", "Remove a member; of one that is being replaced, the new one.", 1,
			func(ctx context.Context, args []string) (*lockpb.Member, error) {
				return c.client.RemoveMember(ctx, args[0])
			}, nil))
	return group
}

func (c *cli) memberList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Show the members, as the master sees them.",
		RunE: c.does(func(ctx context.Context, _ []string) error {
			members, err := c.members(ctx)
			if err != nil {
				return err
			}
			view := membersView{members}
			return c.print(view, view.write)
		}),
	}
}

// members returns the members as the master sees them.
func (c *cli) members(ctx context.Context) ([]memberView, error) {
	view := viewStatus(c.name, c.client.Status(ctx))
	if view.Master == "" {
		return nil, c.noMaster("members")
	}
	return view.Members, nil
}

// memberCommand is one that changes a member and prints it.
func (c *cli) memberCommand(use, short string, arguments int, change func(context.Context, []string) (*lockpb.Member, error), wait *bool) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: command.Arguments(arguments, arguments),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if arguments == 2 {
				if err := command.CheckAddress(args[1]); err != nil {
					return command.Usage("%v", err)
				}
			}
			m, err := change(ctx, args)
			if err != nil {
				return err
			}
			if wait != nil && *wait {
				if err := c.awaitVote(ctx, m.GetId()); err != nil {
					return err
				}
			}
			view := viewMember(m)
			return c.print(view, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s=%s, member %d\n", view.Name, view.Address, view.ID)
				if err == nil && wait != nil && !*wait {
					_, err = fmt.Fprintf(w, "now start it with an empty folder, and so from then on: lockfsd --cell %s --name %s --data DIR --listen %s --join %s\n",
						c.name, view.Name, view.Address, c.addresses())
				}
				return err
			})
		}),
	}
}

// addresses are those of --cell.
func (c *cli) addresses() string {
	_, addresses, _ := strings.Cut(c.cell, "=")
	return addresses
}

// voteTime is how often it is looked whether a member has its vote.
const voteTime = time.Second / 2

// awaitVote waits until a member has its vote, and no other member its name.
func (c *cli) awaitVote(ctx context.Context, id uint64) error {
	look := time.NewTicker(voteTime)
	defer look.Stop()
	for {
		members, err := c.members(ctx)
		if err == nil && settled(members, id) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
}

func settled(members []memberView, id uint64) bool {
	names := make(map[string]int)
	voter := false
	for _, m := range members {
		names[m.Name]++
		voter = voter || m.ID == id && m.Voter
	}
	for _, m := range members {
		if m.ID == id {
			return voter && names[m.Name] == 1
		}
	}
	return false
}

type membersView struct {
	Members []memberView `json:"members"`
}

func (v membersView) write(w io.Writer) error {
	var rows [][]string
	for _, m := range v.Members {
		rows = append(rows, []string{m.Name, m.Address, number(m.ID), m.role(), m.state(), number(m.Matched)})
	}
	return table(w, []string{"NAME", "ADDRESS", "MEMBER", "ROLE", "STATE", "MATCHED"}, rows)
}

func (m memberView) role() string {
	switch {
	case m.Master:
		return "master"
	case m.Voter:
		return "voter"
	}
	return "learner"
}

func (m memberView) state() string {
	switch {
	case m.Reachable:
		return "reachable"
	case !m.Begun:
		return "has not begun"
	}
	return "unreachable"
}
