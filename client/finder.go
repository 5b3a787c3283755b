package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// How soon the replicas are asked again when none of them was the master, or the one that was did
// not last. Jitter keeps the clients of a cell from coming all at once.
const (
	firstPause = 25 * time.Millisecond
	lastPause  = time.Second
	maxKnown   = 32 // addresses: the configured ones and what was learnt
)

// keepLink looks for the master, stays while it is connected, and looks again.
func (c *Client) keepLink() {
	f := finder{client: c}
	for c.ctx.Err() == nil {
		l := f.round()
		if l == nil {
			if f.foreign != nil {
				c.input(func(clock.Instant) { c.machine.fail(f.foreign) })
				return
			}
			f.wait()
			continue
		}
		since := c.cfg.Clock.Now()
		f.left = l.address
		c.stay(l)
		if c.cfg.Clock.Now().Sub(since) > lastPause {
			f.pause = 0
		} else {
			f.wait() // a master that sends its clients away at once is not to be trampled
		}
	}
}

// finder remembers between rounds.
type finder struct {
	client  *Client
	cluster uint64        // the cell's, once known
	epoch   uint64        // the newest that any master named
	left    string        // the address that was connected last: probably dead, asked last
	pause   time.Duration // before the next round
	foreign error         // every replica that was asked is of another cell
}

// round asks the replicas in turn who is the master, follows what they say, and connects to it. It
// returns nil where that led to nothing.
func (f *finder) round() *connection {
	c := f.client
	c.input(c.machine.looking)
	queue := c.addresses(f.left)
	asked := make(map[string]bool)
	var trouble error
	foreign := 0
	for len(queue) > 0 && c.ctx.Err() == nil {
		address := queue[0]
		queue = queue[1:]
		if asked[address] {
			continue
		}
		asked[address] = true
		l, hint, err := f.ask(address)
		if l != nil {
			return l
		}
		if errors.Is(err, lockfs.ErrCell) {
			foreign++
		}
		if err != nil {
			trouble = err
			c.machine.log.Debug("no master there", "address", address, "why", err)
		}
		if hint != "" && !asked[hint] {
			queue = slices.Insert(queue, 0, hint)
			c.learn(hint)
		}
	}
	if foreign == len(asked) {
		f.foreign = trouble
	}
	if trouble != nil {
		c.input(func(now clock.Instant) { c.machine.unlinked(now, detailOf(trouble)) })
	}
	return nil
}

// ask connects to a replica. If it is the master that gives a connection; else it may say who is.
func (f *finder) ask(address string) (l *connection, hint string, err error) {
	c := f.client
	calls, w, err := c.open(c.ctx, address, f.cluster)
	if err != nil {
		return nil, "", err
	}
	if err := f.check(address, w); err != nil || !w.GetMaster() {
		calls.close()
		if err == nil {
			err = &lockfs.Error{Op: "connect", Kind: lockfs.ErrNotMaster, Detail: w.GetReplica() + " at " + address + " knows no master"}
		}
		return nil, w.GetMasterAddress(), err
	}
	keeps, again, err := c.open(c.ctx, address, w.GetClusterId())
	if err == nil && (!again.GetMaster() || again.GetEpoch() != w.GetEpoch()) {
		keeps.close()
		err = &lockfs.Error{Op: "connect", Kind: lockfs.ErrNotMaster, Detail: w.GetReplica() + " at " + address + " is the master no longer"}
	}
	if err != nil {
		calls.close()
		return nil, "", err
	}
	f.cluster, f.epoch = w.GetClusterId(), w.GetEpoch()
	return &connection{address: address, welcome: w, calls: calls, keeps: keeps}, "", nil
}

// check refuses who is of another cell, and a master that does not know yet that there is a newer.
func (f *finder) check(address string, w *lockpb.Welcome) error {
	switch {
	case w.GetCell() != f.client.cfg.Cell:
		return &lockfs.Error{Op: "connect", Kind: lockfs.ErrCell,
			Detail: fmt.Sprintf("%s is a replica of cell %s, not of %s", address, w.GetCell(), f.client.cfg.Cell)}
	case f.cluster != 0 && w.GetClusterId() != 0 && w.GetClusterId() != f.cluster:
		return &lockfs.Error{Op: "connect", Kind: lockfs.ErrCell,
			Detail: fmt.Sprintf("%s is a replica of another cell of the name %s than before", address, w.GetCell())}
	case w.GetMaster() && w.GetEpoch() < f.epoch:
		return &lockfs.Error{Op: "connect", Kind: lockfs.ErrEpoch,
			Detail: fmt.Sprintf("%s says it is the master in epoch %d, but there was epoch %d", address, w.GetEpoch(), f.epoch)}
	case w.GetMaster() && w.GetLeaseMs() <= 0:
		return &lockfs.Error{Op: "connect", Kind: lockfs.ErrInternal, Detail: address + " gives no leases"}
	}
	return nil
}

// wait lets some time pass before the next round; little, if somebody waits for one.
func (f *finder) wait() {
	f.pause = min(max(2*f.pause, firstPause), lastPause)
	if f.sleep(f.pause/2+rand.N(f.pause), f.client.look) {
		f.sleep(firstPause, nil)
	}
}

// sleep waits, and reports whether it was woken before the time.
func (f *finder) sleep(d time.Duration, wake <-chan struct{}) bool {
	timer := f.client.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-f.client.ctx.Done():
	case <-wake:
		return true
	}
	return false
}

// addresses returns the replicas in the order of asking: last is who was left.
func (c *Client) addresses(left string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.known)
	if i := slices.Index(list, left); i >= 0 {
		list = slices.Concat(list[i+1:], list[:i+1])
	}
	return list
}

// learn remembers an address that a replica named.
func (c *Client) learn(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) < maxKnown && !slices.Contains(c.known, address) {
		c.known = append(c.known, address)
	}
}

// stay gives the machine its link, and returns when that has ended and all its goroutines have.
func (c *Client) stay(l *connection) {
	c.mu.Lock()
	if !c.closed {
		c.link = l
		c.machine.linked(c.cfg.Clock.Now(), l.address, l.welcome)
		c.flush()
	} else {
		l.cancel()
	}
	c.mu.Unlock()

	var work sync.WaitGroup
	var once sync.Once
	for _, s := range []*stream{l.calls, l.keeps} {
		work.Go(func() { s.send(func(f *lockpb.ClientFrame, err error) { c.refused(l, f, err) }) })
		work.Go(func() {
			err := s.receive(func(f *lockpb.ServerFrame) { c.frame(l, f) })
			once.Do(func() { c.broken(l, err) })
		})
	}
	work.Wait()
	l.calls.close()
	l.keeps.close()
}

// broken takes a link away that a stream of has ended.
func (c *Client) broken(l *connection, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.cancel()
	if c.link != l {
		return // it was given up
	}
	c.link = nil
	why := status.Convert(err).Message()
	c.machine.log.Info("the connection to the master has ended", "address", l.address, "why", why)
	c.machine.unlinked(c.cfg.Clock.Now(), fmt.Sprintf("the connection to the master at %s has ended: %s", l.address, why))
	c.flush()
}

// refused answers a call that could not be sent, as a master would that cannot read it.
func (c *Client) refused(l *connection, f *lockpb.ClientFrame, why error) {
	c.frame(l, &lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Answer{Answer: &lockpb.Answer{
		Id: f.GetCall().GetId(), Kind: uint32(lockfs.ErrInvalid), Detail: status.Convert(why).Message()}}})
}

// frame takes what a master sent. A link that was given up has nothing to say any more.
func (c *Client) frame(l *connection, f *lockpb.ServerFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return
	}
	now := c.cfg.Clock.Now()
	switch f := f.GetFrame().(type) {
	case *lockpb.ServerFrame_Answer:
		c.machine.answered(now, f.Answer)
	case *lockpb.ServerFrame_Taken:
		c.machine.taken(now, f.Taken.GetId())
	case *lockpb.ServerFrame_KeepAliveAnswer:
		c.machine.keepAlive(now, f.KeepAliveAnswer)
	}
	c.flush()
}
