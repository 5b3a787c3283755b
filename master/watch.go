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

// A watcher looks after the other members while its replica leads, and at its own disk always.
type watcher struct {
	*Replica
	conns map[string]*grpc.ClientConn // to the others, by address
	last  comparison
	low   bool // too little was free on the disk, at the last look
}

func (r *Replica) watch() {
	w := watcher{Replica: r, conns: make(map[string]*grpc.ClientConn)}
	defer w.rest()
	timer := r.cfg.Clock.NewTimer(watchTime)
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C():
		}
		timer.Reset(watchTime)
		w.look()
	}
}

func (w *watcher) look() {
	w.lookAtDisk()
	if !w.inOffice() {
		w.rest()
		return
	}
	members := w.raft.Status().Members
	found := w.ask(members)
	w.handOver(members, found)
	w.raiseLevel(members, found)
	w.last = w.compareHashes(w.last, members, found)
}

// rest is for a time in which another replica leads.
func (w *watcher) rest() {
	w.keepOnly(nil)
	w.last = comparison{}
}

// lookAtDisk says when too little becomes free, or enough again.
func (w *watcher) lookAtDisk() {
	if w.cfg.Disk == nil {
		return
	}
	disk := w.cfg.Disk()
	switch {
	case disk.Low && !w.low:
		w.log.Warn("little is free on this replica's disk: it will not stay the master, and stops where nothing is left", "free", disk.Free)
	case !disk.Low && w.low:
		w.log.Info("there is room on this replica's disk again", "free", disk.Free)
	}
	w.low = disk.Low
}

func (r *Replica) inOffice() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.machine.inOffice
}

// keepOnly closes the connections to addresses that are not among these members.
func (w *watcher) keepOnly(members []raft.MemberStatus) {
	for address, conn := range w.conns {
		if !slices.ContainsFunc(members, func(m raft.MemberStatus) bool { return m.Address == address }) {
			conn.Close()
			delete(w.conns, address)
		}
	}
}

// ask asks all members at once how they are, this one too.
func (w *watcher) ask(members []raft.MemberStatus) census {
	w.keepOnly(members)
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	bound := w.cfg.Clock.NewTimer(askTime)
	defer bound.Stop()
	answers := make([]*lockpb.StatusAnswer, len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		if m.ID == w.cfg.Self.ID {
			answers[i], _ = w.Status(ctx, nil)
			continue
		}
		conn, err := w.connection(m.Address)
		if err != nil {
			continue // an address that is none: nobody answers there
		}
		asking.Go(func() {
			a, err := lockpb.NewCellClient(conn).Status(ctx, &lockpb.StatusRequest{})
			if err == nil && a.GetClusterId() == w.cfg.ClusterID && a.GetMemberId() == m.ID {
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
	return censusOf(members, answers)
}

func censusOf(members []raft.MemberStatus, answers []*lockpb.StatusAnswer) census {
	found := make(census)
	for i, a := range answers {
		if a != nil {
			found[members[i].ID] = a
		}
	}
	return found
}

// connection returns that to an address, a new one if there is none.
func (w *watcher) connection(address string) (*grpc.ClientConn, error) {
	if conn, ok := w.conns[address]; ok {
		return conn, nil
	}
	credentials := w.cfg.Credentials
	if credentials == nil {
		credentials = plain.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return w.cfg.Dial(ctx, address) }))
	if err == nil {
		w.conns[address] = conn
	}
	return conn, err
}

// handOver gives mastership to a member with room on its disk, if this one has none.
func (w *watcher) handOver(members []raft.MemberStatus, found census) {
	if !found[w.cfg.Self.ID].GetDisk().GetLow() {
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
	ctx, cancel := context.WithTimeout(w.ctx, askTime)
	defer cancel()
	w.log.Warn("handing mastership over, for little is free on this replica's disk", "free", found[w.cfg.Self.ID].GetDisk().GetFree())
	if err := w.raft.TransferLeadership(ctx, avoid...); err != nil {
		w.log.Warn("mastership was not handed over", "error", err)
	}
}

// raiseLevel raises the cell's level by one once every member knows the next.
func (w *watcher) raiseLevel(members []raft.MemberStatus, found census) {
	for _, m := range members {
		if a, ok := found[m.ID]; !ok || a.GetKnownLevel() <= found[w.cfg.Self.ID].GetLevel() {
			return
		}
	}
	next := found[w.cfg.Self.ID].GetLevel() + 1
	w.log.Info("raising the level of the cell", "level", next)
	w.command(&storepb.Command{Command: &storepb.Command_RaiseLevel{RaiseLevel: &storepb.RaiseLevel{Level: next}}})
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
func (w *watcher) compareHashes(last comparison, members []raft.MemberStatus, found census) comparison {
	if last.since += watchTime; last.sequence != 0 && last.since < compareTime {
		return last
	}
	w.mu.Lock()
	changed := w.mu.machine.sequence != last.sequence
	w.mu.Unlock()
	if !changed && last.settled {
		return last
	}
	check := &storepb.CheckHash{}
	for _, note := range slices.Backward(found[w.cfg.Self.ID].GetHashNotes()) {
		hash, hashes, ok := agreed(note.GetIndex(), members, found)
		if ok {
			check.Index, check.Hash = note.GetIndex(), hash
			break
		}
		if hashes > 1 {
			w.log.Error("replicas have different records, and too few answer to tell which are right", "entry", note.GetIndex())
		}
	}
	sequence := w.command(&storepb.Command{Command: &storepb.Command_CheckHash{CheckHash: check}})
	return comparison{sequence: sequence, settled: !changed}
}

// agreed returns the hash that a majority of the voters noted at an entry, if one did, and how many
// different ones there are.
func agreed(index uint64, members []raft.MemberStatus, found census) (hash uint64, hashes int, ok bool) {
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
			return hash, len(votes), true
		}
	}
	return 0, len(votes), false
}

// notesToWire returns what a replica noted of its hash.
func notesToWire(notes []store.HashNote) []*lockpb.HashNote {
	var all []*lockpb.HashNote
	for _, n := range notes {
		all = append(all, &lockpb.HashNote{Index: n.Index, Hash: n.Hash})
	}
	return all
}
