package client

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

// fakeCell is what a client's tests need of a cell: replicas that speak the wire, of which one says
// that it is the master, over records that never get lost and know nothing of access or delays.
type fakeCell struct {
	t        *testing.T
	mu       sync.Mutex
	epoch    uint64
	replicas map[string]*fakeReplica // by address
	sessions map[uint64]bool
	made     uint64
	content  map[string]string
	locks    map[string]*fakeLock
	done     map[uint64]*lockpb.Answer // by number: of the one session that a test has
	calls    []string                  // what arrived, as callText has it
	dialed   int                       // how often a client connected
}

type fakeLock struct {
	owner, generation uint64 // owner 0 is free
	waiting           []fakeWaiter
}

type fakeWaiter struct {
	stream *fakeStream
	call   *lockpb.Call
}

type fakeReplica struct {
	lockpb.UnimplementedCellServer
	cell     *fakeCell
	address  string
	name     string // of the cell that it says it is of
	master   bool
	hint     string // the master's address
	mute     bool   // takes everything and says nothing
	hang     bool   // accepts no connection, and does not refuse it either
	server   *grpc.Server
	listener *bufconn.Listener
	streams  map[*fakeStream]bool
}

type fakeStream struct {
	replica *fakeReplica
	out     chan *lockpb.ServerFrame
	end     chan struct{}
}

func newFakeCell(t *testing.T, addresses ...string) *fakeCell {
	f := &fakeCell{
		t: t, epoch: 3,
		replicas: make(map[string]*fakeReplica), sessions: make(map[uint64]bool), content: make(map[string]string),
		locks: make(map[string]*fakeLock), done: make(map[uint64]*lockpb.Answer),
	}
	for _, a := range addresses {
		r := &fakeReplica{cell: f, address: a, name: "c", server: grpc.NewServer(), listener: bufconn.Listen(1 << 16), streams: make(map[*fakeStream]bool)}
		f.replicas[a] = r
		lockpb.RegisterCellServer(r.server, r)
		var serving sync.WaitGroup
		serving.Go(func() { r.server.Serve(r.listener) })
		t.Cleanup(func() {
			r.stop()
			serving.Wait()
		})
	}
	return f
}

// elect makes the replica at address the master of a new epoch, and ends all streams.
func (f *fakeCell) elect(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch++
	for a, r := range f.replicas {
		r.master, r.hint = a == address, address
		for s := range r.streams {
			close(s.end)
			delete(r.streams, s)
		}
	}
	for _, l := range f.locks {
		l.waiting = nil // they come again
	}
}

// with changes what the cell is.
func (f *fakeCell) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (r *fakeReplica) stop() {
	r.cell.with(func() {
		for s := range r.streams {
			close(s.end)
			delete(r.streams, s)
		}
	})
	r.listener.Close()
	r.server.Stop()
}

// dial is the network.
func (f *fakeCell) dial(ctx context.Context, address string) (net.Conn, error) {
	f.mu.Lock()
	f.dialed++
	r, ok := f.replicas[address]
	hang := ok && r.hang
	f.mu.Unlock()
	switch {
	case !ok:
		return nil, fmt.Errorf("nobody listens at %s", address)
	case hang:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return r.listener.DialContext(ctx)
}

func (f *fakeCell) open(addresses ...string) *Client {
	f.t.Helper()
	c, err := Open(Config{Cell: "c", Addresses: addresses, Host: "h", Clock: clock.NewVirtual(), Dial: f.dial, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (r *fakeReplica) Session(server lockpb.Cell_SessionServer) error {
	if _, err := server.Recv(); err != nil {
		return err
	}
	f := r.cell
	s := &fakeStream{replica: r, out: make(chan *lockpb.ServerFrame, 10000), end: make(chan struct{})}
	f.mu.Lock()
	w := &lockpb.Welcome{Cell: r.name, ClusterId: 9, Replica: r.address, Master: r.master, Epoch: f.epoch, MasterAddress: r.hint, LeaseMs: 12000, GraceMs: 45000}
	s.out <- &lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Welcome{Welcome: w}}
	if !r.master {
		close(s.end)
	} else {
		r.streams[s] = true
	}
	f.mu.Unlock()
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for {
			frame, err := server.Recv()
			if err != nil {
				return
			}
			f.with(func() { f.frame(s, frame) })
		}
	})
	for {
		select {
		case <-server.Context().Done():
			receiving.Wait()
			return nil
		case frame := <-s.out:
			if err := server.Send(frame); err != nil {
				return err
			}
			continue
		default:
		}
		select {
		case <-server.Context().Done():
		case <-s.end:
			return nil // the rest of s.out was sent
		case frame := <-s.out:
			if err := server.Send(frame); err != nil {
				return err
			}
		}
	}
}

func (f *fakeCell) frame(s *fakeStream, frame *lockpb.ClientFrame) {
	if s.replica.mute {
		return
	}
	if k := frame.GetKeepAlive(); k != nil {
		answer := new(lockpb.KeepAliveAnswer)
		for _, r := range k.GetRenewals() {
			renewed := &lockpb.Renewed{Session: r.GetSession(), Number: r.GetNumber(), LeaseMs: 12000}
			if !f.sessions[r.GetSession()] {
				renewed.Kind = uint32(lockfs.ErrSession)
			}
			answer.Renewed = append(answer.Renewed, renewed)
		}
		s.out <- &lockpb.ServerFrame{Frame: &lockpb.ServerFrame_KeepAliveAnswer{KeepAliveAnswer: answer}}
		return
	}
	c := frame.GetCall()
	f.calls = append(f.calls, callText(c))
	if a := f.call(s, c); a != nil {
		f.answer(s, c, a)
	}
}

func (f *fakeCell) answer(s *fakeStream, c *lockpb.Call, a *lockpb.Answer) {
	if c.GetNumber() != 0 {
		f.done[c.GetNumber()] = a
	}
	s.out <- &lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Answer{Answer: &lockpb.Answer{
		Id: c.GetId(), Kind: a.GetKind(), Detail: a.GetDetail(), Result: a.GetResult()}}}
}

func refuse(kind lockfs.Kind) *lockpb.Answer { return &lockpb.Answer{Kind: uint32(kind)} }

// call returns the answer, or nil where there is none yet.
func (f *fakeCell) call(s *fakeStream, c *lockpb.Call) *lockpb.Answer {
	if c.GetEpoch() != f.epoch {
		return refuse(lockfs.ErrEpoch)
	}
	if c.GetSession() != 0 && !f.sessions[c.GetSession()] {
		return refuse(lockfs.ErrSession)
	}
	if a, ok := f.done[c.GetNumber()]; ok && c.GetNumber() != 0 {
		return a
	}
	switch op := c.GetOp().(type) {
	case *lockpb.Call_CreateSession:
		f.made++
		f.sessions[f.made] = true
		return &lockpb.Answer{Result: &lockpb.Answer_SessionCreated{SessionCreated: &lockpb.SessionCreated{Session: f.made, LeaseMs: 12000}}}
	case *lockpb.Call_Attach:
		attached := new(lockpb.Attached)
		for path, l := range f.locks {
			if l.owner != 0 {
				attached.Locks = append(attached.Locks, &lockpb.HeldLock{Path: path, Instance: 5, Owner: l.owner, Mode: 2, Generation: l.generation})
			}
		}
		return &lockpb.Answer{Result: &lockpb.Answer_Attached{Attached: attached}}
	case *lockpb.Call_Read:
		text, ok := f.content[op.Read.GetPath()]
		if !ok {
			return refuse(lockfs.ErrNotExist)
		}
		return &lockpb.Answer{Result: &lockpb.Answer_File{File: &lockpb.FileContents{
			Stat: &lockpb.NodeStat{Path: op.Read.GetPath(), Size: int64(len(text))}, Content: []byte(text)}}}
	case *lockpb.Call_List:
		listing := &lockpb.Listing{Stat: &lockpb.NodeStat{Path: op.List.GetPath()}}
		for i := range 100_000 {
			listing.Entries = append(listing.Entries, &lockpb.Entry{Name: fmt.Sprintf("%0200d", i), Type: 1, Instance: uint64(i)})
		}
		return &lockpb.Answer{Result: &lockpb.Answer_Listing{Listing: listing}}
	case *lockpb.Call_Edit:
		for _, change := range op.Edit.GetChanges() {
			f.content[op.Edit.GetPath()] += string(change.GetAppend())
		}
		return &lockpb.Answer{Result: &lockpb.Answer_Stat{Stat: &lockpb.NodeStat{Path: op.Edit.GetPath()}}}
	case *lockpb.Call_Acquire:
		return f.acquire(s, c, op.Acquire)
	case *lockpb.Call_Release:
		f.release(op.Release.GetPath(), op.Release.GetOwner())
	case *lockpb.Call_CloseOwner:
		for path := range f.locks {
			f.release(path, op.CloseOwner.GetOwner())
		}
	case *lockpb.Call_GiveUp:
		return f.giveUp(op.GiveUp.GetNumber())
	case *lockpb.Call_CloseSession:
		delete(f.sessions, c.GetSession())
	}
	return &lockpb.Answer{}
}

func (f *fakeCell) acquire(s *fakeStream, c *lockpb.Call, a *lockpb.Acquire) *lockpb.Answer {
	l, ok := f.locks[a.GetPath()]
	if !ok {
		l = new(fakeLock)
		f.locks[a.GetPath()] = l
	}
	switch {
	case l.owner == 0:
		return l.grant(a.GetOwner())
	case !a.GetWait():
		return refuse(lockfs.ErrBusy)
	}
	l.waiting = append(l.waiting, fakeWaiter{s, c})
	s.out <- &lockpb.ServerFrame{Frame: &lockpb.ServerFrame_Taken{Taken: &lockpb.Taken{Id: c.GetId()}}}
	return nil
}

func (l *fakeLock) grant(owner uint64) *lockpb.Answer {
	l.owner = owner
	l.generation++
	return &lockpb.Answer{Result: &lockpb.Answer_Granted{Granted: &lockpb.Granted{Instance: 5, Mode: 2, Generation: l.generation}}}
}

func (f *fakeCell) release(path string, owner uint64) {
	l, ok := f.locks[path]
	if !ok || l.owner != owner {
		return
	}
	l.owner = 0
	if len(l.waiting) > 0 {
		next := l.waiting[0]
		l.waiting = l.waiting[1:]
		f.answer(next.stream, next.call, l.grant(next.call.GetAcquire().GetOwner()))
	}
}

func (f *fakeCell) giveUp(number uint64) *lockpb.Answer {
	if a, ok := f.done[number]; ok {
		return &lockpb.Answer{Result: &lockpb.Answer_GaveUp{GaveUp: &lockpb.GaveUp{Answer: a}}}
	}
	f.done[number] = refuse(lockfs.ErrGivenUp)
	for _, l := range f.locks {
		l.waiting = slices.DeleteFunc(l.waiting, func(w fakeWaiter) bool { return w.call.GetNumber() == number })
	}
	return &lockpb.Answer{Result: &lockpb.Answer_GaveUp{GaveUp: &lockpb.GaveUp{GivenUp: true}}}
}

func (r *fakeReplica) Status(context.Context, *lockpb.StatusRequest) (*lockpb.StatusAnswer, error) {
	r.cell.mu.Lock()
	defer r.cell.mu.Unlock()
	a := &lockpb.StatusAnswer{Cell: r.name, Replica: r.address}
	for _, address := range slices.Sorted(maps.Keys(r.cell.replicas)) {
		a.Members = append(a.Members, &lockpb.Member{Name: address, Address: address})
	}
	return a, nil
}

func (r *fakeReplica) ListLocks(context.Context, *lockpb.ListLocksRequest) (*lockpb.ListLocksAnswer, error) {
	r.cell.mu.Lock()
	defer r.cell.mu.Unlock()
	if !r.master {
		return nil, lockpb.StatusOf(lockfs.ErrNotMaster)
	}
	return &lockpb.ListLocksAnswer{Locks: []*lockpb.LockInfo{{Path: "/ls/c/x", Mode: 2, Holders: []*lockpb.Holder{{Owner: 1}}}}}, nil
}

func (r *fakeReplica) ListSessions(context.Context, *lockpb.ListSessionsRequest) (*lockpb.ListSessionsAnswer, error) {
	return nil, lockpb.StatusOf(&lockfs.Error{Kind: lockfs.ErrPermission, Detail: "not you"})
}

// within fails the test unless do takes between least and most, in virtual time.
func took(t *testing.T, least, most time.Duration, do func()) {
	t.Helper()
	start := time.Now()
	do()
	if d := time.Since(start); d < least || d > most {
		t.Errorf("it took %v, not %v to %v", d, least, most)
	}
}
