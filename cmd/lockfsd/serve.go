package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

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

// serve is a replica from its data folder up.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	self, members, err := o.members()
	if err != nil {
		return err
	}
	server, toPeers, err := o.wire(members)
	if err != nil {
		return err
	}
	// Before the folder is claimed: a start that cannot listen is to leave nothing there that would
	// hold the next one, with other flags, to what was wrong with this.
	listener, health, err := o.bind()
	if err != nil {
		return err
	}
	defer listener.Close()
	if health != nil {
		defer health.Close()
	}
	who := newIdentity(o.cell, o.name, o.peers)
	release, err := claim(o.data, who)
	if err != nil {
		return err
	}
	defer release()
	o.comparePorts(self, log)
	db, err := store.OpenDB(filepath.Join(o.data, stateFile))
	if err != nil {
		return err
	}
	defer db.Close()
	storage, err := raft.OpenWAL(filepath.Join(o.data, walFolder), who.Cluster, who.Member, log)
	if err != nil {
		return err
	}
	replica, err := master.Start(master.Config{
		Cell: o.cell, Self: self, ClusterID: who.Cluster, Members: members,
		Lease: o.lease, Grace: o.grace, Limits: lockfs.DefaultLimits,
		DB: db, Storage: storage,
		Clock: clock.Monotonic(), Wall: time.Now, Logger: log,
		Dial: dialTCP, Credentials: toPeers,
	})
	if err != nil {
		return err
	}
	replica.Register(server)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) }) // ends with Stop
	err = o.watch(ctx, replica, health, log)
	stop(ctx, replica, log)
	server.Stop()
	serving.Wait()
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
func (o *options) comparePorts(self raft.Member, log *slog.Logger) {
	_, here, _ := net.SplitHostPort(o.listen)
	_, there, _ := net.SplitHostPort(self.Address)
	if here != there {
		log.Warn("--listen has another port than this replica has in --peers, where the others look for it",
			"listen", o.listen, "peers", self.Name+"="+self.Address)
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
func (o *options) watch(ctx context.Context, replica *master.Replica, health net.Listener, log *slog.Logger) error {
	if health != nil {
		defer startHealth(health, replica.Healthy)()
	}
	if ready, err := await(ctx, replica, log); !ready {
		return err
	}
	if err := o.compareTimes(replica); err != nil {
		return err
	}
	log.Info("ready", "cell", o.cell, "replica", o.name, "listen", o.listen)
	select {
	case <-ctx.Done():
		log.Info("stopping")
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

// wire returns the server for clients and peers, and the credentials for calling peers.
func (o *options) wire(members []raft.Member) (*grpc.Server, credentials.TransportCredentials, error) {
	serving, err := o.security.Server()
	if err != nil {
		return nil, nil, err
	}
	calling, err := o.security.Client()
	if err != nil {
		return nil, nil, err
	}
	here, there := insecure.NewCredentials(), insecure.NewCredentials()
	if serving != nil {
		here, there = credentials.NewTLS(serving), credentials.NewTLS(calling)
	}
	server := grpc.NewServer(
		grpc.Creds(here),
		grpc.StreamInterceptor(membersOnly(members)),
		grpc.MaxRecvMsgSize(maxMessage),
		// Clients ping as often as their lease makes them; a replica that cannot take that is
		// overloaded by more than pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		// A host that is gone without a word must not keep its streams.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	return server, there, nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", address)
}
