package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"lockfs"
	"lockfs/client"
	"lockfs/lockpb"
)

func (c *cli) hash() *cobra.Command {
	var at uint64
	cmd := &cobra.Command{
		Use: "hash", Short: "Show what the replicas noted as the hash of all records; fail where they differ.",
		Long: "Show the hash over all records that the replicas noted at the same entry of the log: the newest one\n" +
			"that all who answer have, or the one that --at names. The master has them note it every half minute\n" +
			"in which something changed, and a replica whose hash is not that of the majority stops.",
		RunE: c.does(func(ctx context.Context, _ []string) error {
			view, err := viewHashes(c.client.Status(ctx), at)
			if err != nil {
				return fmt.Errorf("hash of cell %s: %w", c.name, err)
			}
			if err := c.print(view, view.write); err != nil {
				return err
			}
			return view.check()
		}),
	}
	cmd.Flags().Uint64Var(&at, "at", 0, "`entry` of the log, of those that were noted last")
	return cmd
}

type hashesView struct {
	Entry    uint64     `json:"entry"`
	Replicas []hashView `json:"replicas"`
}

type hashView struct {
	Replica string `json:"replica"` // or its address
	Hash    string `json:"hash,omitempty"`
	Error   string `json:"error,omitempty"` // why it says nothing
}

// viewHashes compares what was noted at an entry, or, where that is 0, at the newest that all have.
func viewHashes(answers []client.ReplicaStatus, at uint64) (hashesView, error) {
	var silent []hashView
	for _, a := range answers {
		if a.Err != nil {
			silent = append(silent, hashView{Replica: a.Address, Error: reason(a.Err)})
		}
	}
	answers = slices.DeleteFunc(answers, func(a client.ReplicaStatus) bool { return a.Err != nil })
	if len(answers) == 0 {
		return hashesView{}, &lockfs.Error{Kind: lockfs.ErrUnavailable, Detail: "no replica answers"}
	}
	for _, note := range slices.Backward(answers[0].Status.GetHashNotes()) {
		if at != 0 && note.GetIndex() != at {
			continue
		}
		if view, ok := hashesAt(answers, note.GetIndex()); ok {
			view.Replicas = append(view.Replicas, silent...)
			return view, nil
		}
	}
	if at != 0 {
		return hashesView{}, fmt.Errorf("not all replicas have a note of entry %d", at)
	}
	return hashesView{}, fmt.Errorf("no entry was noted by all replicas yet; that takes half a minute after a start")
}

func hashesAt(answers []client.ReplicaStatus, entry uint64) (hashesView, bool) {
	view := hashesView{Entry: entry, Replicas: []hashView{}}
	for _, a := range answers {
		i := slices.IndexFunc(a.Status.GetHashNotes(), func(n *lockpb.HashNote) bool { return n.GetIndex() == entry })
		if i < 0 {
			return view, false
		}
		view.Replicas = append(view.Replicas, hashView{Replica: a.Status.GetReplica(), Hash: hex(a.Status.GetHashNotes()[i].GetHash())})
	}
	return view, true
}

// check fails where two hashes differ.
func (v hashesView) check() error {
	for _, r := range v.Replicas {
		if r.Error == "" && r.Hash != v.Replicas[0].Hash {
			return fmt.Errorf("at entry %d the records of %s are not those of %s", v.Entry, r.Replica, v.Replicas[0].Replica)
		}
	}
	return nil
}

func (v hashesView) write(w io.Writer) error {
	var rows [][]string
	for _, r := range v.Replicas {
		rows = append(rows, []string{r.Replica, number(v.Entry), cmp.Or(r.Hash, r.Error)})
	}
	return table(w, []string{"REPLICA", "ENTRY", "HASH"}, rows)
}
