package proccell

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"lockfs/internal/relay"
	"lockfs/lockpb"
)

// Config says what cell to run. Programs and Dir are required.
type Config struct {
	Programs Programs
	Dir      string        // scratch folder, made and removed by the caller
	Name     string        // of the cell; default ny1
	Replicas int           // default 3
	Lease    time.Duration // 0 is lockfsd's default
	Grace    time.Duration // 0 is lockfsd's default
	Relays   bool          // every replica is reached through a relay
	Direct   bool          // clients are not: the relays stand between replicas alone
	// Data are the data folders of replicas, by name, that are not to lie below Dir.
	Data map[string]string

	// Certificates, where the cell has TLS: the flags for replicas, those for mounts and commands,
	// and what Master shows. Default --insecure.
	ReplicaFlags, ClientFlags []string
	TLS                       *tls.Config
}

// Cell is a cell of processes.
type Cell struct {
	Replicas []*Replica
	config   Config
	mounts   []*Mount
}

// Replica is one lockfsd.
type Replica struct {
	Name    string
	Address string       // where it listens
	HTTP    string       // where it answers /healthz
	Relay   *relay.Relay // where others reach it, or nil
	Dir     string       // its data folder
	Args    []string     // what lockfsd is started with

	program string
	log     Log
	process *Process
}

// New prepares a cell and starts nothing.
func New(config Config) (*Cell, error) {
	if config.Name == "" {
		config.Name = "ny1"
	}
	if config.Replicas == 0 {
		config.Replicas = 3
	}
	if config.ReplicaFlags == nil {
		config.ReplicaFlags = []string{"--insecure"}
		config.ClientFlags = []string{"--insecure"}
	}
	c := &Cell{config: config}
	addresses, err := FreeAddresses(2 * config.Replicas)
	if err != nil {
		return nil, err
	}
	for i := range config.Replicas {
		if err := c.place(fmt.Sprintf("r%d", i+1), addresses[2*i], addresses[2*i+1]); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	peers := c.peers()
	for _, r := range c.Replicas {
		r.Args = c.replicaArgs(r, peers...)
	}
	return c, nil
}

// place gives a replica its addresses and its folder.
func (c *Cell) place(name, address, http string) (err error) {
	r := &Replica{Name: name, Address: address, HTTP: http, Dir: filepath.Join(c.config.Dir, name), program: c.config.Programs.Lockfsd}
	if dir, ok := c.config.Data[name]; ok {
		r.Dir = dir
	}
	if c.config.Relays {
		r.Relay, err = relay.New(r.Address)
	}
	c.Replicas = append(c.Replicas, r)
	return err
}

// Add prepares a further replica, which joins the cell. It is to be added by lockfs member add, at
// its Address, before it is started.
func (c *Cell) Add(name string) (*Replica, error) {
	addresses, err := FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	if err := c.place(name, addresses[0], addresses[1]); err != nil {
		return nil, err
	}
	r := c.Replicas[len(c.Replicas)-1]
	c.Join(r)
	return r, nil
}

// Join has the next start of a replica join the cell, as that of one does which takes the place of
// a member.
func (c *Cell) Join(r *Replica) {
	var others []string
	for _, other := range c.Replicas {
		if other != r {
			others = append(others, other.reached())
		}
	}
	r.Args = c.replicaArgs(r, "--join", strings.Join(others, ","))
}

// FreeAddresses returns loopback addresses on which nobody listened just now.
func FreeAddresses(n int) ([]string, error) {
	var addresses []string
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // after the last was found, so that all differ
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

// peers are the flags that name all replicas.
func (c *Cell) peers() []string {
	var all []string
	for _, r := range c.Replicas {
		all = append(all, r.Name+"="+r.reached())
	}
	return []string{"--peers", strings.Join(all, ",")}
}

func (c *Cell) replicaArgs(r *Replica, members ...string) []string {
	args := []string{
		"--cell", c.config.Name, "--name", r.Name, "--data", r.Dir, "--listen", r.Address, "--http", r.HTTP,
	}
	args = append(args, members...)
	if c.config.Lease != 0 {
		args = append(args, "--lease", c.config.Lease.String())
	}
	if c.config.Grace != 0 {
		args = append(args, "--grace", c.config.Grace.String())
	}
	return append(args, c.config.ReplicaFlags...)
}

func (r *Replica) reached() string {
	if r.Relay != nil {
		return r.Relay.Address()
	}
	return r.Address
}

// ClientFlags are the flags that lead a mount or the command line to the cell.
func (c *Cell) ClientFlags() []string {
	var addresses []string
	for _, r := range c.Replicas {
		address := r.reached()
		if c.config.Direct {
			address = r.Address
		}
		addresses = append(addresses, address)
	}
	return append([]string{"--cell", c.config.Name + "=" + strings.Join(addresses, ",")}, c.config.ClientFlags...)
}

// Start starts all replicas and waits until they are ready.
func (c *Cell) Start(ctx context.Context) error {
	for _, r := range c.Replicas {
		if err := r.Launch(); err != nil {
			return err
		}
	}
	for _, r := range c.Replicas {
		if err := awaitReady(ctx, r.process, 0); err != nil {
			return err
		}
	}
	return nil
}

// Launch starts the replica without waiting for it.
func (r *Replica) Launch() error {
	process, err := Launch("lockfsd "+r.Name, exec.Command(r.program, r.Args...), &r.log)
	if err == nil {
		r.process = process
	}
	return err
}

// Start starts the replica, for the first time or again, and waits until it is ready.
func (r *Replica) Start(ctx context.Context) error {
	mark := r.log.Mark()
	if err := r.Launch(); err != nil {
		return err
	}
	return awaitReady(ctx, r.process, mark)
}

// Restore makes the data folders of all replicas anew of a backup; none of them may run, and the
// folders must be new.
func (c *Cell) Restore(ctx context.Context, backup string) error {
	var cluster []string
	for _, r := range c.Replicas {
		args := append([]string{"restore", backup, "--cell", c.config.Name, "--name", r.Name, "--data", r.Dir}, c.peers()...)
		said, err := c.Lockfsd(ctx, append(args, cluster...)...)
		if err != nil {
			return err
		}
		if cluster == nil { // the first says it last, for the others
			words := strings.Fields(said)
			cluster = words[len(words)-2:]
		}
	}
	return nil
}

// Process is the running lockfsd, or the last one that ran.
func (r *Replica) Process() *Process { return r.process }

// Log is what the replica has said, over all its starts.
func (r *Replica) Log() string { return r.log.String() }

// Mark is the place in Log where the replica's next words will stand.
func (r *Replica) Mark() int { return r.log.Mark() }

// Says waits until the replica has said text, after mark.
func (r *Replica) Says(ctx context.Context, text string, mark int) error {
	if err := r.log.Await(ctx, text, mark); err != nil {
		return fmt.Errorf("replica %s: %w", r.Name, err)
	}
	return nil
}

// Running reports whether the replica was started and has not ended.
func (r *Replica) Running() bool {
	if r.process == nil {
		return false
	}
	select {
	case <-r.process.Done():
		return false
	default:
		return true
	}
}

// Master waits until a running replica says that it is the master, and returns it.
func (c *Cell) Master(ctx context.Context) (*Replica, error) {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		for _, r := range c.Replicas {
			if status, err := c.Status(ctx, r); err == nil && status.Role == "master" {
				return r, nil
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a master: %w", context.Cause(ctx))
		}
	}
}

// Status asks one replica how it is.
func (c *Cell) Status(ctx context.Context, r *Replica) (*lockpb.StatusAnswer, error) {
	if !r.Running() {
		return nil, fmt.Errorf("replica %s does not run", r.Name)
	}
	creds := insecure.NewCredentials()
	if c.config.TLS != nil {
		creds = credentials.NewTLS(c.config.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+r.Address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return lockpb.NewCellClient(conn).Status(ctx, &lockpb.StatusRequest{})
}

// Close ends all processes and mounts. Its error says what would not end in time, and which of them
// the race detector or a panic has spoken through.
func (c *Cell) Close() error {
	var errs []error
	for _, m := range c.mounts {
		errs = append(errs, m.close(), faults(m.Name, m.Log()))
	}
	for _, r := range c.Replicas {
		if r.process != nil {
			errs = append(errs, r.process.Kill(), faults(r.Name, r.Log()))
		}
		if r.Relay != nil {
			r.Relay.Close()
		}
	}
	return errors.Join(errs...)
}

// faults looks in a log for what no run may contain.
func faults(name, log string) error {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "DATA RACE") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			return fmt.Errorf("%s: %s", name, strings.TrimSpace(line))
		}
	}
	return nil
}

// Logs is what every process of the cell has said, for people.
func (c *Cell) Logs() string {
	var b strings.Builder
	for _, r := range c.Replicas {
		fmt.Fprintf(&b, "==== lockfsd %s\n%s", r.Name, r.Log())
	}
	for _, m := range c.mounts {
		fmt.Fprintf(&b, "==== lockfs-mount %s\n%s", m.Name, m.Log())
	}
	return b.String()
}

// Name is the cell's.
func (c *Cell) Name() string { return c.config.Name }

// Lockfs runs the command line on the cell and returns its standard output. An error of its own
// carries what it said.
func (c *Cell) Lockfs(ctx context.Context, args ...string) (string, error) {
	return output(ctx, c.config.Programs.Lockfs, slices.Concat(c.ClientFlags(), args))
}

// Lockfsd runs a command of lockfsd's that ends, and returns its standard output. An error of its
// own carries what it said.
func (c *Cell) Lockfsd(ctx context.Context, args ...string) (string, error) {
	return output(ctx, c.config.Programs.Lockfsd, args)
}

func output(ctx context.Context, program string, args []string) (string, error) {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}
