package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// smallDisks gives each replica of a cell of three a disk of 64 MiB for its data folder.
func smallDisks(t *testing.T) map[string]string {
	t.Helper()
	fusetest.Need(t) // as root, who may mount
	disks := make(map[string]string)
	for _, name := range []string{"r1", "r2", "r3"} {
		disk := t.TempDir()
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
			t.Fatalf("mount a disk of 64 MiB: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", disk, err)
			}
		})
		disks[name] = filepath.Join(disk, "data")
	}
	return disks
}

// fill has a foreign file take what is free on the disk of a replica, but for so many bytes.
func fill(t *testing.T, r *proccell.Replica, but int64) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(r.Dir, "..", "foreign"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for chunk := make([]byte, 64<<10); ; {
		var s unix.Statfs_t
		if err := unix.Statfs(r.Dir, &s); err != nil {
			t.Fatal(err)
		}
		left := int64(s.Bavail)*s.Bsize - but
		if left <= 0 {
			return
		}
		if _, err := file.Write(chunk[:min(left, int64(len(chunk)))]); errors.Is(err, unix.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func empty(t *testing.T, r *proccell.Replica) {
	t.Helper()
	if err := os.Remove(filepath.Join(r.Dir, "..", "foreign")); err != nil {
		t.Fatal(err)
	}
}

// health is what a replica answers at /healthz.
func health(t *testing.T, r *proccell.Replica) (code int, said string) {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t, 10*time.Second), http.MethodGet, "http://"+r.HTTP+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// awaitHealth waits until a replica says that it serves.
func awaitHealth(t *testing.T, r *proccell.Replica) {
	t.Helper()
	until(t, fmt.Sprintf("health of replica %s", r.Name), time.Minute, func() bool {
		code, _ := health(t, r)
		return code == http.StatusOK
	})
}

// statusLine is the line of a replica in what lockfs status shows.
func statusLine(t *testing.T, cell *proccell.Cell, r *proccell.Replica) string {
	t.Helper()
	said, err := cell.Lockfs(within(t, time.Minute), "status", "--timeout", "3s")
	if err != nil && !strings.Contains(said, "has no master") {
		t.Fatal(err)
	}
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, r.Address+" ") {
			return line
		}
	}
	t.Fatalf("status shows no replica at %s:\n%s", r.Address, said)
	return ""
}

// churn rewrites one big file until stop is closed, so that the log grows.
func churn(t *testing.T, c *client.Client, path lockfs.Path, stop <-chan struct{}) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-t.Context().Done():
				return
			default:
			}
			rewrite(t.Context(), c, path, i) // refused where there is no master, which is no fault
		}
	}()
	return ended
}

// bigBytes is the size of a file that is rewritten.
const bigBytes = 200 << 10

// rewrite sets the contents of a file to those number i.
func rewrite(ctx context.Context, c *client.Client, path lockfs.Path, i int) error {
	return overwriteFile(ctx, c, path, contents(i))
}

// overwriteFile sets the contents of a file, which need not be there.
func overwriteFile(ctx context.Context, c *client.Client, path lockfs.Path, content []byte) error {
	s, err := c.Session(ctx)
	if err != nil {
		return err
	}
	edit := client.Edit{Path: path, Changes: []client.Change{{Kind: client.Truncate}, {Kind: client.Append, Data: content}}}
	if _, err = s.Edit(ctx, edit); errors.Is(err, lockfs.ErrNotExist) {
		_, _, err = s.Create(ctx, client.Create{Path: path, Type: lockfs.File, Content: content})
	}
	return err
}

// contents are big, and of number i alone.
func contents(i int) []byte {
	return fmt.Appendf(nil, "%0*d", bigBytes, i)
}

// TestL097 fills the disk of the master, that of a follower, and all of them, while programs write,
// and frees them again. Nobody has to do anything else, and nothing acknowledged is missing.
func TestL097(t *testing.T) {
	h := oneHost(t, proccell.Config{Data: smallDisks(t)})
	w := startWriters(t, h.cell, 2)
	mounted := h.startJournal("journal")
	w.progress(20, time.Minute)

	// Little is free for the master: it hands over.
	_, full := followers(t, h.cell)
	mark := full.Mark()
	fill(t, full, 12<<20)
	h.ok(full.Says(within(t, time.Minute), "handing mastership over, for little is free on this replica's disk", mark))
	until(t, "another master", time.Minute, func() bool { _, now := followers(t, h.cell); return now != full })
	if line := statusLine(t, h.cell, full); !strings.Contains(line, " of 64 MiB (low)") {
		t.Errorf("the status of a replica with little room is %q", line)
	}
	w.progress(20, failoverTime)

	// Nothing is free for a follower: it steps aside, and the others go on.
	stop := make(chan struct{})
	churned := churn(t, newClient(t, h.cell), "/ls/ny1/big", stop)
	fill(t, full, 0)
	awaitAside(h, full)
	w.progress(20, failoverTime)
	empty(t, full)
	awaitBack(h, full)
	w.progress(20, failoverTime)

	// Nothing is free for the master, all at once.
	_, full = followers(t, h.cell)
	fill(t, full, 0)
	awaitAside(h, full)
	w.progress(20, failoverTime)
	empty(t, full)
	awaitBack(h, full)
	w.progress(20, failoverTime)
	h.finishJournal(mounted, failoverTime)
	longest := w.longest()

	// Nothing is free for anybody: no write is acknowledged that gets lost by that.
	for _, r := range h.cell.Replicas {
		fill(t, r, 0)
	}
	until(t, "two replicas that have stepped aside", time.Minute, func() bool {
		aside := 0
		for _, r := range h.cell.Replicas {
			if code, said := health(t, r); code == http.StatusServiceUnavailable && strings.Contains(said, "waits for room") {
				aside++
			}
		}
		return aside >= 2
	})
	for _, r := range h.cell.Replicas {
		empty(t, r)
	}
	for _, r := range h.cell.Replicas {
		awaitBack(h, r)
	}
	w.progress(20, time.Minute)
	if longest > failoverTime {
		t.Errorf("with one full disk nothing was acknowledged for %v; a failover may take %v", longest, failoverTime)
	}
	close(stop)
	<-churned
	w.finish(3 * time.Minute)
}

// awaitAside waits until a replica has stepped aside, and checks that it says so.
func awaitAside(h *hosts, r *proccell.Replica) {
	h.Helper()
	h.until("word at /healthz of a replica that waits for room", time.Minute, func() bool {
		code, said := health(h.T, r)
		return code == http.StatusServiceUnavailable && said == "the replica is starting, or waits for room on its disk\n"
	})
	if !strings.Contains(r.Log(), "the disk is full: this replica steps aside until there is room") {
		h.Errorf("a replica with a full disk does not say that it steps aside")
	}
	if line := statusLine(h.T, h.cell, r); !strings.Contains(line, "connection refused") {
		h.Errorf("the status of a replica with a full disk is %q", line)
	}
}

func awaitBack(h *hosts, r *proccell.Replica) {
	h.Helper()
	awaitHealth(h.T, r)
	if !r.Running() {
		h.Fatalf("replica %s has ended", r.Name)
	}
}

// longest is the longest stretch so far in which a writer had nothing acknowledged.
func (w *writers) longest() (longest time.Duration) {
	for _, one := range w.all {
		one.mu.Lock()
		longest = max(longest, one.mu.longest)
		one.mu.Unlock()
	}
	return longest
}

// damage overwrites so many random pages of a file, or, for 0, cuts it somewhere, and says how.
func damage(t *testing.T, dice *rand.Rand, path string, pages int) (what string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		size := dice.Int64N(info.Size())
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("cut to %d of %d bytes", size, info.Size())
	}
	page := make([]byte, os.Getpagesize())
	all := info.Size() / int64(len(page))
	for range pages {
		for i := range page {
			page[i] = byte(dice.Uint32())
		}
		if _, err := file.WriteAt(page, dice.Int64N(all)*int64(len(page))); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%d of %d pages overwritten", pages, all)
}

// TestL099 overwrites random pages of the state file of a replica, or cuts it. The replica starts,
// and in the end has what the others have. It says that it makes its state anew, but where all of the
// damage is in pages that are free.
func TestL099(t *testing.T) {
	ok := fatal(t)
	cell := newCell(t, proccell.Config{Data: smallDisks(t)}) // and so with short logs
	w := startWriters(t, cell, 2)
	c := newClient(t, cell)
	for i := range 15 { // so much that the log does not have everything from the beginning
		grow(t, c, lockfs.Path(fmt.Sprint("/ls/ny1/big-", i)), 5)
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	for round := range sized(2, 60) {
		w.progress(20, time.Minute)
		r := cell.Replicas[round%len(cell.Replicas)]
		if dice.IntN(2) == 0 {
			ok(r.Process().Stop(proccell.StopTime)) // all is in the file
		} else {
			ok(r.Process().Kill())
		}
		pages := 256 // some of which are certainly in use
		if round > 0 {
			pages = []int{0, 1, 4, 16, 64, 256}[dice.IntN(6)]
		}
		what := damage(t, dice, filepath.Join(r.Dir, "state.db"), pages)
		mark := r.Mark()
		if err := r.Start(within(t, time.Minute)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		anew := r.Says(within(t, 0), "it is put aside, and made anew", mark) == nil
		t.Logf("%s of %s: made anew: %v", what, r.Name, anew)
		if round == 0 && !anew {
			t.Errorf("%s: that was not noticed", what)
		}
		if _, err := os.Stat(filepath.Join(r.Dir, "state.db.aside")); anew && err != nil {
			t.Errorf("%s: what was damaged is gone: %v", what, err)
		}
	}
	w.finish(failoverTime)
}

// grow rewrites one big file n times, and returns what is to be in it.
func grow(t *testing.T, c *client.Client, path lockfs.Path, n int) []byte {
	t.Helper()
	for i := range n {
		fatal(t)(rewrite(within(t, time.Minute), c, path, i))
	}
	return contents(n - 1)
}

// has checks the contents of a file.
func has(t *testing.T, cell *proccell.Cell, path lockfs.Path, want []byte) {
	t.Helper()
	have, _, err := newClient(t, cell).Reader().Read(within(t, time.Minute), path, 0)
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s has %d bytes that begin with %.20q, %v; want %d that end with %q",
			path, len(have), have, err, len(want), want[len(want)-10:])
	}
}

// overwrite damages all of a state file.
func overwrite(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	fatal(t)(err)
	fatal(t)(os.WriteFile(path, make([]byte, info.Size()), 0o600))
}

// TestL099Alone damages the state file of a cell of one. While the log has everything, the state is
// made of that. Later only a backup helps, which each start says; and a state that is whole again
// serves again. Where the log is damaged, the backup does help.
func TestL099Alone(t *testing.T) {
	ok := fatal(t)
	cell := newCell(t, proccell.Config{Replicas: 1, Data: smallDisks(t)})
	c, r := newClient(t, cell), cell.Replicas[0]
	state := filepath.Join(r.Dir, "state.db")
	want := grow(t, c, "/ls/ny1/f", 5)
	ok(r.Process().Stop(proccell.StopTime))
	overwrite(t, state)
	mark := r.Mark()
	ok(r.Start(within(t, time.Minute)))
	ok(r.Says(within(t, time.Second), "it is put aside, and made anew", mark))
	has(t, cell, "/ls/ny1/f", want)

	want = grow(t, c, "/ls/ny1/f", 90) // 18 MiB, of which the log keeps the latest
	ok(r.Process().Stop(proccell.StopTime))
	whole, err := os.ReadFile(state)
	ok(err)
	overwrite(t, state)
	for range 2 {
		ok(r.Launch())
		endsSaying(t, r, "the state is damaged or gone, the log does not begin at the beginning, and the cell has no other member: "+
			"restore a backup into a new folder with lockfsd restore")
	}
	ok(os.WriteFile(state, whole, 0o600))
	ok(r.Start(within(t, time.Minute)))
	has(t, cell, "/ls/ny1/f", want)

	backup := filepath.Join(t.TempDir(), "backup")
	_, err = cell.Lockfs(within(t, time.Minute), "snapshot", "save", backup)
	ok(err)
	ok(r.Process().Kill())
	segments, err := filepath.Glob(filepath.Join(r.Dir, "wal", "*.wal"))
	ok(err)
	flip(t, segments[0], 64<<10)
	ok(r.Launch())
	endsSaying(t, r, "it is damaged in segment "+filepath.Base(segments[0]), "Restore a backup into a new folder with lockfsd restore")
	ok(os.RemoveAll(r.Dir)) // the disk has no place for both
	ok(cell.Restore(within(t, time.Minute), backup))
	ok(r.Start(within(t, time.Minute)))
	has(t, cell, "/ls/ny1/f", want)
}

// TestL099Interrupted kills a replica that put its damaged state aside, and waits for one from the
// others: it goes on with that at its next start.
func TestL099Interrupted(t *testing.T) {
	ok := fatal(t)
	cell := newCell(t, proccell.Config{Data: smallDisks(t)})
	want := grow(t, newClient(t, cell), "/ls/ny1/f", 90)
	for _, r := range cell.Replicas {
		ok(r.Process().Stop(proccell.StopTime))
	}
	r := cell.Replicas[0]
	overwrite(t, filepath.Join(r.Dir, "state.db"))
	for range 2 {
		mark := r.Mark()
		ok(r.Launch())
		ok(r.Says(within(t, time.Minute), "no other member gave its state yet", mark))
		ok(r.Process().Kill())
	}
	for _, r := range cell.Replicas {
		ok(r.Launch())
	}
	awaitHealth(t, r)
	has(t, cell, "/ls/ny1/f", want)
	sameHash(t, cell)
}

// TestDamagedLog flips a byte in the middle of the log of a replica, which has promised to the others
// what was there. It is refused, in one sentence that names the way back; that way, it comes back.
func TestDamagedLog(t *testing.T) {
	ok := fatal(t)
	cell := newCell(t, proccell.Config{})
	w := startWriters(t, cell, 2)
	w.progress(100, time.Minute)
	others, _ := followers(t, cell)
	r := others[0]
	ok(r.Process().Kill())
	segments, err := filepath.Glob(filepath.Join(r.Dir, "wal", "*.wal"))
	ok(err)
	flip(t, segments[0], 4<<10)
	for range 2 {
		ok(r.Launch())
		endsSaying(t, r, "it is damaged in segment "+filepath.Base(segments[0]), "lockfs member replace "+r.Name+" HOST:PORT", "--join")
	}
	w.progress(20, failoverTime)
	change(t, cell, "replace", r.Name, r.Address)
	ok(os.RemoveAll(r.Dir))
	cell.Join(r)
	ok(r.Start(within(t, time.Minute)))
	awaitVoters(t, cell, "r1", "r2", "r3")
	w.finish(failoverTime)
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	fatal(t)(err)
	defer file.Close()
	b := make([]byte, 1)
	_, err = file.ReadAt(b, at)
	fatal(t)(err)
	b[0] ^= 0x10
	_, err = file.WriteAt(b, at)
	fatal(t)(err)
}
