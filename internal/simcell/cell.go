// Package simcell runs a whole cell with its clients in one process and in virtual time: the real
// master, raft, store and client, with all their goroutines and gRPC, over a network, clocks and
// disks that a test can make misbehave. A test uses it inside testing/synctest, where a minute
// passes as soon as nobody has anything to do.
//
// Every host has a clock of its own. A frozen host does nothing, as a stopped process or a paused
// virtual machine: nothing comes from it and its timers do not fire, while time passes for it as
// for all; what runs in the test itself must not call its client meanwhile. A killed replica
// forgets what it had not synced.
package simcell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/clock"
	"lockfs/internal/simcell/simnet"
	"lockfs/lockpb"
	"lockfs/master"
	"lockfs/raft"
	"lockfs/store"
)

// Name is the cell's.
const Name = "sim"

const clusterID = 0x51

// Options say what cell to run. The zero value is three replicas with lockfs's own lease and grace.
type Options struct {
	Replicas     int
	Lease, Grace time.Duration
	Seed         uint64        // of the network's delays
	Delay        time.Duration // of each message, at most
	SyncTime     time.Duration // of a disk
}

// Cell is a cell and its clients.
type Cell struct {
	Net      *simnet.Network
	Replicas []*Replica

	t        testing.TB
	options  Options
	clients  []*Client
	watchdog *time.Timer
}

// Host is a machine of its own.
type Host struct {
	Name  string
	Clock *clock.Virtual
	net   *simnet.Network
}

// Freeze stops the host, and Thaw lets it go on.
func (h *Host) Freeze() {
	h.Clock.Freeze()
	h.net.Freeze(h.Name)
}

func (h *Host) Thaw() {
	h.net.Thaw(h.Name)
	h.Clock.Thaw()
}

// Replica is one replica on its host, with its disks.
type Replica struct {
	*Host
	cell   *Cell
	member raft.Member
	disk   *raft.MemoryDisk
	path   string // of the checkpoint file

	// Level, where not 0, is the highest that the replica pretends to know; Disk is what it says of
	// its disk; MayStop says that the test expects it to stop of itself. For the next Start.
	Level   uint32
	Disk    master.Disk
	MayStop bool

	running *master.Replica // nil while it is down
	db      *store.DB
	server  *grpc.Server
	serving sync.WaitGroup
}

// Client is a client on a host of its own.
type Client struct {
	*Host
	*client.Client
}

// New starts a cell. It is stopped when the test ends.
func New(t testing.TB, options Options) *Cell {
	t.Helper()
	if options.Replicas == 0 {
		options.Replicas = 3
	}
	if options.Lease == 0 {
		options.Lease, options.Grace = lockfs.DefaultLease, lockfs.DefaultGrace
	}
	c := &Cell{t: t, options: options, Net: simnet.New(options.Seed)}
	c.Net.Delay(options.Delay)
	folder := t.TempDir()
	for i := range options.Replicas {
		name := fmt.Sprintf("r%d", i+1)
		r := &Replica{
			Host: c.host(name), cell: c, disk: raft.NewMemoryDisk(), path: filepath.Join(folder, name),
			member: raft.Member{ID: uint64(i + 1), Name: name, Address: name},
		}
		r.disk.SyncTime = options.SyncTime
		c.Replicas = append(c.Replicas, r)
	}
	t.Cleanup(c.stop)
	c.watchdog = time.AfterFunc(longest, c.stuck)
	for _, r := range c.Replicas {
		r.Start()
	}
	return c
}

func (c *Cell) host(name string) *Host {
	return &Host{Name: name, Clock: clock.NewVirtual(), net: c.Net}
}

// logger is silent unless LOCKFS_TEST_LOG is set.
func (h *Host) logger() *slog.Logger {
	if os.Getenv("LOCKFS_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	return slog.New(slog.NewTextHandler(os.Stderr, options)).With("host", h.Name)
}

// Start starts the replica on what its disks have.
func (r *Replica) Start() {
	t := r.cell.t
	t.Helper()
	var err error
	if r.db, err = store.OpenDB(r.path); err != nil {
		t.Fatal(err)
	}
	if r.Level != 0 {
		r.db.PretendLevel(r.Level)
	}
	disk := r.Disk
	members := make([]raft.Member, len(r.cell.Replicas))
	for i, other := range r.cell.Replicas {
		members[i] = other.member
	}
	r.running, err = master.Start(master.Config{
		Cell: Name, Self: r.member, ClusterID: clusterID, Members: members,
		Lease: r.cell.options.Lease, Grace: r.cell.options.Grace, Limits: lockfs.DefaultLimits,
		DB: r.db, Storage: r.disk.Open(),
		Clock: r.Clock, Wall: time.Now, Logger: r.logger(),
		Disk: func() master.Disk { return disk },
		Dial: r.net.Dialer(r.Name),
	})
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	r.server = grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	r.running.Register(r.server)
	listener := r.net.Listen(r.Name)
	r.serving.Go(func() { r.server.Serve(listener) })
}

// Kill ends the replica as kill -9 and a power cut would.
func (r *Replica) Kill() {
	r.net.Unlisten(r.Name)
	r.disk.Crash()
	r.end(atOnce())
}

// Stop ends the replica as SIGTERM would.
func (r *Replica) Stop() { r.end(context.Background()) }

// atOnce is the context of what must not wait for anybody.
func atOnce() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (r *Replica) end(ctx context.Context) {
	r.running.Stop(ctx) // that the mastership could not be handed over is no news to a test
	r.net.Unlisten(r.Name)
	r.server.Stop()
	r.serving.Wait()
	if err := r.db.Close(); err != nil {
		r.cell.t.Errorf("%s: %v", r.Name, err)
	}
	r.running = nil
}

// Change changes what the replica has on disk while it is down.
func (r *Replica) Change(change func(s *store.State)) {
	db, err := store.OpenDB(r.path)
	if err != nil {
		r.cell.t.Fatal(err)
	}
	state, position, err := db.Load(Name)
	if err == nil {
		change(state)
		err = db.Replace(state, position)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		r.cell.t.Fatal(err)
	}
}

// Up reports whether the replica runs.
func (r *Replica) Up() bool { return r.running != nil }

// Err returns why the replica has stopped of itself, else nil.
func (r *Replica) Err() error {
	select {
	case <-r.running.Done():
		return r.running.Err()
	default:
		return nil
	}
}

// Status is what the replica says of itself.
func (r *Replica) Status() *lockpb.StatusAnswer {
	a, err := r.running.Status(context.Background(), nil)
	if err != nil {
		r.cell.t.Fatal(err)
	}
	return a
}

// Isolate cuts the replica off from all other replicas and from all clients, and Rejoin heals that.
func (r *Replica) Isolate() { r.others(r.net.Cut) }
func (r *Replica) Rejoin()  { r.others(r.net.Heal) }

func (r *Replica) others(do func(a, b string)) {
	for _, other := range r.cell.Replicas {
		if other != r {
			do(r.Name, other.Name)
		}
	}
	for _, c := range r.cell.clients {
		do(r.Name, c.Name)
	}
}

// Master waits until a replica that is not frozen or isolated is in office, and returns it. Of two
// that think so it is the one of the higher epoch.
func (c *Cell) Master() *Replica {
	c.t.Helper()
	var found *Replica
	c.Until("a master", time.Minute, func() bool {
		found = nil
		for _, r := range c.Replicas {
			if !r.Up() || r.Clock.Frozen() {
				continue
			}
			if s := r.Status(); s.GetRole() == "master" && (found == nil || s.GetEpoch() > found.Status().GetEpoch()) {
				found = r
			}
		}
		return found != nil
	})
	return found
}

// Until waits for something to become true, and fails the test if that takes longer than limit.
func (c *Cell) Until(what string, limit time.Duration, is func() bool) {
	c.t.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// longest is how long a story may take, in its own time. Without a bound a wait that never ends
// would let that time run for ever, since replicas always have something to do.
const longest = 15 * time.Minute

// stuck ends everything, and says where everybody was.
func (c *Cell) stuck() {
	var b strings.Builder
	fmt.Fprintf(&b, "%s has not ended within %v of its own time\n", c.t.Name(), longest)
	for _, r := range c.Replicas {
		if r.Up() {
			fmt.Fprintf(&b, "%s: %v\n", r.Name, r.Status())
		}
	}
	stacks := make([]byte, 1<<20)
	panic(b.String() + string(stacks[:runtime.Stack(stacks, true)]))
}

// Client adds a host with a client. The client is closed when the test ends.
func (c *Cell) Client(name string) *Client {
	c.t.Helper()
	h := c.host(name)
	var addresses []string
	for _, r := range c.Replicas {
		addresses = append(addresses, r.Name)
	}
	cl, err := client.Open(client.Config{
		Cell: Name, Addresses: addresses, Host: name, Clock: h.Clock, Dial: c.Net.Dialer(name), Logger: h.logger(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	added := &Client{h, cl}
	c.clients = append(c.clients, added)
	return added
}

// stop lets everybody go on and ends it all.
func (c *Cell) stop() {
	c.watchdog.Stop()
	for _, cl := range c.clients {
		cl.Thaw()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		cl.Close(ctx) // its session may be lost, or there may be no master
		cancel()
	}
	for _, r := range c.Replicas {
		r.Thaw()
	}
	for _, r := range c.Replicas {
		if r.Up() {
			if err := r.Err(); err != nil && !r.MayStop {
				c.t.Errorf("%s stopped of itself: %v", r.Name, err)
			}
			r.end(atOnce())
		}
	}
	time.Sleep(lingering)
}

// lingering is how long gRPC may still say good-bye on connections that are closed. Time stands
// still when a test has returned, and these goroutines must have ended by then.
const lingering = 10 * time.Second
