package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
	"lockfs/raft"
	"lockfs/store"
	"lockfs/store/storepb"
)

// Config says which replica of which cell this is, and what of the world it uses.
type Config struct {
	Cell      string
	Self      raft.Member
	ClusterID uint64
	Members   []raft.Member // of a new cell, Self among them

	// What a new cell starts with; a cell that has values keeps them.
	Lease, Grace time.Duration
	Limits       lockfs.Limits

	// Joining: a member that was added to a running cell, which tells it everything; no Members then.
	Joining     bool
	Incarnation uint64 // of the data folder, see raft.Config

	DB      *store.DB // checkpoints; the caller closes it after Stop
	Storage raft.Storage
	Tick    time.Duration // raft's; 0 is raft's default

	// TailBytes is how much of the log is kept for stragglers, see raft.Config; 0 is raft's default.
	TailBytes uint64

	Clock  clock.Clock      // leases, delays and raft's ticks; default CLOCK_MONOTONIC
	Wall   func() time.Time // written down as times of change, decides nothing; default time.Now
	Disk   func() Disk      // of the data; default: unknown
	Logger *slog.Logger     // default discards

	// To the other replicas.
	Dial        func(ctx context.Context, address string) (net.Conn, error)
	Credentials credentials.TransportCredentials
}

// Replica is one replica of a cell, running. It serves clients while it leads.
type Replica struct {
	cfg   Config
	log   *slog.Logger
	raft  *raft.Replica
	ready chan struct{} // closed once a master and the cell's settings are known
	stop  context.CancelFunc
	ctx   context.Context // until Stop
	work  sync.WaitGroup

	kick chan struct{} // the time loop should look at the deadline again; holds one

	mu struct { // never held across a wait
		sync.Mutex
		state      *store.State
		machine    *machine
		leadership raft.Leadership
		over       chan struct{} // closed when the mastership ends
		known      bool          // ready is closed
		applied    uint64
		progress   *sync.Cond     // applied grew, or there are items, or the replica stops
		renewals   []confirmation // confirmed by rounds of their own: leases come before everything else
		confirm    []confirmation
		wake       clock.Instant // when keepTime will look at the machine of itself
		streams    map[*stream]bool
		serial     uint64 // of the newest stream
		listing    listing
		stopping   bool
	}

	lockpb.UnimplementedCellServer
}

// Start loads the records and joins the cell. It fails where what is on disk cannot be trusted or
// is another cell's.
func Start(cfg Config) (*Replica, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.Monotonic()
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	state, position, err := cfg.DB.Load(cfg.Cell)
	if err != nil {
		return nil, err
	}
	if have := state.ClusterID(); have != 0 && have != cfg.ClusterID {
		return nil, &lockfs.Error{Op: "start", Kind: lockfs.ErrCell,
			Detail: fmt.Sprintf("the records are of cluster %x, this replica is of %x", have, cfg.ClusterID)}
	}
	r := &Replica{cfg: cfg, log: cfg.Logger, ready: make(chan struct{}), kick: make(chan struct{}, 1)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.mu.state, r.mu.applied = state, state.Applied()
	r.mu.machine = newMachine(state, seedOf(cfg), cfg.Logger)
	r.mu.wake = cfg.Clock.Now() // keepTime looks at once
	r.mu.progress = sync.NewCond(&r.mu)
	r.mu.streams = make(map[*stream]bool)
	// What raft tells before it is known here waits: a cell of one has its leader at once.
	r.mu.Lock()
	r.raft, err = raft.Start(raft.Config{
		ClusterID: cfg.ClusterID, ID: cfg.Self.ID, Members: cfg.Members, Joining: cfg.Joining, Incarnation: cfg.Incarnation,
		Machine: (*replicated)(r), Position: position, Storage: cfg.Storage,
		TailBytes: cfg.TailBytes, Tick: cfg.Tick, Clock: cfg.Clock, Dial: cfg.Dial, Credentials: cfg.Credentials, Logger: cfg.Logger,
	})
	r.mu.Unlock()
	if err != nil {
		r.stop()
		return nil, err
	}
	r.work.Go(r.keepTime)
	r.work.Go(r.watch)
	r.work.Go(func() { r.confirmLoop(&r.mu.renewals) })
	r.work.Go(func() { r.confirmLoop(&r.mu.confirm) })
	return r, nil
}

func seedOf(cfg Config) *storepb.Seed {
	return &storepb.Seed{
		ClusterId: cfg.ClusterID,
		LeaseMs:   cfg.Lease.Milliseconds(), GraceMs: cfg.Grace.Milliseconds(),
		Limits: &storepb.Limits{FileBytes: cfg.Limits.FileBytes, Nodes: cfg.Limits.Nodes,
			Bytes: cfg.Limits.Bytes, Children: cfg.Limits.Children},
	}
}

// Register makes s serve clients and peers.
func (r *Replica) Register(s *grpc.Server) {
	lockpb.RegisterCellServer(s, r)
	r.raft.Register(s)
}

// Ready is closed once this replica knows a master, itself perhaps, and what Times tells.
func (r *Replica) Ready() <-chan struct{} { return r.ready }

// Done is closed when the replica has stopped of itself, for the reason that Err tells.
func (r *Replica) Done() <-chan struct{} { return r.raft.Done() }

// Err waits for Done, and returns why the replica stopped of itself, or nil after Stop.
func (r *Replica) Err() error { return r.raft.Err() }

// Healthy returns nil while this replica runs and knows a master, else what is missing.
func (r *Replica) Healthy() error {
	select {
	case <-r.raft.Done():
		return fmt.Errorf("the replica has stopped: %w", errors.Join(r.raft.Err()))
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.leadership.Leader == 0 {
		return errors.New("no master is known")
	}
	return nil
}

// Times returns the cell's longest lease and grace period; ok is false while the cell has none.
func (r *Replica) Times() (lease, grace time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.state.Lease(), r.mu.state.Grace(), r.mu.state.ClusterID() != 0
}

// Stop hands mastership over, if this replica has it and ctx allows, and ends everything.
func (r *Replica) Stop(ctx context.Context) error {
	r.mu.Lock()
	leading := r.mu.leadership.Leading
	r.mu.Unlock()
	var err error
	if leading && len(r.raft.Status().Members) > 1 {
		err = r.raft.TransferLeadership(ctx)
	}
	r.mu.Lock()
	r.mu.stopping = true
	r.endStreams()
	r.mu.progress.Broadcast()
	r.mu.Unlock()
	r.stop()
	r.raft.Stop()
	r.work.Wait()
	return err
}

// ---- What raft carries -----------------------------------------------------------------------

// replicated is the Replica as raft sees it. Raft calls it from one goroutine, in log order.
type replicated Replica

// Apply changes the records by the proposals of one entry, which may be none.
func (a *replicated) Apply(index uint64, proposals [][]byte) error {
	r := (*Replica)(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, data := range proposals {
		p := new(storepb.Proposal)
		if err := proto.Unmarshal(data, p); err != nil {
			return fmt.Errorf("entry %d holds what is not a proposal: %w", index, err)
		}
		outcome, err := r.mu.state.Apply(index, p)
		if err != nil {
			return fmt.Errorf("entry %d: %w", index, err)
		}
		r.mu.machine.applied(r.moment(), p, outcome)
	}
	r.mu.applied = index
	r.noticeReady()
	r.mu.progress.Broadcast()
	r.flush()
	return nil
}

// noticeReady closes ready once a master is known and the cell has its settings. mu is held.
func (r *Replica) noticeReady() {
	if !r.mu.known && r.mu.leadership.Leader != 0 && r.mu.state.ClusterID() != 0 {
		r.mu.known = true
		close(r.ready)
	}
}

// Checkpoint takes hold of what has changed; the function returned writes it.
func (a *replicated) Checkpoint(position []byte) func() error {
	r := (*Replica)(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.mu.state.Checkpoint(position)
	return func() error { return r.cfg.DB.Save(c) }
}

// Snapshot opens the last checkpoint.
func (a *replicated) Snapshot() (raft.Snapshot, error) { return a.cfg.DB.Snapshot() }

// Restore takes another replica's records for its own.
func (a *replicated) Restore(from io.Reader) (position []byte, applied uint64, err error) {
	r := (*Replica)(a)
	state, position, err := r.cfg.DB.Restore(from, r.cfg.Cell)
	if err != nil {
		return nil, 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.state, r.mu.applied = state, state.Applied()
	r.mu.machine.leave()
	r.mu.machine.state = state
	r.noticeReady()
	r.mu.progress.Broadcast()
	return position, state.Applied(), nil
}

// Leadership begins a mastership, or ends one.
func (a *replicated) Leadership(l raft.Leadership) {
	r := (*Replica)(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.mu.leadership
	r.mu.leadership = l
	r.noticeReady()
	if before.Leading && (!l.Leading || l.Term != before.Term) {
		r.log.Info("no longer the master", "term", l.Term, "leader", l.Leader)
		r.mu.machine.leave()
		r.mu.renewals, r.mu.confirm = nil, nil
		close(r.mu.over)
		r.endStreams()
	}
	if l.Leading && (!before.Leading || l.Term != before.Term) {
		r.mu.over = make(chan struct{})
		r.mu.machine.lead(r.moment(), l.Term)
		r.flush()
	}
	r.mu.progress.Broadcast()
}

// ---- The world around the machine --------------------------------------------------------------

func (r *Replica) moment() moment {
	return moment{now: r.cfg.Clock.Now(), wall: r.cfg.Wall()}
}

// flush hands on what the machine's last input gave. mu is held.
func (r *Replica) flush() {
	m := r.mu.machine
	r.propose()
	for _, reply := range m.replies {
		r.deliver(reply)
	}
	m.replies = m.replies[:0]
	for _, w := range m.unsure {
		r.confirmThen(func(at moment) { m.confirmed(at, w) })
	}
	m.unsure = m.unsure[:0]
	if due, ok := m.deadline(); ok && due < r.mu.wake || len(m.proposals) > 0 {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}

// propose hands the machine's proposals to raft, in order. What raft has no room for waits for
// the next tick.
func (r *Replica) propose() {
	m := r.mu.machine
	for len(m.proposals) > 0 {
		p := m.proposals[0]
		data, err := proto.Marshal(p)
		if err == nil {
			err = r.raft.Propose(m.epoch, data)
		}
		switch {
		case errors.Is(err, raft.ErrOverloaded):
			return
		case err == nil, errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrStopped):
			// Where this replica has ceased to lead Leadership clears everything.
		default:
			r.log.Error("a proposal is refused", "commands", len(p.GetCommands()), "bytes", len(data), "error", err)
			m.rejected(p, &lockfs.Error{Kind: lockfs.ErrTooLarge, Detail: err.Error()})
		}
		m.proposals = m.proposals[1:]
	}
	m.proposals = nil
}

// overloadWait is how soon proposals are offered again that raft had no room for.
const overloadWait = 10 * time.Millisecond

// keepTime calls the machine when something is due.
func (r *Replica) keepTime() {
	timer := r.cfg.Clock.NewTimer(r.tick())
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.kick:
		case <-timer.C():
		}
		timer.Reset(r.tick())
	}
}

// tick does what is due and returns how long there is nothing to do.
func (r *Replica) tick() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.moment()
	if due, ok := r.mu.machine.deadline(); ok && due <= at.now {
		r.mu.machine.tick(at)
		r.flush()
	}
	r.propose()
	wait := time.Hour
	if due, ok := r.mu.machine.deadline(); ok {
		wait = max(due.Sub(at.now), time.Millisecond)
	}
	if len(r.mu.machine.proposals) > 0 {
		wait = min(wait, overloadWait)
	}
	r.mu.wake = at.now.Add(wait)
	return wait
}

// ---- What must be true when it is answered -------------------------------------------------------

// confirmation is done, with mu held, once a quorum has confirmed that this replica led after it
// was asked for, and everything that was in the log by then is applied. Where leadership is lost
// instead it is dropped.
type confirmation func(at moment)

// confirmThen has do done after the next confirmation. mu is held.
func (r *Replica) confirmThen(do confirmation) {
	r.mu.confirm = append(r.mu.confirm, do)
	r.mu.progress.Broadcast()
}

// confirmLoop lets all that came since the last round share the next.
func (r *Replica) confirmLoop(queue *[]confirmation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		for len(*queue) == 0 && !r.mu.stopping {
			r.mu.progress.Wait()
		}
		if r.mu.stopping {
			return
		}
		r.confirmRound(queue)
	}
}

// confirmRound takes the confirmations that are there and does them. mu is held on entry and on
// return, and let go while raft is asked.
func (r *Replica) confirmRound(queue *[]confirmation) {
	batch, term := *queue, r.mu.leadership.Term
	*queue = nil
	r.mu.Unlock()
	index, err := r.raft.ReadIndex(r.ctx)
	r.mu.Lock()
	if err != nil {
		return // no longer leading, or stopping: the streams end
	}
	for r.mu.applied < index && !r.mu.stopping && r.leads(term) {
		r.mu.progress.Wait()
	}
	for len(batch) > 0 && r.leads(term) && !r.mu.stopping {
		batch = r.confirmSome(batch)
		r.mu.Unlock() // whoever waits is let in between
		r.mu.Lock()
	}
}

// confirmTime is for how long confirmations are done in a row.
const confirmTime = time.Millisecond

// confirmSome does some of the batch and returns the rest.
func (r *Replica) confirmSome(batch []confirmation) []confirmation {
	at := r.moment()
	for len(batch) > 0 && r.cfg.Clock.Now().Sub(at.now) < confirmTime {
		batch[0](at)
		batch = batch[1:]
	}
	r.flush()
	return batch
}

func (r *Replica) leads(term uint64) bool {
	return r.mu.leadership.Leading && r.mu.leadership.Term == term
}

// confirmed waits until a confirmation is done, for calls that are not on a stream.
func (r *Replica) confirmed(ctx context.Context, do confirmation) error {
	done := make(chan struct{})
	r.mu.Lock()
	if !r.mu.machine.inOffice {
		defer r.mu.Unlock()
		return r.notMaster()
	}
	r.confirmThen(func(at moment) {
		do(at)
		close(done)
	})
	over := r.mu.over
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	select {
	case <-done:
		return nil
	case <-over:
		return &lockfs.Error{Kind: lockfs.ErrUnavailable, Detail: "mastership was lost meanwhile"}
	case <-ctx.Done():
		return &lockfs.Error{Kind: lockfs.ErrUnavailable, Detail: "no quorum confirmed in time that this replica leads"}
	case <-r.ctx.Done():
		return &lockfs.Error{Kind: lockfs.ErrUnavailable, Detail: "the replica is stopping"}
	}
}

// notMaster says who is. mu is held.
func (r *Replica) notMaster() error {
	if leader, ok := r.raft.Member(r.mu.leadership.Leader); ok && !r.mu.leadership.Leading {
		return &lockfs.Error{Kind: lockfs.ErrNotMaster, Detail: fmt.Sprintf("the master is %s at %s", leader.Name, leader.Address)}
	}
	return &lockfs.Error{Kind: lockfs.ErrNotMaster, Detail: "no master is in office"}
}
