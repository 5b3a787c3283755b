package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/master"
	"lockfs/raft"
	"lockfs/store"
)

// stopTime bounds the handing over of mastership; a lockfsd ends within ten seconds of SIGTERM.
const stopTime = 7 * time.Second

// maxMessage is the largest message a replica takes: a batch of log entries for a follower that
// lags, each of which can carry many whole files.
const maxMessage = 64 << 20

// How much may be under way to this replica unread, of a stream and of a connection. Without a fixed
// size gRPC measures each connection to find one, with pings beside every small message.
const (
	streamWindow = 2 << 20
	connWindow   = 4 << 20
)

// A daemon is a lockfsd that has its data folder.
type daemon struct {
	*options
	log     *slog.Logger
	who     identity
	members []raft.Member // the first ones; none where it joined
	here    credentials.TransportCredentials
	toPeers credentials.TransportCredentials
	replica atomic.Pointer[master.Replica] // nil between lives
}

// serve is a replica from its data folder up.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	members, err := o.members()
	if err != nil {
		return err
	}
	here, toPeers, err := o.credentials()
	if err != nil {
		return err
	}
	// Before the folder is claimed: a start that cannot listen is to leave nothing there that would
	// hold the next one, with other flags, to what was wrong with this.
	listener, health, err := o.bind()
	if err != nil {
		return err
	}
	defer func() { listener.Close() }()
	if health != nil {
		defer health.Close()
	}
	who, release, err := claim(o.data, o.compare, func() (identity, error) { return o.found(ctx, toPeers) })
	if err != nil {
		return err
	}
	defer release()
	d := &daemon{options: o, log: log, who: who, members: members, here: here, toPeers: toPeers}
	if who.Joined {
		d.members = nil
	}
	d.comparePorts()
	if health != nil {
		defer startHealth(health, d.healthy)()
	}
	for {
		err := d.live(ctx, listener)
		if !errors.Is(err, unix.ENOSPC) {
			return d.explain(err)
		}
		log.Error("the disk is full: this replica steps aside until there is room", "error", err, "room", roomBytes)
		if !awaitRoom(ctx, o.data, log) {
			return nil
		}
		if listener, err = net.Listen("tcp", o.listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
}

// live is one life of the replica: it opens its files, serves until ctx ends or it stops of itself,
// and closes all again. More than one is lived only where the disk was full in between.
func (d *daemon) live(ctx context.Context, listener net.Listener) error {
	defer listener.Close()
	log, err := raft.OpenWAL(filepath.Join(d.data, walFolder), d.who.Cluster, d.who.Member, d.log)
	if err != nil {
		return err
	}
	replica, db, err := d.start(ctx, log)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	defer db.Close()
	server := d.server(replica)
	replica.Register(server)
	d.replica.Store(replica)
	defer d.replica.Store(nil)
	var serving sync.WaitGroup
	callers := &callers{Listener: listener, open: make(map[net.Conn]struct{})}
	serving.Go(func() { server.Serve(callers) }) // ends with Stop
	err = d.watch(ctx, replica)
	stop(ctx, replica, d.log)
	callers.close() // gRPC would wait two minutes for who has connected and says nothing
	server.Stop()
	serving.Wait()
	return err
}

// start starts the replica on what the state file holds, or, where that cannot be trusted, on what
// is made in its place.
func (d *daemon) start(ctx context.Context, log raft.Storage) (*master.Replica, *store.DB, error) {
	db, err := d.openState(log)
	if err == nil {
		var replica *master.Replica
		if replica, err = master.Start(d.config(db, log)); err == nil {
			return replica, db, nil
		}
		err = errors.Join(err, db.Close())
	}
	if !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, errGone) && !errors.Is(err, raft.ErrGap) {
		return nil, nil, err
	}
	if db, err = d.mend(ctx, log, err); err != nil {
		return nil, nil, err
	}
	replica, err := master.Start(d.config(db, log))
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return replica, db, nil
}

func (d *daemon) config(db *store.DB, log raft.Storage) master.Config {
	return master.Config{
		Cell: d.cell, Self: d.self(), ClusterID: d.who.Cluster, Members: d.members,
		Joining: d.who.Joined, Incarnation: d.who.Incarnation,
		Lease: d.lease, Grace: d.grace, Limits: lockfs.DefaultLimits,
		DB: db, Storage: log, TailBytes: tailBytes(diskOf(d.data)),
		Clock: clock.Monotonic(), Wall: time.Now, Logger: d.log,
		Disk: func() master.Disk { return diskOf(d.data) },
		Dial: dialTCP, Credentials: d.toPeers,
	}
}

// self is this replica as the data folder knows it.
func (d *daemon) self() raft.Member {
	self := raft.Member{ID: d.who.Member, Name: d.name}
	known, _ := parseMembers(d.cell, d.who.Peers) // were parsed before they were written
	for _, m := range known {
		if m.Name == d.name {
			self.Address = m.Address
		}
	}
	return self
}

// healthy returns nil while the replica serves and knows a master, else what is missing.
func (d *daemon) healthy() error {
	if replica := d.replica.Load(); replica != nil {
		return replica.Healthy()
	}
	return errors.New("the replica is starting, or waits for room on its disk")
}

// explain says what the way back is from an end that no start helps against. A state that differs
// from the others' is put aside, so that the next start takes theirs.
func (d *daemon) explain(err error) error {
	path := filepath.Join(d.data, stateFile)
	switch {
	case errors.Is(err, raft.ErrReplaced):
		return d.lost()
	case errors.Is(err, raft.ErrRemoved):
		return fmt.Errorf("%s was removed from cell %s: its data folder is of no more use", d.name, d.cell)
	case errors.Is(err, raft.ErrDamaged):
		if len(d.who.Peers) == 1 && !d.who.Joined {
			return fmt.Errorf("%w. Restore a backup into a new folder with lockfsd restore", err)
		}
		return fmt.Errorf("%w. What this replica has promised to the others is lost with it, so it takes no part any more. "+
			"To begin anew: lockfs member replace %s HOST:PORT, then start it with an empty folder and --join", err, d.name)
	case errors.Is(err, store.ErrDiffers):
		return errors.Join(fmt.Errorf("%w. Its state is put aside as %s; the next start takes that of the others", err, stateFile+asideSuffix),
			os.Rename(path, path+asideSuffix))
	}
	return err
}

// bind listens at --listen, and at --http if that is given.
func (o *options) bind() (listener, health net.Listener, err error) {
	if listener, err = net.Listen("tcp", o.listen); err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	if o.http == "" {
		return listener, nil, nil
	}
	if health, err = net.Listen("tcp", o.http); err != nil {
		listener.Close()
		return nil, nil, fmt.Errorf("--http: %w", err)
	}
	return listener, health, nil
}

// comparePorts warns of what is right only where something in between takes one port for the other.
func (d *daemon) comparePorts() {
	self := d.self()
	_, here, _ := net.SplitHostPort(d.listen)
	_, there, _ := net.SplitHostPort(self.Address)
	if here != there {
		d.log.Warn("--listen has another port than this replica has in the list of members, where the others look for it",
			"listen", d.listen, "member", self.Name+"="+self.Address)
	}
}

// stop ends the replica, and tells where nobody could take mastership over.
func stop(ctx context.Context, replica *master.Replica, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := replica.Stop(ctx); err != nil {
		log.Warn("mastership was not handed over", "err", err)
	}
}

// watch tells how the replica does until ctx ends; its error is why the replica stopped of itself.
func (d *daemon) watch(ctx context.Context, replica *master.Replica) error {
	if ready, err := await(ctx, replica, d.log); !ready {
		return err
	}
	if err := d.compareTimes(replica); err != nil {
		return err
	}
	d.log.Info("ready", "cell", d.cell, "replica", d.name, "listen", d.listen)
	select {
	case <-ctx.Done():
		d.log.Info("stopping")
		return nil
	case <-replica.Done():
		return stopped(replica)
	}
}

func stopped(replica *master.Replica) error {
	return fmt.Errorf("replica stopped: %w", replica.Err())
}

// compareTimes refuses --lease and --grace where they were given and the cell has other values:
// whoever changes the flag must learn that the cell does not follow it.
func (o *options) compareTimes(replica *master.Replica) error {
	lease, grace, ok := replica.Times()
	if ok && o.leaseGiven && lease != o.lease {
		return fmt.Errorf("cell %s has a lease of %v since its first start, which --lease %v does not change", o.cell, lease, o.lease)
	}
	if ok && o.graceGiven && grace != o.grace {
		return fmt.Errorf("cell %s has a grace period of %v since its first start, which --grace %v does not change", o.cell, grace, o.grace)
	}
	return nil
}

// credentials returns those of this replica's port, and those for calling others.
func (o *options) credentials() (here, there credentials.TransportCredentials, err error) {
	serving, err := o.security.Server()
	if err != nil {
		return nil, nil, err
	}
	calling, err := o.security.Client()
	if err != nil {
		return nil, nil, err
	}
	if serving == nil {
		return insecure.NewCredentials(), insecure.NewCredentials(), nil
	}
	return credentials.NewTLS(serving), credentials.NewTLS(calling), nil
}

// server returns the server for clients and peers.
func (d *daemon) server(replica *master.Replica) *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(d.here),
		grpc.StreamInterceptor((&roster{
			known: func() []raft.Member { return d.known(replica) },
			ask:   func(ctx context.Context) []raft.Member { return d.toldBy(ctx, d.known(replica)) },
			now:   time.Now,
		}).guard),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		// Clients ping as often as their lease makes them; a replica that cannot take that is
		// overloaded by more than pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		// A host that is gone without a word must not keep its streams.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
}

// known returns who is in the cell; of a replica that was not told yet, who was when it began.
func (d *daemon) known(replica *master.Replica) []raft.Member {
	if now := replica.Members(); len(now) > 0 {
		return now
	}
	then, _ := parseMembers(d.cell, d.who.Peers) // were parsed before they were written
	return then
}

// toldBy returns who is in the cell as some members say, or those of --join.
func (d *daemon) toldBy(ctx context.Context, members []raft.Member) []raft.Member {
	addresses := slices.Clone(d.join)
	for _, m := range members {
		if m.ID != d.who.Member {
			addresses = append(addresses, m.Address)
		}
	}
	answer, err := askJoin(ctx, addresses, d.toPeers, d.cell, d.name)
	if err != nil {
		return nil
	}
	return membersOf(answer)
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", address)
}
