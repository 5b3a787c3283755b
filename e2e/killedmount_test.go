package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// Bounds of when the locks of a killed host go to others.
const (
	shortLease = 4 * time.Second
	shortDelay = 2 * time.Second
	promptness = 1500 * time.Millisecond // of whoever is due
)

// TestMountKilled kills the mount of one host, and then that of the other, with -9, under programs
// that hold locks, wait for some, write, or just are there. All of them learn it, and none is stuck;
// a new mount takes the place of the dead one; and the other host gets each lock when the lease and
// then the lock's own delay are over, not before and not much later.
func TestMountKilled(t *testing.T) {
	h := twoHosts(t, proccell.Config{Lease: shortLease})
	h.play(step{`echo here > $A/f; : > $A/theirs`, 0, ""})
	for round := range sized(2, 20) {
		k := &killing{hosts: h, here: h.a, there: h.b, round: round}
		if round%2 == 1 {
			k.here, k.there = h.b, h.a
		}
		k.prepare()
		k.freeze()
		k.kill()
		k.restart()
		k.handOver()
		k.clear()
	}
}

// killing is one round: a mount here that is killed, and one there that goes on.
type killing struct {
	*hosts
	here, there *proccell.Mount
	round       int

	session        uint64                      // of the mount here
	holders, heirs map[string]*proccell.Talker // by file: who holds its lock here, and who waits there
	waiters        []*proccell.Talker          // here, for the lock of theirs,
	theirs         *proccell.Talker            // which is held there
	writer, guest  *proccell.Talker            // here
	stuck          []*proccell.Talker          // here, in calls that a frozen mount does not answer
	silent         time.Time                   // since when the mount here renews nothing
}

// delays are the lock-delays of the files whose locks are held here, each locked by another call.
var delays = map[string]struct {
	delay time.Duration
	kind  string
}{
	"at-once":   {0, "flock"},
	"at-once-2": {0, "fcntl"},
	"later":     {shortDelay, "fcntl"},
	"later-2":   {shortDelay, "OFD"},
}

// writerScript appends numbers, and says which of them were acknowledged. The echo is not the
// shell's own, which does not look at what close returns.
const writerScript = `for ((n = 1;; n++)); do $(type -P echo) $n >> "$1" && echo "acknowledged $n" || exit 0; done`

// guestScript lives in the mount: it has its working directory there, and a file open.
const guestScript = `cd "$1" && exec 8< f && echo arrived; read -r line; cat <&8; ls; echo end`

// stuckScripts make calls when they are told to. Each ends with the call.
var stuckScripts = []string{
	`read -r go; exec cat "$1/f"`,
	`exec 8>> "$1/stuck"; echo opened; read -r go; echo stuck >&8`,
	`read -r go; exec ls -l "$1"`,
	`read -r go; exec mkdir "$1/stuck-too"`,
	`exec 8<> "$1/f"; echo opened; read -r go; exec flock 8`,
	`read -r go; exec dd if=/dev/zero of="$1/stuck" bs=1k count=1 status=none`,
}

func (k *killing) prepare() {
	k.Helper()
	k.holders, k.heirs = make(map[string]*proccell.Talker), make(map[string]*proccell.Talker)
	grant := func(p *proccell.Talker) {
		_, err := p.Hear(within(k.T, time.Minute), "granted", 0)
		k.ok(err)
	}
	for file, d := range delays {
		k.ok(os.WriteFile(k.there.Path(file), nil, 0o644))
		seconds := strconv.Itoa(int(d.delay / time.Second))
		k.ok(unix.Setxattr(k.here.Path(file), "user.lockfs.lock_delay", []byte(seconds), 0))
		k.holders[file] = program(k.T, "hold", d.kind, "wait", k.here.Path(file))
		grant(k.holders[file])
		k.heirs[file] = program(k.T, "hold", d.kind, "wait", k.there.Path(file))
	}
	k.theirs = program(k.T, "hold", "flock", "wait", k.there.Path("theirs"))
	grant(k.theirs)
	for _, kind := range []string{"flock", "fcntl", "OFD"} {
		for range 3 {
			k.waiters = append(k.waiters, program(k.T, "hold", kind, "wait", k.here.Path("theirs")))
		}
	}
	for file := range delays {
		k.waiting(file, 1)
	}
	k.waiting("theirs", len(k.waiters))
	k.session = k.holderOf("at-once")

	k.guest = talk(k.T, "guest", exec.Command("bash", "-c", guestScript, "guest", k.here.Path("")))
	_, err := k.guest.Hear(within(k.T, time.Minute), "arrived", 0)
	k.ok(err)
	k.tell("at-once", "write kept", "done")
	k.tell("at-once", "sync", "done")
	k.writer = talk(k.T, "writer", exec.Command("bash", "-c", writerScript, "writer", k.here.Path(k.journal())))
	_, err = k.writer.Hear(within(k.T, time.Minute), "acknowledged 3", 0)
	k.ok(err)
	k.tell("later", "write draft", "done")
	for _, script := range stuckScripts {
		p := talk(k.T, "stuck "+script, exec.Command("bash", "-c", script, "stuck", k.here.Path("")))
		if strings.Contains(script, "opened") {
			_, err := p.Hear(within(k.T, time.Minute), "opened", 0)
			k.ok(err)
		}
		k.stuck = append(k.stuck, p)
	}
}

func (k *killing) journal() string { return fmt.Sprint("journal-", k.round) }

// tell tells the holder of a lock, and wants its answer.
func (k *killing) tell(file, what, answer string) {
	k.Helper()
	if _, err := k.holders[file].Ask(within(k.T, time.Minute), what, answer); err != nil {
		k.Fatal(err)
	}
}

// holderOf returns the session that holds the lock of a file.
func (k *killing) holderOf(file string) uint64 {
	k.Helper()
	var list struct {
		Locks []struct {
			Holders []struct{ Session uint64 }
		}
	}
	k.ok(json.Unmarshal([]byte(k.lockfs("locks", "-o", "json", "/ls/"+k.cell.Name()+"/"+file)), &list))
	if len(list.Locks) != 1 || len(list.Locks[0].Holders) != 1 {
		k.Fatalf("%s: not one holder: %+v", file, list)
	}
	return list.Locks[0].Holders[0].Session
}

// freeze stops the mount, and lets programs call it in vain.
func (k *killing) freeze() {
	k.Helper()
	k.silent = time.Now()
	k.here.Process().Freeze()
	for _, p := range k.stuck {
		k.ok(p.Say("go"))
		k.until(p.Name, 20*time.Second, func() bool {
			where, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.Pid()))
			k.ok(err)
			return strings.Contains(string(where), "request_wait_answer")
		})
	}
}

// kill kills the mount. Who waited for a lock is told, and who holds one is as soon as it asks.
func (k *killing) kill() {
	k.Helper()
	k.ok(k.here.Process().Kill())
	for _, p := range k.stuck {
		if err := p.Wait(within(k.T, 20*time.Second)); proccell.ExitCode(err) < 1 {
			k.Errorf("%s: %v, want an error of its own; it said %q", p.Name, err, p.Log)
		}
	}
	for _, w := range k.waiters {
		refused, err := w.Hear(within(k.T, 20*time.Second), "refused", 0)
		k.ok(err)
		if !strings.HasSuffix(refused, " ECONNABORTED") && !strings.HasSuffix(refused, " ENOTCONN") {
			k.Errorf("a waiter for a lock of a dead mount was told %s", refused)
		}
	}
	for file := range delays {
		for _, what := range []string{"lock", "read", "write more", "sync"} {
			k.tell(file, what, "failed ENOTCONN")
		}
	}
	k.ok(k.writer.Wait(within(k.T, 20*time.Second)))
}

// restart starts the mount again where the dead one still is.
func (k *killing) restart() {
	k.Helper()
	k.ok(k.here.Start(within(k.T, 20*time.Second)))
	mounts, err := os.ReadFile("/proc/mounts")
	k.ok(err)
	if n := strings.Count(string(mounts), " "+k.here.Dir+" "); n != 1 {
		k.Errorf("%d entries of %s in /proc/mounts, want 1", n, k.here.Dir)
	}
	content, err := os.ReadFile(k.here.Path("f"))
	if err != nil || string(content) != "here\n" {
		k.Errorf("through the new mount f holds %q, %v", content, err)
	}
	// Old files do not come back with it.
	k.tell("at-once", "read", "failed ENOTCONN")
	_, err = k.guest.Ask(within(k.T, 20*time.Second), "look", "end")
	k.ok(err)
	if said := k.guest.Log.String(); strings.Contains(said, "here") || strings.Count(said, "not connected") < 2 {
		k.Errorf("a guest in the dead mount says %q", said)
	}
}

// handOver waits until the other host has the locks, and checks when it got them.
func (k *killing) handOver() {
	k.Helper()
	granted := make(map[string]time.Time)
	for file := range delays {
		k.tell(file, "lock", "failed ENOTCONN") // still
		at, err := k.heirs[file].Hear(within(k.T, time.Minute), "granted ", 0)
		k.ok(err)
		nanoseconds, err := strconv.ParseInt(at, 10, 64)
		k.ok(err)
		granted[file] = time.Unix(0, nanoseconds)
	}
	ended := k.expiry()
	took := ended.Sub(k.silent)
	k.Logf("the session of host %s ended %v after its mount", k.here.Name, took.Round(time.Millisecond))
	// It was renewed each third of a lease, or a little later.
	if took < shortLease/2 || took > shortLease+promptness {
		k.Errorf("that is not its lease of %v", shortLease)
	}
	for file, at := range granted {
		after := at.Sub(ended)
		k.Logf("%s was granted %v later", file, after.Round(time.Millisecond))
		if want := delays[file].delay; after < want || after > want+promptness {
			k.Errorf("that is not its lock-delay of %v", want)
		}
	}
}

// expiry returns when the master ended the session, by its log.
func (k *killing) expiry() (at time.Time) {
	k.Helper()
	mark := fmt.Sprintf("msg=\"session expired\" session=%d\n", k.session)
	for _, r := range k.cell.Replicas {
		for line := range strings.Lines(r.Log()) {
			if !strings.HasSuffix(line, mark) {
				continue
			}
			stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			k.ok(err)
			return at
		}
	}
	k.Fatalf("no replica says that session %d expired", k.session)
	return at
}

// clear ends all programs, and checks what they left.
func (k *killing) clear() {
	k.Helper()
	here := append([]*proccell.Talker{k.guest}, k.waiters...)
	for _, holder := range k.holders {
		here = append(here, holder)
	}
	for _, p := range here {
		if stuck := stuckOf(p.Pid()); stuck != "" {
			k.Errorf("%s is stuck: %s", p.Name, stuck)
		}
		k.ok(p.Kill())
	}
	k.verifyJournal()
	k.want("at-once", "kept\n")
	k.want("later", "", "draft\n") // not acknowledged: wholly there or not at all

	// The waiters of the dead mount are out of the queue, and no lock went to any of them.
	k.ok(k.theirs.Kill())
	for _, heir := range k.heirs {
		k.ok(heir.Kill())
	}
	k.until("all locks are let go", 20*time.Second, func() bool { return k.lockfs("locks") == "" })
	k.play(step{`for f in at-once later theirs; do flock -w 5 $A/$f true && flock -w 5 $B/$f true || echo $f; done`, 0, ""})
}

// stuckOf returns what shows of a process that is in state D and stays there.
func stuckOf(pid int) string {
	for range 20 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, after, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(after, "D") {
			return ""
		}
		<-time.After(100 * time.Millisecond)
	}
	stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stack", pid))
	return "state D for 2 s\n" + string(stack)
}

func (k *killing) verifyJournal() {
	k.Helper()
	acknowledged := strings.Count(k.writer.Log.String(), "acknowledged ")
	content, err := os.ReadFile(k.there.Path(k.journal()))
	k.ok(err)
	lines := strings.Fields(string(content))
	for i, line := range lines {
		if line != strconv.Itoa(i+1) {
			k.Fatalf("%s: line %d is %s", k.journal(), i+1, line)
		}
	}
	if len(lines) != acknowledged && len(lines) != acknowledged+1 {
		k.Errorf("%d lines were acknowledged, %d are there", acknowledged, len(lines))
	}
	k.Logf("%d lines were acknowledged, %d are there", acknowledged, len(lines))
}

func (k *killing) want(file string, contents ...string) {
	k.Helper()
	content, err := os.ReadFile(filepath.Join(k.there.Path(file)))
	k.ok(err)
	if !slices.Contains(contents, string(content)) {
		k.Errorf("%s holds %q, want one of %q", file, content, contents)
	}
}
