package main

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"lockfs/raft"
)

func TestCheckMember(t *testing.T) {
	members := []raft.Member{{Name: "r1", Address: "10.0.0.1:7420"}, {Name: "r2", Address: "r2.example.com:7420"}}
	shows := func(certs ...*x509.Certificate) *grpcpeer.Peer {
		return &grpcpeer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: certs}}}
	}
	byIP := &x509.Certificate{IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}}
	for _, test := range []struct {
		name   string
		caller *grpcpeer.Peer
		ok     bool
	}{
		{"a member by its address", shows(byIP), true},
		{"a member by its name", shows(&x509.Certificate{DNSNames: []string{"r2.example.com"}}), true},
		{"a client of another host", shows(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(10, 0, 0, 9)}}), false},
		{"a client without addresses", shows(&x509.Certificate{}), false},
		{"who only passes a member's certificate on", shows(&x509.Certificate{}, byIP), false},
		{"nobody", shows(), false},
		{"no TLS", &grpcpeer.Peer{}, true},
	} {
		if err := checkMember(test.caller, members); (err == nil) != test.ok {
			t.Errorf("%s: %v, want ok %v", test.name, err, test.ok)
		}
	}
}
