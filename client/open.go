package client

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// DefaultTimeout is how long a call goes without any master that answers, unless Config says else.
const DefaultTimeout = 10 * time.Second

// Client is one host's access to one cell. Its methods may be called from any goroutine.
//
// One mutex guards the machine that decides everything; it is held for map work only. Callers put
// calls in and wait for them to be ready. Goroutines around it bring the rest of the world: one
// looks for the master and stays while it is connected, with a sender and a receiver for each of
// the two streams, and one wakes the machine when time has come for something.
type Client struct {
	cfg Config

	mu      sync.Mutex
	machine *machine
	link    *connection   // the machine's link, nil while there is none
	known   []string      // addresses: the configured ones first, then those learnt
	woken   clock.Instant // when keepTime will look at the machine; 0 is not
	started bool
	closed  bool

	kick chan struct{} // tells keepTime to look again; holds one
	look chan struct{} // tells the finder not to wait; holds one
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup
}

// Open returns a client of a cell. It does not wait for the cell, and connects when it is first
// used. An error says what is wrong with cfg.
func Open(cfg Config) (*Client, error) {
	if _, err := lockfs.CellRoot(cfg.Cell); err != nil {
		return nil, err
	}
	if len(cfg.Addresses) == 0 {
		return nil, invalid("cell %s: no address of a replica is given", cfg.Cell)
	}
	if cfg.Timeout < 0 {
		return nil, invalid("timeout %v: it cannot be negative", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname() // for people only: where it is not known they do without
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Boottime()
	}
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	log := cfg.Logger.With("cell", cfg.Cell)
	c := &Client{
		cfg:     cfg,
		machine: newMachine(log, cfg.Timeout, strings.ToValidUTF8(cfg.Host, "?")),
		known:   slices.Clone(cfg.Addresses),
		kick:    make(chan struct{}, 1),
		look:    make(chan struct{}, 1),
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

func invalid(format string, args ...any) error {
	return &lockfs.Error{Op: "client", Kind: lockfs.ErrInvalid, Detail: fmt.Sprintf(format, args...)}
}

// Close ends the live session, if there is one, as Session.Close does, waits for that no longer
// than ctx, and hangs up. Every later call fails with lockfs.ErrSession. The error is that of
// closing the session: where it is not nil the session's locks are freed when its lease is over.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	var err error
	if s := c.machine.session; s != nil && !s.closing {
		handle := c.handle(s)
		c.mu.Unlock()
		err = handle.Close(ctx, nil)
		c.mu.Lock()
	}
	c.closed = true
	c.machine.fail(&lockfs.Error{Op: "client", Kind: lockfs.ErrSession, Detail: "it is closed"})
	c.flush()
	c.mu.Unlock()
	c.stop()
	c.work.Wait()
	return err
}

// Session returns the live session of this client. Where there is none, or the last was lost, it
// makes one, together with whoever else asks; it fails with lockfs.ErrUnavailable if no master
// answers in time, or with the master's error.
func (c *Client) Session(ctx context.Context) (*Session, error) {
	for {
		if _, err := c.do(ctx, newCall(wantSession, nil, "session", "", nil)); err != nil {
			return nil, err
		}
		c.mu.Lock()
		s := c.machine.session
		if s != nil {
			defer c.mu.Unlock()
			return c.handle(s), nil
		}
		c.mu.Unlock() // lost since: ask for the next
	}
}

// handle returns what callers know a session by. mu is held.
func (c *Client) handle(s *session) *Session {
	if s.handle == nil {
		s.handle = &Session{client: c, session: s, reader: reader{client: c, session: s}}
	}
	return s.handle
}

// Reader returns plain reads, which need no session.
func (c *Client) Reader() Reader { return &reader{client: c} }

// Limits returns those of the cell, as a master has last said; what new cells start with before one
// was found.
func (c *Client) Limits() lockfs.Limits {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.limits
}

// ---- Calls -----------------------------------------------------------------------------------

// do gives the machine a call, and waits for its outcome. When ctx ends the machine is told, and
// lets the call go within giveUpWait.
func (c *Client) do(ctx context.Context, call *call) (*lockpb.Answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, call.interrupted(err)
	}
	if err := c.inCell(call.path); err != nil {
		return nil, err
	}
	c.input(func(now clock.Instant) { c.machine.start(now, call) })
	ended := ctx.Done()
	for {
		select {
		case <-call.ready:
			over := false
			c.input(func(now clock.Instant) { over = c.machine.collect(now, call) })
			if over {
				return call.answer, call.failure
			}
		case <-ended:
			ended = nil
			c.input(func(now clock.Instant) { c.machine.cancel(now, call, ctx.Err()) })
		}
	}
}

// inCell refuses paths of other cells. A master would take them for a sign that this client means
// another cell altogether.
func (c *Client) inCell(path lockfs.Path) error {
	if path == "" || path.Cell() == c.cfg.Cell {
		return nil
	}
	return &lockfs.Error{Op: "client", Path: path, Kind: lockfs.ErrInvalid, Detail: "it is not in cell " + c.cfg.Cell}
}

// input gives the machine something, and hands on what comes out.
func (c *Client) input(what func(now clock.Instant)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	what(c.cfg.Clock.Now())
	c.flush()
}

// begin starts the goroutines when the client is first used. mu is held.
func (c *Client) begin() {
	if c.started || c.closed {
		return
	}
	c.started = true
	c.work.Go(c.keepTime)
	c.work.Go(c.keepLink)
}

// flush hands on what the machine's last input gave. mu is held.
func (c *Client) flush() {
	out := c.machine.out
	c.machine.out = output{}
	if c.link != nil {
		c.link.calls.push(out.calls)
		c.link.keeps.push(out.keeps)
	}
	for _, call := range out.ready {
		select {
		case call.ready <- struct{}{}:
		default: // it has not collected the last one
		}
	}
	for _, s := range out.lost {
		close(s.ended)
	}
	if out.drop != "" && c.link != nil {
		c.link.cancel()
		c.link = nil
	}
	if out.look {
		select {
		case c.look <- struct{}{}:
		default:
		}
	}
	if at, ok := c.machine.deadline(); ok && (c.woken == 0 || at < c.woken) {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

// keepTime wakes the machine when something is due.
func (c *Client) keepTime() {
	timer := c.cfg.Clock.NewTimer(longestNap)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.kick:
		case <-timer.C():
		}
		if nap := c.nap(); nap > 0 {
			timer.Reset(nap)
		} else {
			timer.Stop()
		}
	}
}

// nap does what is due and returns how long there is nothing to do; 0 is until the next kick.
func (c *Client) nap() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Now()
	c.machine.tick(now)
	at, ok := c.machine.deadline()
	c.woken = at
	c.flush()
	if !ok {
		return 0
	}
	return max(at.Sub(now), time.Microsecond)
}
