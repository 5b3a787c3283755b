package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
	"lockfs/raft/raftrpc"
)

// authority issues certificates into a folder.
type authority struct {
	*testing.T
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	file   string
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{T: t, folder: t.TempDir()}
	a.cert, a.key, a.file, _ = a.make(name, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// issue returns the files of a certificate that a client can show and, with the addresses that it is
// for, a replica.
func (a *authority) issue(name string, addresses ...net.IP) (cert, key string) {
	_, _, cert, key = a.make(name, &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: addresses,
	})
	return cert, key
}

func (a *authority) make(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, string, string) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.ok(err)
	template.Subject = pkix.Name{CommonName: name}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	issuer, issuerKey := a.cert, a.key
	if issuer == nil {
		issuer, issuerKey = template, key // signs itself
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, issuerKey)
	a.ok(err)
	cert, err := x509.ParseCertificate(der)
	a.ok(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	a.ok(err)
	return cert, key, a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", private)
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.folder, name)
	a.ok(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

func (a *authority) ok(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// flags are those that show a certificate of this authority.
func (a *authority) flags(name string, addresses ...net.IP) []string {
	cert, key := a.issue(name, addresses...)
	return []string{"--cert", cert, "--key", key, "--ca", a.file}
}

// client is what a Go client shows.
func (a *authority) client(name string) *tls.Config {
	cert, key := a.issue(name)
	pair, err := tls.LoadX509KeyPair(cert, key)
	a.ok(err)
	authorities := x509.NewCertPool()
	authorities.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: authorities}
}

// TestCertificates runs a cell with certificates: replicas among themselves, the command line and a
// mount. Whoever has none, or one of another authority, or no TLS at all, gets nothing.
func TestCertificates(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cell := newCell(t, proccell.Config{
		ReplicaFlags: ours.flags("replica", net.IPv4(127, 0, 0, 1)), ClientFlags: ours.flags("host"), TLS: ours.client("test"),
	})
	h := &hosts{T: t, cell: cell}
	h.lockfs("put", "/ls/ny1/f", "x")
	master, err := cell.Master(within(t, 10*time.Second))
	h.ok(err)
	h.ok(master.Process().Kill())
	if got := h.lockfs("get", "/ls/ny1/f"); got != "x" {
		t.Errorf("after the master's death the file holds %q", got)
	}

	cert, key := theirs.issue("stranger")
	for name, flags := range map[string][]string{
		"another authority":     theirs.flags("host"),
		"a foreign certificate": {"--cert", cert, "--key", key, "--ca", ours.file}, // trusts the cell, which does not trust it
		"no TLS":                {"--insecure"},
	} {
		t.Run(name, func(t *testing.T) {
			args := slices.Concat(cell.ClientFlags()[:2], flags, []string{"--timeout", "1s", "get", "/ls/ny1/f"})
			refuse(t, programs.Lockfs, args, 1, "get /ls/ny1/f: no master answers")
		})
	}
	t.Run("a client that calls itself a replica", func(t *testing.T) {
		creds := credentials.NewTLS(ours.client("host"))
		master, err := cell.Master(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := grpc.NewClient(master.Address, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := raftrpc.NewPeerClient(conn).Messages(within(t, 10*time.Second))
		if err == nil {
			_, err = stream.CloseAndRecv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("it may write to the log: %v", err)
		}
	})
	t.Run("mount", func(t *testing.T) {
		fusetest.Need(t)
		mount, err := cell.Mount(within(t, time.Minute), "a")
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(mount.Path("f"))
		if err != nil || string(content) != "x" {
			t.Errorf("through a mount the file holds %q, %v", content, err)
		}
	})
}
