package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"testing"
	"time"

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

// TestRoster is a replica that was away while others joined: it asks those whom it knows, and not
// again and again.
func TestRoster(t *testing.T) {
	shows := func(ip byte) *grpcpeer.Peer {
		return &grpcpeer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{{IPAddresses: []net.IP{net.IPv4(10, 0, 0, ip)}}}}}}
	}
	member := func(ip byte) raft.Member { return raft.Member{Address: fmt.Sprintf("10.0.0.%d:7420", ip)} }
	asked, now := 0, time.Unix(0, 0)
	there := []raft.Member{member(1), member(2)}
	r := &roster{
		known: func() []raft.Member { return []raft.Member{member(1)} },
		ask:   func(context.Context) []raft.Member { asked++; return there },
		now:   func() time.Time { return now },
	}
	for _, step := range []struct {
		ip    byte
		after time.Duration
		ok    bool
		asked int // by then
	}{
		{1, 0, true, 0},
		{2, 0, true, 1},
		{3, 0, false, 1},
		{2, 0, true, 1},
		{3, rosterTime, true, 2}, // it has joined meanwhile
	} {
		if now = now.Add(step.after); step.after > 0 {
			there = append(there, member(3))
		}
		if err := r.admit(t.Context(), shows(step.ip)); (err == nil) != step.ok || asked != step.asked {
			t.Errorf("10.0.0.%d: %v, asked %d times; want ok %v, %d times", step.ip, err, asked, step.ok, step.asked)
		}
	}
}
