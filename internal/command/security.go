package command

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"lockfs"
)

// Security is how connections are secured: by certificates of both sides, or not at all. The zero
// Security is neither, and refused.
type Security struct {
	Insecure      bool
	Cert, Key, CA string // PEM files
}

// AddFlags adds --insecure, --cert, --key and --ca.
func (s *Security) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&s.Insecure, "insecure", s.Insecure, "no TLS; loopback addresses only")
	flags.StringVar(&s.Cert, "cert", s.Cert, "PEM `file` of the certificate to show")
	flags.StringVar(&s.Key, "key", s.Key, "PEM `file` of its private key")
	flags.StringVar(&s.CA, "ca", s.CA, "PEM `file` of the authorities whose certificates are accepted")
}

// Check refuses flags that contradict each other, and connections without TLS to or from any
// address that leaves this host.
func (s *Security) Check(addresses ...string) error {
	files := s.Cert != "" || s.Key != "" || s.CA != ""
	switch {
	case s.Insecure && files:
		return Usage("--insecure and --cert, --key, --ca exclude each other")
	case !s.Insecure && !files:
		return Usage("--insecure, or --cert, --key and --ca, is required")
	case files && (s.Cert == "" || s.Key == "" || s.CA == ""):
		return Usage("--cert, --key and --ca are required together")
	}
	if !s.Insecure {
		return nil
	}
	for _, address := range addresses {
		if !Loopback(address) {
			return Usage("--insecure is refused on %s: only loopback addresses do without TLS", address)
		}
	}
	return nil
}

// Server returns the configuration of a listener that demands a certificate of every client; nil
// where there is no TLS.
func (s *Security) Server() (*tls.Config, error) {
	config, authorities, err := s.load()
	if config == nil || err != nil {
		return nil, err
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs = authorities
	return config, nil
}

// Client returns the configuration of a client that shows its own certificate; nil where there is
// no TLS.
func (s *Security) Client() (*tls.Config, error) {
	config, authorities, err := s.load()
	if config == nil || err != nil {
		return nil, err
	}
	config.RootCAs = authorities
	return config, nil
}

func (s *Security) load() (*tls.Config, *x509.CertPool, error) {
	if s.Insecure {
		return nil, nil, nil
	}
	cert, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate %s with key %s: %w", s.Cert, s.Key, err)
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		return nil, nil, fmt.Errorf("authorities: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("authorities: %s holds no certificate in PEM", s.CA)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}, authorities, nil
}

// Loopback reports whether an address, host:port, cannot be reached from another host.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckAddress returns an error unless address is host:port with a port from 1 to 65535.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Errorf("address %q is not host:port", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("address %q has no port from 1 to 65535", address)
	}
	return nil
}

// ParseCell takes the value of --cell apart: a cell's name and addresses of its replicas, as in
// ny1=10.0.0.1:7420,10.0.0.2:7420.
func ParseCell(value string) (name string, addresses []string, err error) {
	name, list, ok := strings.Cut(value, "=")
	if !ok {
		return "", nil, Usage("cell %q is not NAME=HOST:PORT,…", value)
	}
	if _, err := lockfs.CellRoot(name); err != nil {
		return "", nil, usage{err}
	}
	for address := range strings.SplitSeq(list, ",") {
		if err := CheckAddress(address); err != nil {
			return "", nil, Usage("cell %s: %v", name, err)
		}
		addresses = append(addresses, address)
	}
	return name, addresses, nil
}
