package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/proccell"
	"lockfs/sequencer"
)

// relics are what a program keeps of a cell: its session, what was drawn for the locks that it holds,
// and what it knows of a file.
type relics struct {
	*testing.T
	client     *client.Client
	session    *client.Session
	sequencers []sequencer.Sequencer
	config     lockfs.Stat
}

func collectRelics(t *testing.T, cell *proccell.Cell) *relics {
	t.Helper()
	ok, ctx := fatal(t), within(t, time.Minute)
	r := &relics{T: t, client: newClient(t, cell)}
	var err error
	r.session, err = r.client.Session(ctx)
	ok(err)
	for _, path := range []lockfs.Path{"/ls/ny1/early", "/ls/ny1/late", "/ls/ny1/guarded"} {
		_, _, err := r.session.Create(ctx, client.Create{Path: path, Type: lockfs.File})
		ok(err)
	}
	r.acquire("/ls/ny1/early")
	_, _, err = r.session.Create(ctx, client.Create{Path: "/ls/ny1/here", Type: lockfs.File, Ephemeral: true})
	ok(err)
	r.config, _, err = r.session.Create(ctx, client.Create{Path: "/ls/ny1/config", Type: lockfs.File, Content: []byte("limit=100\n")})
	ok(err)
	return r
}

func (r *relics) acquire(path lockfs.Path) {
	r.Helper()
	s, err := r.session.Acquire(within(r.T, time.Minute),
		client.Acquire{Path: path, Owner: r.session.NewOwner(), Mode: lockfs.Exclusive, LockDelay: time.Second})
	fatal(r.T)(err)
	r.sequencers = append(r.sequencers, s)
}

// guarded tries a write that is to be done only while a sequencer is valid.
func guarded(t *testing.T, s *client.Session, guard sequencer.Sequencer) error {
	t.Helper()
	_, err := s.Edit(within(t, time.Minute), client.Edit{Path: "/ls/ny1/guarded", Guard: guard,
		Changes: []client.Change{{Kind: client.Append, Data: []byte(guard.String() + "\n")}}})
	return err
}

// TestBackup saves a backup under load, tries it, and makes a new cell of it where the old one was.
// The contents are those of one moment of the saving. Nothing that was drawn from the old cell is
// valid in the new one, also what was drawn after the backup; programs and mounts that were of the
// old cell are told.
func TestBackup(t *testing.T) {
	h := oneHost(t, proccell.Config{})
	old := collectRelics(t, h.cell)
	w := startWriters(t, h.cell, 3)
	w.progress(100, time.Minute)
	h.play(step{`echo held > $A/held`, 0, ""})
	holder := h.held(h.a, "held")
	reader, err := os.Open(h.a.Path("config"))
	h.ok(err)
	t.Cleanup(func() { reader.Close() })

	file := filepath.Join(t.TempDir(), "backup")
	before := w.counts()
	saved := h.lockfs("snapshot", "save", file)
	after := w.counts()
	if checked := h.lockfs("snapshot", "check", file); checked != saved || !strings.HasPrefix(saved, "cell ny1, cluster ") {
		t.Errorf("snapshot save says %q, check %q", saved, checked)
	}
	w.progress(100, time.Minute)
	drilled, err := h.cell.Lockfsd(within(t, time.Minute), "drill", file)
	if err != nil || !regexp.MustCompile(`^cell ny1 at entry \d+: \d+ nodes with \d+ bytes read back equal; the first lock there is of generation \d+\n$`).MatchString(drilled) {
		t.Errorf("the drill says %q, %v", drilled, err)
	}
	old.acquire("/ls/ny1/late")
	for _, s := range old.sequencers {
		h.ok(guarded(t, old.session, s))
	}

	refuseFolders(h, file)
	w.halt()
	for _, r := range h.cell.Replicas {
		h.ok(r.Process().Stop(proccell.StopTime))
		_, err := h.cell.Lockfsd(within(t, time.Minute), "restore", file, "--cell", "ny1", "--name", r.Name, "--data", r.Dir)
		refuses(t, err, r.Dir+" is in use: it is restored into a new one")
		h.ok(os.Rename(r.Dir, r.Dir+".old"))
	}
	h.ok(h.cell.Restore(within(t, time.Minute), file))
	h.ok(h.cell.Start(within(t, time.Minute)))

	now := newClient(t, h.cell)
	for i, one := range w.all {
		there := w.lines(now.Reader(), one)
		if len(there) < before[i] || len(there) > after[i] {
			t.Errorf("%s: the backup has %d lines; it was begun at %d and ended at %d", one.name, len(there), before[i], after[i])
		}
		w.compare(one.name, one.told()[:len(there)], there)
	}
	old.passNot(h.cell, now)
	old.told()
	strangers(h, reader, holder)
	sameHash(t, h.cell)
}

// counts are how many lines each writer has tried to write.
func (w *writers) counts() (all []int) {
	for _, one := range w.all {
		all = append(all, len(one.told()))
	}
	return all
}

// refuseFolders tries to restore into folders that are not free.
func refuseFolders(h *hosts, backup string) {
	h.Helper()
	foreign := h.TempDir()
	h.ok(os.WriteFile(filepath.Join(foreign, "letter"), nil, 0o600))
	for folder, why := range map[string]string{
		h.cell.Replicas[0].Dir: "is in use by another lockfsd",
		foreign:                "holds letter and no identity.json: not a lockfsd's, and not empty",
	} {
		_, err := h.cell.Lockfsd(within(h.T, time.Minute), "restore", backup, "--cell", "ny1", "--name", "r1", "--data", folder)
		refuses(h.T, err, "lockfsd: restore "+backup+": data folder "+folder+" "+why)
	}
}

// passNot checks that nothing of the old cell passes in the new one, and that what is drawn there
// does.
func (r *relics) passNot(cell *proccell.Cell, now *client.Client) {
	r.Helper()
	t := r.T
	ok, ctx := fatal(t), within(t, 2*time.Minute)
	s, err := now.Session(ctx)
	ok(err)
	for _, before := range r.sequencers {
		if err := guarded(t, s, before); !errors.Is(err, lockfs.ErrSequencer) {
			t.Errorf("in the new cell, guarded by %v of the old one: %v, want %v", before, err, lockfs.ErrSequencer)
		}
		after, err := s.Acquire(ctx, client.Acquire{Path: before.Path, Owner: s.NewOwner(), Mode: lockfs.Exclusive, Wait: true})
		ok(err)
		if after.Generation <= before.Generation+1<<31 {
			t.Errorf("the grant after %v is %v", before, after)
		}
		if err := guarded(t, s, before); !errors.Is(err, lockfs.ErrSequencer) {
			t.Errorf("with %v held in the new cell, guarded by %v of the old one: %v, want %v", after, before, err, lockfs.ErrSequencer)
		}
		ok(guarded(t, s, after))
	}
	edit := client.Edit{Path: r.config.Path, Changes: []client.Change{{Kind: client.Append, Data: []byte("x")}}}
	edit.IfGeneration = r.config.ContentGeneration
	if _, err := s.Edit(ctx, edit); !errors.Is(err, lockfs.ErrChanged) {
		t.Errorf("an edit of the generation of the old cell: %v, want %v", err, lockfs.ErrChanged)
	}
	edit.IfGeneration, edit.Instance = 0, r.config.Instance
	if _, err := s.Edit(ctx, edit); !errors.Is(err, lockfs.ErrStale) {
		t.Errorf("an edit of the instance of the old cell: %v, want %v", err, lockfs.ErrStale)
	}
	has(t, cell, r.config.Path, []byte("limit=100\n"))
	until(t, "the end of the ephemeral node of the old cell", time.Minute, func() bool {
		_, err := s.Stat(ctx, "/ls/ny1/here", 0)
		return errors.Is(err, lockfs.ErrNotExist)
	})
}

// told checks what a program of the old cell hears.
func (r *relics) told() {
	r.Helper()
	select {
	case <-r.session.Lost():
	case <-within(r.T, 2*time.Minute).Done():
		r.Error("the session of the old cell was not lost")
		return
	}
	const anew = "the cell was made anew"
	if err := r.session.Err(); !errors.Is(err, lockfs.ErrSession) || !strings.Contains(err.Error(), anew) {
		r.Errorf("the session of the old cell ended with %v, want %v saying %q", err, lockfs.ErrSession, anew)
	}
	if _, err := r.client.Session(within(r.T, time.Minute)); !errors.Is(err, lockfs.ErrCell) || !strings.Contains(err.Error(), anew) {
		r.Errorf("a client of the old cell asks for a session: %v, want %v saying %q", err, lockfs.ErrCell, anew)
	}
}

// strangers checks what programs on a mount of the old cell hear: of the files that they have open,
// and of those that they open now.
func strangers(h *hosts, reader *os.File, holder *proccell.Locker) {
	h.Helper()
	if _, err := reader.ReadAt(make([]byte, 1), 0); !errors.Is(err, unix.ESTALE) {
		h.Errorf("a read of a file that was opened in the old cell: %v, want %v", err, unix.ESTALE)
	}
	if said, err := holder.Tell(within(h.T, time.Minute), `LC_ALL=C cat <&9 2>&1`); err == nil || !strings.Contains(said, "Stale file handle") {
		h.Errorf("a program that held a lock in the old cell reads from its file %q, %v", said, err)
	}
	if _, err := os.ReadFile(h.a.Path("config")); !errors.Is(err, unix.EIO) {
		h.Errorf("a read of a file that is opened through a mount of the old cell: %v, want %v", err, unix.EIO)
	}
	if !strings.Contains(h.a.Log(), "the cell was made anew") {
		h.Error("a mount of the old cell does not say what is wrong")
	}
	if err := reader.Close(); !errors.Is(err, unix.ESTALE) { // and the end of the mount need not wait for that
		h.Errorf("the close of a file that was opened in the old cell: %v, want %v", err, unix.ESTALE)
	}
	h.ok(h.a.Stop())
	h.ok(h.a.Start(within(h.T, time.Minute)))
	h.play(step{`cat $A/config; echo y > $A/f; cat $A/f`, 0, "limit=100\ny\n"})
}

// TestBackupDamaged cuts a backup, flips bytes in it, and gives other files for one. Whoever reads it
// refuses it in one sentence, and nothing is restored: the same folder does for a good one.
func TestBackupDamaged(t *testing.T) {
	ok := fatal(t)
	cell := newCell(t, proccell.Config{Replicas: 1})
	grow(t, newClient(t, cell), "/ls/ny1/big", 1)
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	_, err := cell.Lockfs(within(t, time.Minute), "snapshot", "save", good)
	ok(err)
	whole, err := os.ReadFile(good)
	ok(err)
	flipped := func(at int) []byte {
		b := append([]byte(nil), whole...)
		b[at] ^= 0x10
		return b
	}
	data := filepath.Join(dir, "data")
	for name, content := range map[string][]byte{
		"empty": {}, "cut-head": whole[:10], "cut-middle": whole[:len(whole)/2], "cut-end": whole[:len(whole)-1],
		"longer": append(whole[:len(whole):len(whole)], 0), "flipped-head": flipped(3), "flipped-middle": flipped(len(whole) / 2),
		"flipped-end": flipped(len(whole) - 1), "foreign": []byte(strings.Repeat("a letter\n", 100)),
	} {
		bad := filepath.Join(dir, name)
		ok(os.WriteFile(bad, content, 0o600))
		_, check := cell.Lockfs(within(t, time.Minute), "snapshot", "check", bad)
		_, drill := cell.Lockfsd(within(t, time.Minute), "drill", bad)
		_, restore := cell.Lockfsd(within(t, time.Minute), "restore", bad, "--cell", "ny1", "--name", "r1", "--data", data)
		for _, err := range []error{check, drill, restore} {
			refuses(t, err, bad)
			if said := fmt.Sprint(err); strings.Count(strings.TrimSpace(said), "\n") > 0 {
				t.Errorf("not one sentence: %s", said)
			}
		}
	}
	_, err = cell.Lockfsd(within(t, time.Minute), "restore", good, "--cell", "ny2", "--name", "r1", "--data", data)
	refuses(t, err, "ny2")
	_, err = cell.Lockfsd(within(t, time.Minute), "restore", good, "--cell", "ny1", "--name", "r1", "--data", data)
	ok(err)
}
