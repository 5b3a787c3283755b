package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"lockfs/raft"
	"lockfs/raft/raftrpc"
)

// A roster keeps the log from everyone but replicas. Clients come to the same port with certificates
// of the same authority, and whoever may write to the log of one replica rules the cell. A replica is
// who shows a certificate for the address of a member, which it needs anyway to be reached there.
//
// A replica that was away may not have heard of who leads now. Of a caller whom it does not know it
// asks the members that it knows, who are who they are by their own certificates.
type roster struct {
	known func() []raft.Member                    // from the log
	ask   func(ctx context.Context) []raft.Member // from others
	now   func() time.Time

	mu struct {
		sync.Mutex
		told []raft.Member
		next time.Time // when to ask again, and not before
	}
}

// rosterTime is how often the others are asked at most: anybody can call.
const rosterTime = 5 * time.Second

// guard lets members alone into the service of peers.
func (r *roster) guard(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, "/"+raftrpc.Peer_ServiceDesc.ServiceName+"/") {
		caller, _ := grpcpeer.FromContext(stream.Context())
		if err := r.admit(stream.Context(), caller); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	return handle(srv, stream)
}

func (r *roster) admit(ctx context.Context, caller *grpcpeer.Peer) error {
	if checkMember(caller, r.known()) == nil {
		return nil
	}
	return checkMember(caller, r.others(ctx))
}

// others returns what others said of who is a member, not long ago.
func (r *roster) others(ctx context.Context) []raft.Member {
	r.mu.Lock()
	now := r.now()
	due := !now.Before(r.mu.next)
	if due {
		r.mu.next = now.Add(rosterTime)
	}
	told := r.mu.told
	r.mu.Unlock()
	if !due {
		return told
	}
	told = r.ask(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.told = told
	return told
}

// checkMember returns an error unless the caller's certificate is for the address of a member.
// Without TLS there are none, and nobody but this host's processes to call.
func checkMember(caller *grpcpeer.Peer, members []raft.Member) error {
	if caller == nil {
		return fmt.Errorf("a caller without an address")
	}
	shown, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	if len(shown.State.PeerCertificates) == 0 {
		return fmt.Errorf("a caller without a certificate")
	}
	cert := shown.State.PeerCertificates[0]
	for _, m := range members {
		host, _, err := net.SplitHostPort(m.Address)
		if err == nil && cert.VerifyHostname(host) == nil {
			return nil
		}
	}
	return fmt.Errorf("the certificate of %q is for the address of no member", cert.Subject.CommonName)
}
