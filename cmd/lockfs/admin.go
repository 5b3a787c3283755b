package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/command"
)

func (c *cli) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show every replica; fail where no master answers.",
		Long: "Ask the replicas of --cell how they are, and the members that they name. Each is asked once, so\n" +
			"where no master is elected yet it fails at once; who wants to wait for one repeats it.",
		RunE: c.does(func(ctx context.Context, _ []string) error {
			view := viewStatus(c.name, c.client.Status(ctx))
			if err := c.print(view, view.write); err != nil {
				return err
			}
			if view.Master == "" {
				return c.noMaster("status")
			}
			return nil
		}),
	}
}

func (c *cli) noMaster(op string) error {
	return &lockfs.Error{Op: op + " of cell " + c.name, Kind: lockfs.ErrUnavailable}
}

func (c *cli) locks() *cobra.Command {
	return &cobra.Command{
		Use: "locks [PATH]", Short: "Show locks that are held, waited for or in their lock-delay, of PATH and all below.",
		Args: command.Arguments(0, 1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			path, err := c.root(args)
			if err != nil {
				return err
			}
			states, err := c.client.Locks(ctx, path)
			if err == nil && len(states) == 0 {
				// A lock-delay outlives its node, so only now is it a mistake if there is none.
				_, err = c.client.Reader().Stat(ctx, path, 0)
			}
			if err != nil {
				return failed("locks", path, err)
			}
			view := viewLocks(states, time.Now())
			return c.print(view, view.write)
		}),
	}
}

func (c *cli) sessions() *cobra.Command {
	return &cobra.Command{
		Use: "sessions", Short: "Show the sessions of the cell.",
		RunE: c.does(func(ctx context.Context, _ []string) error {
			infos, err := c.client.Sessions(ctx)
			if err != nil {
				return fmt.Errorf("sessions of cell %s: %w", c.name, err)
			}
			view := viewSessions(infos)
			return c.print(view, view.write)
		}),
	}
}

// statusView is how the cell is, put together from what its replicas answered.
type statusView struct {
	Cell     string        `json:"cell"`
	Master   string        `json:"master"` // replica's name, "" where there is none
	Epoch    uint64        `json:"epoch"`
	Lease    string        `json:"lease"`
	Grace    string        `json:"grace"`
	Nodes    int64         `json:"nodes"`
	Bytes    int64         `json:"bytes"`
	Sessions int64         `json:"sessions"`
	Level    uint32        `json:"level"`    // of the cell; it is raised when all members know the next
	MayLose  int           `json:"may_lose"` // replicas that may still fail before the cell stands still
	Replicas []replicaView `json:"replicas"` // one for each that was asked
	Members  []memberView  `json:"members"`  // as the master sees them
}

type replicaView struct {
	Address string `json:"address"`
	Replica string `json:"replica,omitempty"`
	Role    string `json:"role,omitempty"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Applied uint64 `json:"applied,omitempty"`
	Lag     uint64 `json:"lag"`                   // log entries that the master committed and this one has not applied
	Hash    string `json:"hash,omitempty"`        // of all records, at applied
	Knows   uint32 `json:"known_level,omitempty"` // the highest level that it can be raised to
	Free    int64  `json:"disk_free"`             // bytes
	Total   int64  `json:"disk_total"`
	Low     bool   `json:"disk_low"` // too little is free for a master
	Error   string `json:"error,omitempty"`
}

type memberView struct {
	Name      string `json:"name"`
	Address   string `json:"address"`
	ID        uint64 `json:"id,string"`
	Voter     bool   `json:"voter"`
	Begun     bool   `json:"begun"`   // it has taken part
	Matched   uint64 `json:"matched"` // the entry up to which its log is known to be the master's
	Master    bool   `json:"master"`
	Reachable bool   `json:"reachable"`
}

// viewStatus believes the master of the highest epoch: one that was cut off may not know yet that
// it is none.
func viewStatus(cell string, answers []client.ReplicaStatus) statusView {
	view := statusView{Cell: cell, Replicas: []replicaView{}, Members: []memberView{}}
	var committed uint64
	for _, a := range answers {
		if a.Err != nil || a.Status.Role != "master" || view.Master != "" && a.Status.Epoch < view.Epoch {
			continue
		}
		s := a.Status
		committed = s.Committed
		view.Master, view.Epoch = s.Replica, s.Epoch
		view.Lease, view.Grace = milliseconds(s.LeaseMs).String(), milliseconds(s.GraceMs).String()
		view.Nodes, view.Bytes, view.Sessions, view.Level = s.Nodes, s.Bytes, s.Sessions, s.Level
		view.Members, view.MayLose = viewMembers(s)
	}
	for _, a := range answers {
		view.Replicas = append(view.Replicas, viewReplica(a, committed))
	}
	return view
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// locksView has one element for each node with something to say about its lock.
type locksView struct {
	Locks []lockView `json:"locks"`
}

type lockView struct {
	Path       lockfs.Path  `json:"path"`
	Instance   uint64       `json:"instance"`
	Mode       string       `json:"mode"`
	Generation uint64       `json:"generation"`
	Sequencer  string       `json:"sequencer,omitempty"` // of those who hold it
	Holders    []holderView `json:"holders"`
	Waiters    []waiterView `json:"waiters"` // in order of their turn
	Delays     []delayView  `json:"delays"`
}

type holderView struct {
	partyView
	Since     time.Time `json:"since"`
	HeldMS    int64     `json:"held_ms"` // by this host's clock
	LockDelay string    `json:"lock_delay"`
}

type waiterView struct {
	partyView
	Mode     string `json:"mode"`
	WaitedMS int64  `json:"waited_ms"`
}

type partyView struct {
	Host     string `json:"host"`
	Identity string `json:"identity,omitempty"`
	Session  uint64 `json:"session"`
	Owner    uint64 `json:"owner"`
	Note     string `json:"note,omitempty"`
}

type delayView struct {
	Mode   string `json:"mode"`
	LeftMS int64  `json:"left_ms"`
}

type sessionsView struct {
	Sessions []sessionView `json:"sessions"`
}

type sessionView struct {
	Session     uint64    `json:"session"`
	Host        string    `json:"host"`
	Identity    string    `json:"identity,omitempty"`
	Created     time.Time `json:"created"`
	LeaseLeftMS int64     `json:"lease_left_ms"`
	Locks       int       `json:"locks"`
	Caches      bool      `json:"caches"`
}

func viewSessions(infos []client.SessionInfo) sessionsView {
	view := sessionsView{Sessions: []sessionView{}}
	for _, s := range infos {
		view.Sessions = append(view.Sessions, sessionView{
			Session: s.ID, Host: s.Host, Identity: s.Identity, Created: s.Created,
			LeaseLeftMS: s.LeaseLeft.Milliseconds(), Locks: s.Locks, Caches: s.Caches,
		})
	}
	return view
}

func (v sessionsView) write(w io.Writer) error {
	var rows [][]string
	for _, s := range v.Sessions {
		rows = append(rows, []string{number(s.Session), dash(s.Host), dash(s.Identity), number(uint64(s.Locks)),
			milliseconds(s.LeaseLeftMS).Round(time.Millisecond * 100).String(), s.Created.Format(time.RFC3339)})
	}
	return table(w, []string{"SESSION", "HOST", "IDENTITY", "LOCKS", "LEASE LEFT", "CREATED"}, rows)
}
