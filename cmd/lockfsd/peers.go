package main

import (
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"lockfs/raft"
	"lockfs/raft/raftrpc"
)

// membersOnly keeps the log from everyone but replicas. Clients come to the same port with
// certificates of the same authority, and whoever may write to the log of one replica rules the
// cell. A replica is who shows a certificate for the address of a member, which it needs anyway to
// be reached there.
func membersOnly(members func() []raft.Member) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if strings.HasPrefix(info.FullMethod, "/"+raftrpc.Peer_ServiceDesc.ServiceName+"/") {
			caller, _ := grpcpeer.FromContext(stream.Context())
			if err := checkMember(caller, members()); err != nil {
				return status.Error(codes.PermissionDenied, err.Error())
			}
		}
		return handle(srv, stream)
	}
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
