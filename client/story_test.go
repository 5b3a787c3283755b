package client

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
)

var update = flag.Bool("update", false, "rewrite the answers of the stories")

// TestStories plays testdata/*.txt: a command, a line of dashes, the answer. The commands drive
// the machine bare, as its driver would:
//
//	link 3                         both streams to the master of epoch 3 are there (lease 12s, grace 45s)
//	cut                            they are gone
//	advance 4s                     time passes, and the machine is woken when it wants
//	freeze 20s                     time passes, and the host is not running
//
//	session s                      somebody wants the session; s names the call
//	stat n /ls/c/x                 a read; plain n … is one without a session
//	edit n /ls/c/x
//	acquire n 1 /ls/c/x exclusive  [wait]; owner 1
//	release n 1 /ls/c/x
//	owner-closed 1
//	close n, end n                 the session; end is what its closer does then
//	cancel n                       its caller's context ends
//	slow n, collect n              n's caller does not run before collect
//
//	answer 3 ok|ErrBusy            what the master says to call 3; also: stat, granted exclusive 41,
//	                               session 7, attached [1:/ls/c/x:exclusive:41 …], given-up,
//	                               done [any of these]
//	taken 3
//	renewed 2                      [lease=12s] [ErrSession]
//
// The answer shows what is sent (calls with ->, keep-alives with =>) and what callers get.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := newTeller(t)
			got := w.play(string(text))
			w.checkNothingIsForgotten()
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("the story went otherwise:\n%s", diff(string(text), got))
			}
		})
	}
}

// diff shows the first lines that differ, with the lines before them.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\n%s\nwant %s\ngot  %s", i+1, strings.Join(w[max(0, i-6):i], "\n"), w[i], g[i])
		}
	}
	return "one is longer than the other"
}

// kinds are the errors that stories name.
var kinds = map[string]lockfs.Kind{
	"ErrBusy": lockfs.ErrBusy, "ErrSession": lockfs.ErrSession, "ErrEpoch": lockfs.ErrEpoch,
	"ErrNotMaster": lockfs.ErrNotMaster, "ErrCell": lockfs.ErrCell, "ErrStale": lockfs.ErrStale,
	"ErrGivenUp": lockfs.ErrGivenUp, "ErrReleased": lockfs.ErrReleased, "ErrLimit": lockfs.ErrLimit,
	"ErrNotExist": lockfs.ErrNotExist, "ErrNotHeld": lockfs.ErrNotHeld, "ErrUnavailable": lockfs.ErrUnavailable,
	"ErrInternal": lockfs.ErrInternal,
}

var modes = map[string]lockfs.Mode{"shared": lockfs.Shared, "exclusive": lockfs.Exclusive}

type teller struct {
	t     *testing.T
	m     *machine
	now   clock.Instant
	calls map[string]*call
	names map[*call]string
	slow  map[*call]bool
	last  *session // the newest, dead or alive
	out   *bytes.Buffer
}

func newTeller(t *testing.T) *teller {
	return &teller{
		t: t, m: newMachine(slog.New(slog.DiscardHandler), 10*time.Second, "h"),
		now:   clock.Instant(time.Hour),
		calls: make(map[string]*call), names: make(map[*call]string), slow: make(map[*call]bool),
	}
}

// play returns the story with the answers as they are.
func (w *teller) play(text string) string {
	var out strings.Builder
	skipping := false
	for line := range strings.SplitAfterSeq(text, "\n") {
		command := strings.TrimSpace(line)
		switch {
		case skipping && command != "":
			continue // an old answer
		case command == "" || strings.HasPrefix(command, "#"):
			skipping = false
			out.WriteString(line)
		case command == "----":
			skipping = true
			out.WriteString(line)
			out.WriteString(w.out.String())
		default:
			out.WriteString(line)
			w.out = new(bytes.Buffer)
			w.do(strings.Fields(command))
			w.flush()
		}
	}
	return out.String()
}

// checkNothingIsForgotten looks for calls that nobody will ever collect.
func (w *teller) checkNothingIsForgotten() {
	for c := range w.last.held {
		if w.names[c] == "" {
			w.t.Errorf("%s %s is kept for nobody", c.op, c.path)
		}
	}
}

func (w *teller) do(args []string) {
	switch verb, rest := args[0], args[1:]; verb {
	case "link":
		epoch, _ := strconv.ParseUint(rest[0], 10, 64)
		w.m.linked(w.now, "r1", &lockpb.Welcome{ClusterId: 9, Master: true, Epoch: epoch, LeaseMs: 12000, GraceMs: 45000})
	case "look":
		w.m.looking(w.now)
	case "cut":
		w.m.unlinked(w.now, "cut")
	case "advance":
		w.advance(w.now.Add(w.duration(rest[0])))
	case "freeze":
		w.now = w.now.Add(w.duration(rest[0]))
	case "cancel":
		w.m.cancel(w.now, w.calls[rest[0]], context.Canceled)
	case "slow":
		w.slow[w.calls[rest[0]]] = true
	case "collect":
		delete(w.slow, w.calls[rest[0]])
		w.collect(w.calls[rest[0]])
	case "end":
		w.m.end(w.now, w.last, w.calls[rest[0]].failure)
	case "owner-closed":
		w.m.closeOwner(w.now, w.last, w.number(rest[0]))
	case "answer":
		a := w.answer(rest[1:])
		a.Id = w.number(rest[0])
		w.m.answered(w.now, a)
	case "taken":
		w.m.taken(w.now, w.number(rest[0]))
	case "renewed":
		w.renewed(rest)
	default:
		w.start(verb, rest[0], rest[1:])
	}
	if w.m.session != nil {
		w.last = w.m.session
	}
}

// advance lets time pass as a driver does: the machine is woken whenever it wants to be.
func (w *teller) advance(to clock.Instant) {
	for {
		at, ok := w.m.deadline()
		if !ok || at > to {
			break
		}
		if at > w.now {
			w.now = at
		}
		w.m.tick(w.now)
		w.flush()
	}
	w.now = to
}

func (w *teller) start(op, name string, args []string) {
	var c *call
	switch op {
	case "session":
		c = newCall(wantSession, nil, "session", "", nil)
	case "plain":
		c = newCall(read, nil, "stat", lockfs.Path(args[0]), &lockpb.Call{Op: &lockpb.Call_Stat{Stat: &lockpb.StatNode{Path: args[0]}}})
	case "stat":
		c = newCall(read, w.last, "stat", lockfs.Path(args[0]), &lockpb.Call{Op: &lockpb.Call_Stat{Stat: &lockpb.StatNode{Path: args[0]}}})
	case "edit":
		c = newCall(mutation, w.last, "edit", lockfs.Path(args[0]), &lockpb.Call{Op: &lockpb.Call_Edit{Edit: &lockpb.Edit{Path: args[0]}}})
	case "acquire":
		wait := len(args) > 3
		c = newCall(mutation, w.last, "acquire", lockfs.Path(args[1]), &lockpb.Call{Op: &lockpb.Call_Acquire{Acquire: &lockpb.Acquire{
			Path: args[1], Owner: w.number(args[0]), Mode: uint32(modes[args[2]]), Wait: wait}}})
		c.waits = wait
	case "release":
		c = newCall(mutation, w.last, "release", lockfs.Path(args[1]), &lockpb.Call{Op: &lockpb.Call_Release{Release: &lockpb.Release{
			Path: args[1], Owner: w.number(args[0])}}})
	case "close":
		w.last.closing = true
		c = newCall(closing, w.last, "close session", "", &lockpb.Call{Op: &lockpb.Call_CloseSession{CloseSession: &lockpb.CloseSession{}}})
	default:
		w.t.Fatalf("no command %q", op)
	}
	w.calls[name], w.names[c] = c, name
	w.m.start(w.now, c)
}

func (w *teller) renewed(args []string) {
	r := &lockpb.Renewed{Session: w.last.id, Number: w.number(args[0]), LeaseMs: 12000}
	for _, arg := range args[1:] {
		if lease, ok := strings.CutPrefix(arg, "lease="); ok {
			r.LeaseMs = w.duration(lease).Milliseconds()
		} else {
			r.Kind = uint32(kinds[arg])
		}
	}
	w.m.keepAlive(w.now, &lockpb.KeepAliveAnswer{Renewed: []*lockpb.Renewed{r}})
}

func (w *teller) answer(args []string) *lockpb.Answer {
	switch args[0] {
	case "ok":
		return &lockpb.Answer{}
	case "stat":
		return &lockpb.Answer{Result: &lockpb.Answer_Stat{Stat: &lockpb.NodeStat{Instance: 5}}}
	case "granted":
		return &lockpb.Answer{Result: &lockpb.Answer_Granted{Granted: &lockpb.Granted{
			Instance: 5, Mode: uint32(modes[args[1]]), Generation: w.number(args[2])}}}
	case "session":
		return &lockpb.Answer{Result: &lockpb.Answer_SessionCreated{SessionCreated: &lockpb.SessionCreated{
			Session: w.number(args[1]), LeaseMs: 12000}}}
	case "attached":
		return &lockpb.Answer{Result: &lockpb.Answer_Attached{Attached: &lockpb.Attached{Locks: w.locks(args[1:])}}}
	case "given-up":
		return &lockpb.Answer{Result: &lockpb.Answer_GaveUp{GaveUp: &lockpb.GaveUp{GivenUp: true}}}
	case "done":
		return &lockpb.Answer{Result: &lockpb.Answer_GaveUp{GaveUp: &lockpb.GaveUp{Answer: w.answer(args[1:])}}}
	}
	kind, ok := kinds[args[0]]
	if !ok {
		w.t.Fatalf("no answer %q", args[0])
	}
	return &lockpb.Answer{Kind: uint32(kind)}
}

func (w *teller) locks(args []string) []*lockpb.HeldLock {
	var locks []*lockpb.HeldLock
	for _, arg := range args {
		f := strings.Split(arg, ":")
		locks = append(locks, &lockpb.HeldLock{
			Owner: w.number(f[0]), Path: f[1], Instance: 5, Mode: uint32(modes[f[2]]), Generation: w.number(f[3])})
	}
	return locks
}

func (w *teller) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *teller) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// flush shows what came out of the machine.
func (w *teller) flush() {
	out := w.m.out
	w.m.out = output{}
	for _, f := range out.calls {
		fmt.Fprintf(w.out, "%s-> %s\n", w.when(), callText(f.GetCall()))
	}
	for _, f := range out.keeps {
		if c := f.GetCall(); c != nil {
			fmt.Fprintf(w.out, "%s=> %s\n", w.when(), callText(c))
		} else {
			fmt.Fprintf(w.out, "%s=> renewal %d\n", w.when(), f.GetKeepAlive().GetRenewals()[0].GetNumber())
		}
	}
	if out.look {
		fmt.Fprintf(w.out, "%sa look at all replicas is wanted\n", w.when())
	}
	if out.drop != "" {
		fmt.Fprintf(w.out, "%slink given up: %s\n", w.when(), out.drop)
	}
	for _, s := range out.lost {
		fmt.Fprintf(w.out, "%s%v\n", w.when(), s.err)
	}
	for _, c := range out.ready {
		if w.names[c] != "" && !w.slow[c] {
			w.collect(c)
		}
	}
}

// when is the time since the story began.
func (w *teller) when() string {
	return fmt.Sprintf("%v ", w.now.Sub(clock.Instant(time.Hour)))
}

func (w *teller) collect(c *call) {
	name := w.names[c]
	switch {
	case !w.m.collect(w.now, c):
		fmt.Fprintf(w.out, "%s%s is held back\n", w.when(), name)
	case c.failure != nil:
		fmt.Fprintf(w.out, "%s%s: %v\n", w.when(), name, c.failure)
	case c.answer.GetGranted() != nil:
		g := c.answer.GetGranted()
		fmt.Fprintf(w.out, "%s%s: %v %d\n", w.when(), name, lockfs.Mode(g.GetMode()), g.GetGeneration())
	default:
		fmt.Fprintf(w.out, "%s%s: ok\n", w.when(), name)
	}
}

func callText(c *lockpb.Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d epoch=%d", c.GetId(), c.GetEpoch())
	if c.GetNumber() != 0 {
		fmt.Fprintf(&b, " number=%d", c.GetNumber())
	}
	for _, r := range c.GetConfirmed() {
		fmt.Fprintf(&b, " confirms=%d-%d", r.GetFirst(), r.GetLast())
	}
	switch {
	case c.GetCreateSession() != nil:
		b.WriteString(" create session")
	case c.GetAttach() != nil:
		fmt.Fprintf(&b, " attach hello=%d", c.GetAttach().GetHello())
	case c.GetStat() != nil:
		b.WriteString(" stat " + c.GetStat().GetPath())
	case c.GetEdit() != nil:
		b.WriteString(" edit " + c.GetEdit().GetPath())
	case c.GetAcquire() != nil:
		a := c.GetAcquire()
		fmt.Fprintf(&b, " acquire %d:%s %v wait=%v", a.GetOwner(), a.GetPath(), lockfs.Mode(a.GetMode()), a.GetWait())
	case c.GetRelease() != nil:
		fmt.Fprintf(&b, " release %d:%s", c.GetRelease().GetOwner(), c.GetRelease().GetPath())
	case c.GetCloseOwner() != nil:
		fmt.Fprintf(&b, " close owner %d %v", c.GetCloseOwner().GetOwner(), c.GetCloseOwner().GetNumbers())
	case c.GetGiveUp() != nil:
		fmt.Fprintf(&b, " give up %d", c.GetGiveUp().GetNumber())
	case c.GetCloseSession() != nil:
		b.WriteString(" close session")
	}
	return b.String()
}
