package master

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/lockpb"
	"lockfs/store"
	"lockfs/store/storepb"
)

var update = flag.Bool("update", false, "rewrite the answers of the stories")

// TestStories plays testdata/*.txt: a command, a line of dashes, the answer. The commands drive
// the machine and the records bare, with no log between them:
//
//	lead                                a new mastership; leave ends it
//	session a                           a session named a
//	create a#0 /ls/c/x                  a file, by a session's owner (which counts for locks alone)
//	delete a#0 /ls/c/x
//	acquire a#1 /ls/c/x exclusive       [wait] [delay=5s] [number=7]; a#1 is owner 1 of session a
//	release a#1 /ls/c/x
//	close a#1                           close the owner
//	giveup a 7                          give up request number 7
//	end a                               close the session
//	renew a                             a keep-alive, confirmed
//	advance 12s                         time passes
//	hold, apply                         proposals stay under way until apply
//
// The answer has a line for each proposal that was applied, with its commands, and one for each
// reply.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newTeller(t).play(string(text))
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

type teller struct {
	t        *testing.T
	machine  *machine
	at       moment
	index    uint64
	epoch    uint64
	holding  bool
	sessions map[string]uint64
	names    map[uint64]string
	numbers  map[uint64]uint64
	calls    map[*call]string
	hello    map[string]*stream
	out      *bytes.Buffer
}

func newTeller(t *testing.T) *teller {
	seed := &storepb.Seed{ClusterId: 7, LeaseMs: 12000, GraceMs: 45000, Limits: &storepb.Limits{
		FileBytes: 256 << 10, Nodes: 1000, Bytes: 1 << 20, Children: 100}}
	return &teller{
		t: t, machine: newMachine(store.New("c"), seed, slog.New(slog.DiscardHandler)),
		at:       moment{now: clock.Instant(time.Hour), wall: time.Unix(1000, 0)},
		sessions: make(map[string]uint64), names: make(map[uint64]string), numbers: make(map[uint64]uint64),
		calls: make(map[*call]string), hello: make(map[string]*stream),
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
		}
	}
	return out.String()
}

func (w *teller) do(args []string) {
	switch args[0] {
	case "lead":
		w.epoch++
		w.machine.lead(w.at, w.epoch)
	case "leave":
		w.machine.leave()
	case "session":
		c := new(call)
		w.calls[c] = args[1]
		w.machine.createSession(w.at, c, &storepb.CreateSession{Host: args[1]})
	case "renew":
		w.renew(args[1])
	case "advance":
		d, err := time.ParseDuration(args[1])
		w.must(err)
		w.at.now, w.at.wall = w.at.now.Add(d), w.at.wall.Add(d)
		w.machine.tick(w.at)
	case "hold":
		w.holding = true
	case "apply":
		w.holding = false
	default:
		w.mutate(args)
	}
	w.settle()
}

func (w *teller) mutate(args []string) {
	session, owner := w.owner(args[1])
	m := &storepb.Mutation{Session: session}
	switch args[0] {
	case "create":
		m.Op = &storepb.Mutation_Create{Create: &storepb.Create{Path: args[2], Type: uint32(lockfs.File)}}
	case "delete":
		m.Op = &storepb.Mutation_Delete{Delete: &storepb.Delete{Path: args[2]}}
	case "acquire":
		m.Op = &storepb.Mutation_Acquire{Acquire: w.acquire(owner, args)}
	case "release":
		m.Op = &storepb.Mutation_Release{Release: &storepb.Release{Path: args[2], Owner: owner}}
	case "close":
		m.Op = &storepb.Mutation_CloseOwner{CloseOwner: &storepb.CloseOwner{Owner: owner}}
	case "giveup":
		n, err := strconv.ParseUint(args[2], 10, 64)
		w.must(err)
		m.Op = &storepb.Mutation_GiveUp{GiveUp: &storepb.GiveUp{Number: n}}
	case "end":
		m.Op = &storepb.Mutation_CloseSession{CloseSession: &storepb.CloseSession{}}
	default:
		w.t.Fatalf("unknown command %q", args[0])
	}
	m.Number = w.number(session, args)
	c := &call{mutation: m}
	w.calls[c] = args[1]
	if err := w.machine.session(session, ""); err != nil { // as the driver does
		fmt.Fprintf(w.out, "%s %v\n", args[1], lockfs.KindOf(err))
		return
	}
	w.machine.mutate(w.at, c)
}

func (w *teller) acquire(owner uint64, args []string) *storepb.Acquire {
	a := &storepb.Acquire{Path: args[2], Owner: owner, Mode: uint32(lockfs.Exclusive)}
	for _, option := range args[3:] {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "shared":
			a.Mode = uint32(lockfs.Shared)
		case "wait":
			a.Waits = true
		case "delay":
			d, err := time.ParseDuration(value)
			w.must(err)
			a.LockDelayMs = d.Milliseconds()
		}
	}
	return a
}

// number returns the one that the command names, or the session's next.
func (w *teller) number(session uint64, args []string) uint64 {
	for _, option := range args {
		if text, ok := strings.CutPrefix(option, "number="); ok {
			n, err := strconv.ParseUint(text, 10, 64)
			w.must(err)
			w.numbers[session] = max(w.numbers[session], n)
			return n
		}
	}
	w.numbers[session]++
	return w.numbers[session]
}

func (w *teller) owner(text string) (session, owner uint64) {
	name, number, _ := strings.Cut(text, "#")
	owner, _ = strconv.ParseUint(number, 10, 64)
	return w.sessions[name], owner
}

func (w *teller) renew(name string) {
	if w.hello[name] == nil {
		w.hello[name] = new(stream)
	}
	if err := w.machine.session(w.sessions[name], ""); err != nil {
		fmt.Fprintf(w.out, "%s %v\n", name, lockfs.KindOf(err))
		return
	}
	w.must(w.machine.attach(w.sessions[name], 1, w.hello[name]))
	if lease, ok := w.machine.renew(w.at, w.sessions[name], w.hello[name]); ok {
		fmt.Fprintf(w.out, "%s has a lease of %v\n", name, lease)
	} else {
		fmt.Fprintf(w.out, "%s gets no answer\n", name)
	}
}

// settle applies what is proposed, unless it is held, and tells the replies.
func (w *teller) settle() {
	for {
		w.tell()
		if w.holding || len(w.machine.proposals) == 0 {
			return
		}
		p := w.machine.proposals[0]
		w.machine.proposals = w.machine.proposals[1:]
		w.index++
		outcome, err := w.machine.state.Apply(w.index, p)
		w.must(err)
		fmt.Fprintf(w.out, "entry: %s\n", w.describe(p))
		w.machine.applied(w.at, p, outcome)
	}
}

func (w *teller) tell() {
	for _, r := range w.machine.replies {
		name := w.calls[r.call]
		switch {
		case r.result == nil:
			fmt.Fprintf(w.out, "%s waits\n", name)
		case r.result.GetKind() != 0:
			fmt.Fprintf(w.out, "%s refused: %v\n", name, lockfs.Kind(r.result.GetKind()))
		case r.result.GetSession() != 0:
			w.sessions[name], w.names[r.result.GetSession()] = r.result.GetSession(), name
			fmt.Fprintf(w.out, "%s is session %d\n", name, r.result.GetSession())
		case r.result.GetLockMode() != 0:
			fmt.Fprintf(w.out, "%s holds %v:%d\n", name, lockfs.Mode(r.result.GetLockMode()), r.result.GetLockGeneration())
		case r.result.GetGivenUp() != nil:
			fmt.Fprintf(w.out, "%s too late: it holds %v:%d\n", name,
				lockfs.Mode(r.result.GetGivenUp().GetLockMode()), r.result.GetGivenUp().GetLockGeneration())
		default:
			fmt.Fprintf(w.out, "%s done\n", name)
		}
	}
	w.machine.replies = nil
	for _, u := range w.machine.unsure {
		w.machine.confirmed(w.at, u)
	}
	if len(w.machine.unsure) > 0 {
		w.machine.unsure = nil
		w.tell()
	}
}

// describe names the commands of a proposal.
func (w *teller) describe(p *storepb.Proposal) string {
	var parts []string
	for _, c := range p.GetCommands() {
		if m := c.GetMutation(); m != nil {
			op := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", m.GetOp()), "*storepb.Mutation_"))
			parts = append(parts, op+" by "+w.names[m.GetSession()])
			continue
		}
		parts = append(parts, strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", c.GetCommand()), "*storepb.Command_")))
	}
	return strings.Join(parts, ", ")
}

func (w *teller) must(err error) {
	if err != nil {
		w.t.Helper()
		w.t.Fatal(err)
	}
}

func TestTimetable(t *testing.T) {
	table := newTimetable[string]()
	expired := func(now clock.Instant) string {
		keys := table.expired(now)
		slices.Sort(keys)
		return strings.Join(keys, " ")
	}
	table.set("a", 10)
	table.set("b", 20)
	table.set("a", 30) // later: found out when 10 comes
	for _, step := range []struct {
		now  clock.Instant
		want string
	}{{10, ""}, {19, ""}, {20, "b"}, {29, ""}, {30, "a"}, {31, ""}} {
		if got := expired(step.now); got != step.want {
			t.Errorf("at %d: %q, want %q", step.now, got, step.want)
		}
	}
	table.set("b", 40) // again, after it was told
	table.set("c", 50)
	table.set("c", 35) // sooner
	table.set("d", 36)
	table.remove("d")
	table.set("d", 60) // made anew: its old place is not its own
	if got := expired(36); got != "c" {
		t.Errorf("at 36: %q, want c", got)
	}
	if got := expired(40); got != "b" {
		t.Errorf("at 40: %q, want b", got)
	}
	if got := expired(100); got != "d" {
		t.Errorf("at 100: %q, want d", got)
	}
	if _, ok := table.next(); ok {
		t.Error("something is left")
	}
}

func TestWireResults(t *testing.T) {
	granted := resultToAnswer(&storepb.Result{LockMode: 2, LockGeneration: 41, Stat: &storepb.Stat{Instance: 9}})
	if g := granted.GetGranted(); g.GetGeneration() != 41 || g.GetInstance() != 9 || g.GetMode() != 2 {
		t.Errorf("a grant became %v", granted)
	}
	refused := resultToAnswer(&storepb.Result{Kind: uint32(lockfs.ErrBusy), Detail: "why", Stat: &storepb.Stat{}})
	if refused.GetResult() != nil || cmp.Compare(refused.GetKind(), uint32(lockfs.ErrBusy)) != 0 || refused.GetDetail() != "why" {
		t.Errorf("a refusal became %v", refused)
	}
	var _ lockpb.CellServer = (*Replica)(nil)
}
