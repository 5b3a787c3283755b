package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"lockfs"
	"lockfs/client"
	"lockfs/lockpb"
	"lockfs/sequencer"
)

func viewReplica(a client.ReplicaStatus, committed uint64) replicaView {
	if a.Err != nil {
		return replicaView{Address: a.Address, Error: reason(a.Err)}
	}
	s := a.Status
	view := replicaView{
		Address: a.Address, Replica: s.Replica, Role: s.Role, Epoch: s.Epoch, Applied: s.Applied,
		Hash: hex(s.Hash), Knows: s.KnownLevel,
		Free: s.GetDisk().GetFree(), Total: s.GetDisk().GetTotal(), Low: s.GetDisk().GetLow(),
	}
	if committed > s.Applied {
		view.Lag = committed - s.Applied
	}
	return view
}

// reason is what an error says beyond that status failed, without gRPC's words for a call of dial.
func reason(err error) string {
	text := err.Error()
	var known *lockfs.Error
	if errors.As(err, &known) && known.Detail != "" {
		text = known.Detail
	}
	if _, dialing, ok := strings.Cut(text, "Error while dialing: "); ok {
		text = strings.TrimSuffix(dialing, `"`)
	}
	return text
}

// viewMembers also counts how many voters may still be lost before no majority is left.
func viewMembers(s *lockpb.StatusAnswer) (members []memberView, mayLose int) {
	voters, live := 0, 0
	for _, m := range s.Members {
		reachable := m.Reachable || m.Master
		members = append(members, viewMember(m))
		if m.Voter {
			voters++
		}
		if m.Voter && reachable {
			live++
		}
	}
	slices.SortFunc(members, func(a, b memberView) int { return strings.Compare(a.Name, b.Name) })
	return members, max(0, live-(voters/2+1))
}

func viewMember(m *lockpb.Member) memberView {
	return memberView{Name: m.Name, Address: m.Address, ID: m.Id, Voter: m.Voter, Begun: m.Begun, Master: m.Master,
		Matched: m.Matched, Reachable: m.Reachable || m.Master}
}

func viewLocks(states []client.LockState, now time.Time) locksView {
	view := locksView{Locks: []lockView{}}
	for _, s := range states {
		lock := lockView{
			Path: s.Path, Instance: s.Instance, Mode: s.Mode.String(), Generation: s.Generation,
			Holders: []holderView{}, Waiters: []waiterView{}, Delays: []delayView{},
		}
		if s.Mode != lockfs.Free {
			lock.Sequencer = sequencer.Sequencer{Path: s.Path, Mode: s.Mode, Generation: s.Generation}.String()
		}
		for _, h := range s.Holders {
			lock.Holders = append(lock.Holders, holderView{
				partyView: partyView{h.Host, h.Identity, h.Session, h.Owner, h.Note},
				Since:     h.Since, HeldMS: max(0, now.Sub(h.Since)).Milliseconds(), LockDelay: h.LockDelay.String(),
			})
		}
		for _, wait := range s.Waiters {
			lock.Waiters = append(lock.Waiters, waiterView{
				partyView: partyView{wait.Host, wait.Identity, wait.Session, wait.Owner, wait.Note},
				Mode:      wait.Mode.String(), WaitedMS: wait.Waited.Milliseconds(),
			})
		}
		for _, d := range s.Delays {
			lock.Delays = append(lock.Delays, delayView{d.Mode.String(), d.Left.Milliseconds()})
		}
		view.Locks = append(view.Locks, lock)
	}
	return view
}

// write prints one line for each holder, waiter and delay, and nothing at all where there is none.
func (v locksView) write(w io.Writer) error {
	var rows [][]string
	row := func(l lockView, state, mode string, p partyView, ms int64, note string) {
		session := "-"
		if p.Session != 0 {
			session = number(p.Session)
		}
		rows = append(rows, []string{string(l.Path), state, mode, number(l.Generation), dash(p.Host), session,
			milliseconds(ms).Round(100 * time.Millisecond).String(), dash(note)})
	}
	for _, l := range v.Locks {
		for _, h := range l.Holders {
			row(l, "held", l.Mode, h.partyView, h.HeldMS, h.Note)
		}
		for _, wait := range l.Waiters {
			row(l, "waits", wait.Mode, wait.partyView, wait.WaitedMS, wait.Note)
		}
		for _, d := range l.Delays {
			row(l, "delayed", d.Mode, partyView{}, d.LeftMS, "left of the lock-delay")
		}
	}
	return table(w, []string{"PATH", "STATE", "MODE", "GENERATION", "HOST", "SESSION", "TIME", "NOTE"}, rows)
}

func (v statusView) write(w io.Writer) error {
	var rows [][]string
	for _, r := range v.Replicas {
		if r.Error != "" {
			rows = append(rows, []string{r.Address, "-", "-", "-", "-", "-", "-", r.Error})
			continue
		}
		rows = append(rows, []string{r.Address, r.Replica, r.Role, number(r.Epoch), number(r.Applied), number(r.Lag), r.free(), r.Hash})
	}
	if err := table(w, []string{"ADDRESS", "REPLICA", "ROLE", "EPOCH", "APPLIED", "LAG", "FREE", "HASH"}, rows); err != nil {
		return err
	}
	if v.Master == "" {
		_, err := fmt.Fprintf(w, "cell %s has no master\n", v.Cell)
		return err
	}
	var members []string
	for _, m := range v.Members {
		members = append(members, m.String())
	}
	_, err := fmt.Fprintf(w, "cell %s: master %s, epoch %d, level %d, lease %s, grace %s, %s, %s, %s\n"+
		"members: %s; %d more may be lost\n",
		v.Cell, v.Master, v.Epoch, v.Level, v.Lease, v.Grace, count(v.Nodes, "node"), count(v.Bytes, "byte"), count(v.Sessions, "session"),
		strings.Join(members, ", "), v.MayLose)
	return err
}

// free is the room on a replica's disk.
func (r replicaView) free() string {
	if r.Total == 0 {
		return "-"
	}
	text := mebibytes(r.Free) + " of " + mebibytes(r.Total)
	if r.Low {
		text += " (low)"
	}
	return text
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

func hex(hash uint64) string { return fmt.Sprintf("%016x", hash) }

func (m memberView) String() string {
	text := m.Name + "=" + m.Address
	if !m.Voter {
		text += " (learner)"
	}
	if !m.Reachable {
		text += " (" + m.state() + ")"
	}
	return text
}

func (v statView) write(w io.Writer) error {
	permanence := v.Permanence
	if v.OwnerSession != 0 {
		permanence += ", of session " + number(v.OwnerSession)
	}
	size := "size"
	if v.Type == "directory" {
		size = "children"
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"path", string(v.Path)},
		{"type", v.Type},
		{"permanence", permanence},
		{size, strconv.FormatInt(v.Size, 10)},
		{"mtime", v.Mtime.Format(time.RFC3339Nano)},
		{"instance", number(v.Instance)},
		{"content_generation", number(v.ContentGeneration)},
		{"lock_generation", number(v.LockGeneration)},
		{"acl_generation", number(v.ACLGeneration)},
		{"checksum", v.Checksum},
		{"acl.read", dash(v.ACL.Read)},
		{"acl.write", dash(v.ACL.Write)},
		{"acl.change_acl", dash(v.ACL.ChangeACL)},
	} {
		fmt.Fprintf(out, "%s\t%s\n", line[0], line[1])
	}
	return out.Flush()
}

func writeEntries(w io.Writer, entries []entryView) error {
	for _, e := range entries {
		slash := ""
		if e.Type == "directory" {
			slash = "/"
		}
		if _, err := fmt.Fprintln(w, e.Name+slash); err != nil {
			return err
		}
	}
	return nil
}

// table prints rows under a header, in columns, and nothing where there are no rows.
func table(w io.Writer, header []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, strings.Join(header, "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
		fmt.Fprintln(out, strings.Join(row, "\t"))
	}
	return out.Flush()
}

// printable is s without what a terminal would obey: hosts and programs name themselves.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// dash is what stands in a column that would be empty.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
