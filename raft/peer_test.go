package raft

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"lockfs/raft/raftrpc"
)

// A logBook keeps what was logged.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBook) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), what)
}

// Whoever is refused hears why, in one sentence, and logs it once and not at every attempt.
func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		tune func(h *host, cfg *Config)
		want string
	}{
		"another cluster": {func(h *host, cfg *Config) {
			if h.ID == 2 {
				cfg.ClusterID = 7
			}
		}, "this is a replica of cluster 7, not of ce11"},
		"another member": {func(h *host, cfg *Config) {
			if h.ID == 1 {
				cfg.Members[1].Address, cfg.Members[2].Address = "r3", "r2"
			}
		}, "this is member 2, not 3"},
		"no member": {func(h *host, cfg *Config) {
			if h.ID == 2 {
				cfg.Members = cfg.Members[1:]
			}
		}, "there is no member 1 in this cell"},
		"nobody there": {func(h *host, cfg *Config) {
			if h.ID == 1 {
				cfg.Members[1].Address = "r9"
			}
		}, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var book logBook
				c := layCell(t, 3, 1, nil)
				defer c.stop()
				for _, h := range c.hosts {
					c.tune = func(cfg *Config) {
						test.tune(h, cfg)
						if h.ID == 1 {
							cfg.Logger = slog.New(slog.NewTextHandler(&book, nil))
						}
					}
					c.start(h)
				}
				time.Sleep(time.Minute)
				if n := book.count(test.want); n < 1 || n > 2 {
					t.Errorf("member 1 logged %d times %q:\n%s", n, test.want, book.text.String())
				}
			})
		})
	}
}

// Only members get in, and only with what members send each other.
func TestStrangers(t *testing.T) {
	good := &raftrpc.Greeting{ClusterId: testCluster, From: 2, To: 1}
	message := func(kind raftpb.MessageType, from, to uint64) []byte {
		b, err := proto.Marshal(&raftpb.Message{Type: kind.Enum(), From: new(from), To: new(to), Term: new(uint64(99)),
			Entries: []*raftpb.Entry{{Data: []byte("x")}}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, test := range map[string]struct {
		greeting *raftrpc.Greeting
		message  []byte
		want     string
	}{
		"no greeting":             {nil, nil, "a stream must begin with a greeting"},
		"a stranger":              {&raftrpc.Greeting{ClusterId: testCluster, From: 9, To: 1}, nil, "there is no member 9 in this cell"},
		"another cluster":         {&raftrpc.Greeting{ClusterId: 1, From: 2, To: 1}, nil, "this is a replica of cluster ce11, not of 1"},
		"for another":             {&raftrpc.Greeting{ClusterId: testCluster, From: 2, To: 3}, nil, "this is member 1, not 3"},
		"a proposal":              {good, message(raftpb.MsgProp, 2, 1), "members do not send each other MsgProp"},
		"a read":                  {good, message(raftpb.MsgReadIndex, 2, 1), "members do not send each other MsgReadIndex"},
		"a snapshot among others": {good, message(raftpb.MsgSnap, 2, 1), "members do not send each other MsgSnap"},
		"of the machine itself":   {good, message(raftpb.MsgStorageAppendResp, 2, 1), "members do not send each other MsgStorageAppendResp"},
		"in another's name":       {good, message(raftpb.MsgHeartbeat, 3, 1), "a message from 3 to 1 came from 2 to 1"},
		"misdirected":             {good, message(raftpb.MsgHeartbeat, 2, 3), "a message from 2 to 3 came from 2 to 1"},
		"noise":                   {good, []byte{0xff}, "a message cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, 3, nil, func(t *testing.T, c *cell) {
				term := c.leader().replica.Status().Term
				client := raftrpc.NewPeerClient(stranger(t, c))
				stream, err := client.Messages(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				frame := &raftrpc.PeerFrame{Greeting: test.greeting}
				if test.message != nil {
					frame.Messages = [][]byte{test.message}
				}
				stream.Send(frame)
				_, err = stream.CloseAndRecv()
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("Messages: got %v, want %s", err, test.want)
				}
				if test.message == nil {
					checkSnapshotRefused(t, client, &raftrpc.SnapshotFrame{Greeting: test.greeting}, test.want)
				}
				if now := c.leader().replica.Status().Term; now != term {
					t.Errorf("it got in: the term went from %d to %d", term, now)
				}
			})
		})
	}
	t.Run("a snapshot that is none", func(t *testing.T) {
		inCell(t, 3, nil, func(t *testing.T, c *cell) {
			client := raftrpc.NewPeerClient(stranger(t, c))
			frame := &raftrpc.SnapshotFrame{Greeting: good, Message: message(raftpb.MsgHeartbeat, 2, 1)}
			checkSnapshotRefused(t, client, frame, "a snapshot must begin with MsgSnap, not with MsgHeartbeat")
		})
	})
}

// stranger connects to host 1.
func stranger(t *testing.T, c *cell) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///r1", grpc.WithContextDialer(c.net.dial("stranger")),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func checkSnapshotRefused(t *testing.T, client raftrpc.PeerClient, frame *raftrpc.SnapshotFrame, want string) {
	t.Helper()
	stream, err := client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream.Send(frame)
	if _, err = stream.CloseAndRecv(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Snapshot: got %v, want %s", err, want)
	}
}

// A cut that ends leaves connections on which TCP tries again after minutes only. They are given
// up before.
func TestSilentConnectionIsReplaced(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		other := c.hosts[leader.ID%3]
		before, _ := leader.replica.members.peer(other.ID)
		_, ctx, err := before.connection()
		if err != nil {
			t.Fatal(err)
		}
		c.net.set(leader.Name, other.Name, true)
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it was given up only after %v", took)
		}
		if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "does not answer") {
			t.Errorf("it was given up because: %v", cause)
		}
		c.net.set(leader.Name, other.Name, false)
		c.until("it is heard again", before.active)
	})
}

// Of a connection on which nothing arrives any more TCP itself would say so after many minutes.
func TestTCPGivesUpEarly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := wire{dial: func(ctx context.Context, address string) (net.Conn, error) { return net.Dial("tcp", address) }}
	conn, err := w.open(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer w.cut()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if err != nil || ms != 2000 {
			t.Errorf("it gives up after %d ms, %v", ms, err)
		}
	})
}

func TestNextFrame(t *testing.T) {
	sized := func(n int) *raftpb.Message { return &raftpb.Message{Context: make([]byte, n)} }
	for name, test := range map[string]struct {
		sizes []int
		want  []int // messages in each frame
	}{
		"small ones together":  {[]int{1, 2, 3}, []int{3}},
		"a big one alone":      {[]int{2 << 20, 1}, []int{1, 1}},
		"as many as there fit": {[]int{600_000, 400_000, 100_000}, []int{2, 1}},
	} {
		var messages []*raftpb.Message
		for _, n := range test.sizes {
			messages = append(messages, sized(n))
		}
		var got []int
		for len(messages) > 0 {
			frame, rest, err := nextFrame(messages)
			if err != nil {
				t.Fatal(err)
			}
			got, messages = append(got, len(frame.Messages)), rest
		}
		if !cmp.Equal(got, test.want) {
			t.Errorf("%s: frames of %v, want %v", name, got, test.want)
		}
	}
}

func TestQueueDropsTheOldest(t *testing.T) {
	q := newQueue[int](3)
	for i := range 5 {
		q.put(i)
	}
	if got := q.take(nil); !cmp.Equal(got, []int{2, 3, 4}) {
		t.Errorf("it held %v", got)
	}
	stop := make(chan struct{})
	close(stop)
	if got := q.take(stop); got != nil {
		t.Errorf("stopped, it gave %v", got)
	}
}

// Several appends made one leave what they would have left one after the other.
func TestBatchOfAppends(t *testing.T) {
	appendOf := func(term uint64, list []*raftpb.Entry, to uint64) *raftpb.Message {
		m := &raftpb.Message{Entries: list, Responses: []*raftpb.Message{{To: new(to)}}}
		if term > 0 {
			m.Term, m.Vote, m.Commit = new(term), new(uint64(0)), new(uint64(0))
		}
		return m
	}
	for name, messages := range map[string][]*raftpb.Message{
		"in a row":       {appendOf(1, entries(1, 3, 1), 1), appendOf(0, entries(4, 5, 1), 2)},
		"replaced":       {appendOf(1, entries(1, 5, 1), 1), appendOf(2, entries(3, 4, 2), 2)},
		"all replaced":   {appendOf(1, entries(3, 5, 1), 1), appendOf(2, entries(2, 6, 2), 2)},
		"states only":    {appendOf(1, nil, 1), appendOf(3, nil, 2)},
		"responses only": {appendOf(0, nil, 1), appendOf(0, nil, 2)},
		"one after all":  {appendOf(1, entries(1, 5, 1), 1), appendOf(2, entries(1, 1, 2), 2), appendOf(0, entries(2, 3, 2), 3)},
	} {
		single, together := NewMemoryDisk().Open(), NewMemoryDisk().Open()
		var b batch
		before := proto.CloneOf(messages[0])
		for _, m := range append([]*raftpb.Message{appendOf(1, entries(1, 2, 1), 0)}, messages...) {
			var alone batch
			alone.add(m)
			b.add(m)
			if err := single.Append(alone.state, alone.entries); err != nil {
				t.Fatal(err)
			}
		}
		if err := together.Append(b.state, b.entries); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read(t, single), read(t, together), protocmp.Transform()); diff != "" {
			t.Errorf("%s: together they leave\n%s", name, diff)
		}
		for i, r := range b.responses {
			if r.GetTo() != uint64(i) {
				t.Errorf("%s: response %d is the one to %d", name, i, r.GetTo())
			}
		}
		if !proto.Equal(before, messages[0]) {
			t.Errorf("%s: the first message was changed", name)
		}
	}
}
