package raft

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What is asked for is durable when Checkpoint returns, also while another one is under way.
func TestCheckpoint(t *testing.T) {
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		h := c.leader()
		c.recorded()
		for i := range 3 {
			c.propose(h, fmt.Sprint(i))
			if err := h.replica.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := len(h.machine.durable().Applied); n != i+1 {
				t.Errorf("after %d proposals the checkpoint has %d", i+1, n)
			}
		}
		if err := h.replica.Checkpoint(t.Context()); err != nil || h.machine.saves != 3 {
			t.Errorf("with nothing new it made checkpoint %d, %v", h.machine.saves, err)
		}
		release := h.machine.holdSave()
		var answers []chan error
		for i := range 3 {
			c.propose(h, fmt.Sprint("held ", i))
			answer := make(chan error, 1)
			go func() { answer <- h.replica.Checkpoint(t.Context()) }()
			answers = append(answers, answer)
			synctest.Wait()
		}
		for i, answer := range answers {
			if len(answer) > 0 {
				t.Errorf("checkpoint %d returned before anything was saved", i)
			}
		}
		release()
		for _, answer := range answers {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		if n := len(h.machine.durable().Applied); n != 6 || h.machine.saves != 5 {
			t.Errorf("it has %d proposals after %d checkpoints", n, h.machine.saves)
		}
		h.replica.Stop()
		if err := h.replica.Checkpoint(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("a checkpoint of one that has stopped: %v", err)
		}
	})
}

// fetch gets the state of a host that is down from the others, as its next start would.
func (c *cell) fetch(h *host, least uint64) error {
	cfg := FetchConfig{ClusterID: testCluster, ID: h.ID, Incarnation: h.Incarnation, Members: c.members(),
		Dial: c.net.dial(h.Name), Logger: testLogger(h.Name), Least: least}
	position, err := FetchState(c.t.Context(), cfg, func(from io.Reader) ([]byte, error) {
		var got image
		if err := gob.NewDecoder(from).Decode(&got); err != nil {
			return nil, err
		}
		h.machine = newRecorder(c.t, got)
		return got.At, nil
	})
	if err == nil && string(position) != string(h.machine.durable().At) {
		c.t.Error("the position is not that of the state")
	}
	return err
}

func (c *cell) members() []Member {
	var members []Member
	for _, h := range c.hosts {
		members = append(members, h.Member)
	}
	return members
}

// A replica that lost its state and kept its log, a real one, fetches the state from another
// before it starts. The log may begin before or after where that stands, or end before it.
func TestFetchState(t *testing.T) {
	smallSegments(t, 8<<10)
	for name, test := range map[string]struct {
		away   int    // entries while it is down
		tail   uint64 // kept of the log before a checkpoint
		peers  uint64 // the others make a checkpoint after so many entries; it does after 40
		leads  bool   // it is the leader that loses its state
		beyond bool   // the state is beyond the log
	}{
		"its log reaches beyond the state":                {0, 1000, 40, false, false},
		"its log begins with the state":                   {0, 1, 40, false, false},
		"its log begins after the others' checkpoint":     {0, 1, 1000, false, false},
		"its log ends long before the state":              {400, 5, 40, false, true},
		"its log ends before, and theirs goes on from it": {30, 1000, 40, false, true},
		"it was the leader":                               {0, 5, 40, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, loser := t.TempDir(), uint64(1)
			tune := func(cfg *Config) {
				cfg.CheckpointEntries, cfg.TailEntries = test.peers, test.tail
				if cfg.ID == loser {
					cfg.CheckpointEntries = 40
				}
				at := filepath.Join(dir, fmt.Sprint(cfg.ID))
				if err := os.MkdirAll(at, 0o700); err != nil {
					t.Fatal(err)
				}
				log, err := OpenWAL(filepath.Join(at, "log"), cfg.ClusterID, cfg.ID, testLogger("wal"))
				if err != nil {
					t.Fatal(err)
				}
				cfg.Storage = log
			}
			inCell(t, 3, tune, func(t *testing.T, c *cell) {
				h := c.hosts[loser-1]
				leader := c.leader()
				c.recorded()
				var avoid []uint64
				if test.leads {
					avoid = []uint64{2, 3}
				}
				if (leader == h) != test.leads {
					if err := leader.replica.TransferLeadership(t.Context(), avoid...); err != nil {
						t.Fatal(err)
					}
					leader = c.leader(leader)
				}
				for i := range 130 {
					c.propose(leader, fmt.Sprint(i, strings.Repeat("x", 100)))
				}
				c.agree(130)
				synctest.Wait()
				c.crash(h)
				for i := range test.away {
					c.propose(c.leader(h), fmt.Sprint("away ", i))
				}
				h.machine = newRecorder(t, image{})
				log, err := OpenWAL(filepath.Join(dir, fmt.Sprint(h.ID), "log"), testCluster, h.ID, testLogger("wal"))
				if err != nil {
					t.Fatal(err)
				}
				first, last, err := bounds(log)
				if err := errors.Join(err, log.Close()); err != nil {
					t.Fatal(err)
				}
				c.leader(h)
				if err := c.fetch(h, first-1); err != nil {
					t.Fatal(err)
				}
				at, err := parsePosition(h.machine.durable().At)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("the log has %d to %d, the state is at %d", first, last, at.index)
				if beyond := at.index > last; beyond != test.beyond {
					t.Errorf("the log has %d to %d, and the state is at %d", first, last, at.index)
				}
				c.start(h)
				c.agree(130 + test.away)
				c.propose(c.leader(), "after")
				c.agree(131 + test.away)
				if h.machine.restores > 0 {
					t.Error("it needed a snapshot all the same")
				}
			})
		})
	}
}

// Whoever cannot give the state, or breaks off, is passed over; if nobody can the reasons are told.
func TestFetchStateFromOthers(t *testing.T) {
	inCell(t, 3, nil, func(t *testing.T, c *cell) {
		leader := c.leader()
		c.recorded()
		c.propose(leader, strings.Repeat("x", 500_000))
		c.agree(1)
		h := c.hosts[leader.ID%3]
		others := slices.DeleteFunc(slices.Clone(c.hosts), func(other *host) bool { return other == h })
		c.crash(h)
		h.machine = newRecorder(t, image{})
		for _, other := range others {
			if err := other.replica.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		others[0].machine.breaks = 1
		if err := c.fetch(h, 5); err != nil {
			t.Errorf("the second was to give it: %v", err)
		}
		if others[0].machine.breaks != 0 {
			t.Error("the first was not asked")
		}
		committed := leader.replica.Status().Committed
		err := c.fetch(h, committed+5)
		if want := fmt.Sprintf("this member has the state up to entry %d only, and not up to %d", committed, committed+5); err == nil ||
			strings.Count(err.Error(), want) != 2 {
			t.Errorf("got %v, want twice %s", err, want)
		}
		was := h.Incarnation
		h.Incarnation++
		if err := c.fetch(h, 5); !errors.Is(err, ErrReplaced) {
			t.Errorf("with another folder: %v", err)
		}
		h.Incarnation = was
		c.isolate(h, true)
		began := time.Now()
		if err := c.fetch(h, 5); err == nil {
			t.Error("it was fetched over no network")
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v to give up", took)
		}
		c.isolate(h, false)
		c.start(h)
		c.agree(1)
	})
	inCell(t, 1, nil, func(t *testing.T, c *cell) {
		if err := c.fetch(c.leader(), 0); err == nil || !strings.Contains(err.Error(), "there is no other member") {
			t.Errorf("alone: %v", err)
		}
	})
}

// A cell that is restored from a backup goes on after it, in a later term.
func TestSeed(t *testing.T) {
	smallSegments(t, 1<<20)
	for _, size := range []int{1, 3} {
		for kind, open := range map[string]func(h *host, dir string) Storage{
			"memory": func(h *host, _ string) Storage { return h.disk.Open() },
			"wal": func(h *host, dir string) Storage {
				s, err := OpenWAL(filepath.Join(dir, h.Name), testCluster, h.ID, testLogger("wal"))
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
		} {
			t.Run(fmt.Sprint(kind, " ", size), func(t *testing.T) {
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					c := layCell(t, size, 1, nil)
					defer c.stop()
					c.tune = func(cfg *Config) {
						i := slices.IndexFunc(c.hosts, func(h *host) bool { return h.ID == cfg.ID })
						cfg.Storage = open(c.hosts[i], dir)
						cfg.Members = nil // of no account
					}
					for _, h := range c.hosts {
						s := open(h, dir)
						position, err := Seed(s, c.founders, 5000, 70)
						if err != nil {
							t.Fatal(err)
						}
						if _, err := Seed(s, c.founders, 5000, 70); err == nil || !strings.Contains(err.Error(), "it is not empty") {
							t.Errorf("it was seeded twice: %v", err)
						}
						if err := s.Close(); err != nil {
							t.Fatal(err)
						}
						h.machine = newRecorder(t, image{At: position, Applied: []string{"before"}, Index: 4990})
					}
					for range 2 {
						for _, h := range c.hosts {
							c.start(h)
						}
						c.leader()
						c.recorded()
						c.propose(c.leader(), "after")
						for _, h := range c.hosts {
							c.until("it has all", func() bool { return slices.Contains(h.machine.list(), "after") && h.machine.list()[0] == "before" })
							if s := h.replica.Status(); s.Term <= 70 || s.Applied <= 5000 {
								t.Errorf("it went on with %+v", s)
							}
							c.halt(h, func() {})
						}
					}
				})
			})
		}
	}
	for name, seed := range map[string]func(Storage) error{
		"no members": func(s Storage) error { _, err := Seed(s, nil, 1, 1); return err },
		"no entry":   func(s Storage) error { _, err := Seed(s, []Member{{ID: 1}}, 0, 1); return err },
		"no term":    func(s Storage) error { _, err := Seed(s, []Member{{ID: 1}}, 1, 0); return err },
		"id 0":       func(s Storage) error { _, err := Seed(s, []Member{{Name: "x"}}, 1, 1); return err },
	} {
		if err := seed(NewMemoryDisk().Open()); err == nil || !strings.Contains(err.Error(), "seed the log") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
