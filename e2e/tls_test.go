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
	"testing"
	"time"

	"lockfs/internal/proccell"
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

// issue returns the files of a certificate that a replica or a client can show.
func (a *authority) issue(name string) (cert, key string) {
	_, _, cert, key = a.make(name, &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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
func (a *authority) flags(name string) []string {
	cert, key := a.issue(name)
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

// TestCertificates runs a cell with certificates: replicas among themselves, mounts and the command
// line. Whoever has none, or one of another authority, or no TLS at all, gets nothing.
func TestCertificates(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	h := twoHosts(t, proccell.Config{
		ReplicaFlags: ours.flags("replica"), ClientFlags: ours.flags("host"), TLS: ours.client("test"),
	})
	h.play(
		step{`echo x > $A/f; cat $B/f`, 0, "x\n"},
		step{`flock $A/f flock -n $B/f true`, 1, ""},
	)
	master, err := h.cell.Master(within(t, 10*time.Second))
	h.ok(err)
	h.ok(master.Process().Kill())
	h.play(step{`echo y > $B/f; cat $A/f`, 0, "y\n"})

	cell := h.cell.ClientFlags()[:2]
	strangers := map[string][]string{
		"another authority": theirs.flags("host"),
		"no TLS":            {"--insecure"},
	}
	// Trusts the cell, and shows what the cell does not trust.
	cert, key := theirs.issue("stranger")
	strangers["a foreign certificate"] = []string{"--cert", cert, "--key", key, "--ca", ours.file}
	for name, flags := range strangers {
		t.Run(name, func(t *testing.T) {
			args := append(append(cell[:2:2], flags...), "--timeout", "1s", "get", "/ls/ny1/f")
			refuse(t, programs.Lockfs, args, 1, "get /ls/ny1/f: no master answers")
		})
	}
}
