package master

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	plain "google.golang.org/grpc/credentials/insecure"

	"lockfs/lockpb"
	"lockfs/raft"
	"lockfs/store"
	"lockfs/store/storepb"
)

// How often a master asks the members how they are, how long one of them has to answer, and how
// often their hashes are compared.
const (
	watchTime   = 3 * time.Second
	askTime     = 2 * time.Second
	compareTime = 30 * time.Second
)

// Disk is the file system of a replica's data folder.
type Disk struct {
	Free, Total int64 // bytes
	// Low says that too little is free for a master: mastership goes to a replica that has room.
	Low bool
}

// A census is what the members of a cell last said of themselves, by id. Who did not answer is not
// in it.
type census map[uint64]*lockpb.StatusAnswer

// watch looks after the other members while this replica leads.
func (r *Replica) watch() {
	timer := r.cfg.Clock.NewTimer(watchTime)
	defer timer.Stop()
	conns := make(map[string]*grpc.ClientConn) // by address
	defer func() { keepOnly(conns, nil) }()
	var last comparison
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C():
		}
		timer.Reset(watchTime)
		status := r.raft.Status()
		if !r.inOffice() {
			keepOnly(conns, nil)
			last = comparison{}
			continue
		}
		found := r.ask(conns, status.Members)
		r.handOver(status.Members, found)
		r.raiseLevel(status.Members, found)
		last = r.compareHashes(last, status.Members, found)
	}
}

func (r *Replica) inOffice() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.machine.inOffice
}

// keepOnly closes the connections to addresses that are not among these members.
func keepOnly(conns map[string]*grpc.ClientConn, members []raft.MemberStatus) {
	for address, conn := range conns {
		if !slices.ContainsFunc(members, func(m raft.MemberStatus) bool { return m.Address == address }) {
			conn.Close()
			delete(conns, address)
		}
	}
}

// ask asks all members at once how they are, this one too.
func (r *Replica) ask(conns map[string]*grpc.ClientConn, members []raft.MemberStatus) census {
	keepOnly(conns, members)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	bound := r.cfg.Clock.NewTimer(askTime)
	defer bound.Stop()
	answers := make([]*lockpb.StatusAnswer, len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		if m.ID == r.cfg.Self.ID {
			answers[i], _ = r.Status(ctx, nil)
			continue
		}
		conn, err := r.connection(conns, m.Address)
		if err != nil {
			continue // an address that is none: nobody answers there
		}
		asking.Go(func() {
			a, err := lockpb.NewCellClient(conn).Status(ctx, &lockpb.StatusRequest{})
			if err == nil && a.GetClusterId() == r.cfg.ClusterID && a.GetMemberId() == m.ID {
				answers[i] = a
			}
		})
	}
	answered := make(chan struct{})
	go func() {
		asking.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-bound.C():
		cancel()
		<-answered
	}
	found := make(census)
	for i, a := range answers {
		if a != nil {
			found[members[i].ID] = a
		}
	}
	return found
}

// connection returns that to an address, a new one if there is none.
func (r *Replica) connection(conns map[string]*grpc.ClientConn, address string) (*grpc.ClientConn, error) {
	if conn, ok := conns[address]; ok {
		return conn, nil
	}
	credentials := r.cfg.Credentials
	if credentials == nil {
		credentials = plain.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return r.cfg.Dial(ctx, address) }))
	if err == nil {
		conns[address] = conn
	}
	return conn, err
}

// handOver gives mastership to a member with room on its disk, if this one has none.
func (r *Replica) handOver(members []raft.MemberStatus, found census) {
	if !found[r.cfg.Self.ID].GetDisk().GetLow() {
		return
	}
	var avoid []uint64
	for _, m := range members {
		if a, ok := found[m.ID]; !ok || a.GetDisk().GetLow() {
			avoid = append(avoid, m.ID)
		}
	}
	if len(avoid) == len(members) {
		return // nobody would be a better master
	}
	ctx, cancel := context.WithTimeout(r.ctx, askTime)
	defer cancel()
	r.log.Warn("handing mastership over, for little is free on this replica's disk", "free", found[r.cfg.Self.ID].GetDisk().GetFree())
	if err := r.raft.TransferLeadership(ctx, avoid...); err != nil {
		r.log.Warn("mastership was not handed over", "error", err)
	}
}

// raiseLevel raises the cell's level by one once every member knows the next.
func (r *Replica) raiseLevel(members []raft.MemberStatus, found census) {
	for _, m := range members {
		if a, ok := found[m.ID]; !ok || a.GetKnownLevel() <= found[r.cfg.Self.ID].GetLevel() {
			return
		}
	}
	next := found[r.cfg.Self.ID].GetLevel() + 1
	r.log.Info("raising the level of the cell", "level", next)
	r.command(&storepb.Command{Command: &storepb.Command_RaiseLevel{RaiseLevel: &storepb.RaiseLevel{Level: next}}})
}

// command proposes one command of this master's own, and returns the proposal's number.
func (r *Replica) command(c *storepb.Command) (sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.machine.inOffice {
		return 0
	}
	r.mu.machine.propose(r.moment(), &pending{calls: []*call{nil}}, c)
	sequence = r.mu.machine.sequence
	r.flush()
	return sequence
}

// A comparison is the last one of a mastership.
type comparison struct {
	since    time.Duration // it, in steps of watchTime
	sequence uint64        // of the proposal that it was; 0: there was none yet
	settled  bool          // it found nothing new to note: what is noted was compared
}

// compareHashes now and then puts into the log what a majority of the voters has for their hash at
// some entry, so that a replica which has another one stops. The same command has all of them note
// the hash that is compared next. Where nothing happens it ceases.
func (r *Replica) compareHashes(last comparison, members []raft.MemberStatus, found census) comparison {
	if last.since += watchTime; last.sequence != 0 && last.since < compareTime {
		return last
	}
	r.mu.Lock()
	changed := r.mu.machine.sequence != last.sequence
	r.mu.Unlock()
	if !changed && last.settled {
		return last
	}
	check := &storepb.CheckHash{}
	for _, note := range slices.Backward(found[r.cfg.Self.ID].GetHashNotes()) {
		if hash, ok := agreed(note.GetIndex(), members, found); ok {
			check.Index, check.Hash = note.GetIndex(), hash
			break
		}
	}
	sequence := r.command(&storepb.Command{Command: &storepb.Command_CheckHash{CheckHash: check}})
	return comparison{sequence: sequence, settled: !changed}
}

// agreed returns the hash that a majority of the voters noted at an entry.
func agreed(index uint64, members []raft.MemberStatus, found census) (hash uint64, ok bool) {
	voters, votes := 0, make(map[uint64]int)
	for _, m := range members {
		if m.Learner {
			continue
		}
		voters++
		for _, note := range found[m.ID].GetHashNotes() {
			if note.GetIndex() == index {
				votes[note.GetHash()]++
			}
		}
	}
	for hash, n := range votes {
		if 2*n > voters {
			return hash, true
		}
	}
	return 0, false
}

// notesToWire returns what a replica noted of its hash.
func notesToWire(notes []store.HashNote) []*lockpb.HashNote {
	var all []*lockpb.HashNote
	for _, n := range notes {
		all = append(all, &lockpb.HashNote{Index: n.Index, Hash: n.Hash})
	}
	return all
}
