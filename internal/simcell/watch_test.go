package simcell

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/master"
	"lockfs/store"
	"lockfs/store/storepb"
)

// put writes the file.
func put(t *testing.T, s *client.Session, text string) {
	t.Helper()
	_, err := s.Edit(ctx, client.Edit{Path: file, Changes: []client.Change{{Kind: client.Append, Data: []byte(text)}}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLevelWaitsForAll has replicas of two versions in one cell. It works as the older does until
// the last of them is of the newer.
func TestLevelWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{})
		for _, r := range c.Replicas[:2] {
			r.Stop()
			r.Level = store.Level + 1
			r.Start()
		}
		s := session(t, c.Client("a"))
		makeFile(t, s)
		for range 6 {
			time.Sleep(10 * time.Second)
			put(t, s, "x")
			if level := c.Master().Status().GetLevel(); level != store.Level {
				t.Fatalf("the level is %d while a replica knows %d", level, store.Level)
			}
		}
		old := c.Replicas[2]
		old.Stop()
		old.Level = store.Level + 1
		old.Start()
		c.Until("the level is raised on all replicas", time.Minute, func() bool {
			for _, r := range c.Replicas {
				if r.Status().GetLevel() != store.Level+1 {
					return false
				}
			}
			return true
		})
		put(t, s, "x")

		// Who comes back in the old version does not serve what it cannot understand.
		old.Stop()
		old.Level, old.MayStop = 0, true
		if err := old.startError(); err == nil || !strings.Contains(err.Error(), "level 2") {
			t.Errorf("a replica of level %d started in a cell of level %d: %v", store.Level, store.Level+1, err)
		}
	})
}

// startError is why the replica cannot start on what its disks have.
func (r *Replica) startError() error {
	db, err := store.OpenDB(r.path)
	if err != nil {
		return err
	}
	defer db.Close()
	_, _, err = db.Load(Name)
	return err
}

// TestDifferentRecords gives one replica other records than the rest have, which nothing shows. It is
// found within a minute, and stops; the cell goes on.
func TestDifferentRecords(t *testing.T) {
	for name, which := range map[string]func(c *Cell) *Replica{
		"follower": func(c *Cell) *Replica {
			for _, r := range c.Replicas {
				if r != c.Master() {
					return r
				}
			}
			return nil
		},
		"master": (*Cell).Master,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(t, Options{})
				s := session(t, c.Client("a"))
				makeFile(t, s)
				put(t, s, "right")
				victim := which(c)
				victim.Stop()
				victim.Change(func(state *store.State) {
					wrong := &storepb.Proposal{Epoch: state.Epoch(), Commands: []*storepb.Command{{Command: &storepb.Command_CreateSession{
						CreateSession: &storepb.CreateSession{Identity: "nobody"}}}}}
					if outcome, err := state.Apply(state.Applied(), wrong); err != nil || outcome.Refused {
						t.Fatalf("%v, %v", outcome, err)
					}
				})
				victim.MayStop = true
				victim.Start()
				c.Until("it stops", 2*time.Minute, func() bool { return victim.Err() != nil })
				if err := victim.Err(); !errors.Is(err, store.ErrDiffers) {
					t.Errorf("it stopped because %v", err)
				}
				put(t, s, " still")
				for _, r := range c.Replicas {
					if r != victim && r.Err() != nil {
						t.Errorf("%s stopped as well: %v", r.Name, r.Err())
					}
				}
			})
		})
	}
}

// TestHashesOnARestingCell expects the comparison of hashes to end when nothing changes any more.
func TestHashesOnARestingCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{})
		time.Sleep(3 * time.Minute)
		before := c.Master().Status()
		if len(before.GetHashNotes()) == 0 {
			t.Error("no hash was noted in three minutes")
		}
		time.Sleep(5 * time.Minute)
		if after := c.Master().Status(); after.GetCommitted() != before.GetCommitted() {
			t.Errorf("the log has grown from %d to %d without a change", before.GetCommitted(), after.GetCommitted())
		}
	})
}

// TestMasterWithoutRoom lets the disk of the master become full, then all disks but one, then all.
func TestMasterWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{})
		s := session(t, c.Client("a"))
		makeFile(t, s)
		full := func(r *Replica, low bool) {
			r.Stop()
			r.Disk = master.Disk{Free: 1, Total: 100, Low: low}
			r.Start()
		}
		roomy := c.Replicas[1]
		for _, r := range c.Replicas {
			if r != roomy {
				full(r, true)
			}
		}
		c.Until("the one with room is master", time.Minute, func() bool { return c.Master() == roomy })
		put(t, s, "x")
		full(roomy, true)
		chosen := c.Master()
		time.Sleep(time.Minute)
		if now := c.Master(); now != chosen || now.Status().GetEpoch() != chosen.Status().GetEpoch() {
			t.Error("mastership goes round where nobody has room")
		}
		put(t, s, "y")
	})
}

// TestManyMastersOneLevel has masters come and go while the level is to be raised.
func TestManyMastersOneLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, Options{})
		for _, r := range c.Replicas {
			r.Stop()
			r.Level = store.Level + 2
			r.Start()
		}
		for range 6 {
			time.Sleep(4 * time.Second)
			m := c.Master()
			m.Stop()
			m.Start()
		}
		s := session(t, c.Client("a"))
		if _, _, err := s.Create(ctx, client.Create{Path: file, Type: lockfs.File}); err != nil {
			t.Fatal(err)
		}
		c.Until("the level is raised twice", time.Minute, func() bool { return c.Master().Status().GetLevel() == store.Level+2 })
	})
}
