package store

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockfs"
	"lockfs/sequencer"
	"lockfs/store/storepb"
)

var update = flag.Bool("update", false, "write the answers of the stories anew")

// TestStories plays testdata/*.txt. A story is blocks of lines, a line of dashes, and what the cell
// answers; the lines of one block are the commands of one proposal. Comments tell the plot.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playStory(t, file) })
	}
}

func playStory(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{driver: newDriver(t, nil)}
	var out []string
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		asked, want, isCommand := strings.Cut(block+"\n", "\n----\n")
		if !isCommand {
			out = append(out, strings.TrimSpace(block))
			continue
		}
		got := s.play(asked)
		if got != want && !*update {
			t.Errorf("%s\n--- got\n%s--- want\n%s", asked, got, want)
		}
		out = append(out, strings.TrimSpace(asked+"\n----\n"+got))
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(out, "\n\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type story struct{ *driver }

// play does the lines of one block: either one question or the commands of one proposal.
func (s *story) play(asked string) string {
	var commands []*storepb.Command
	var b strings.Builder
	for line := range strings.SplitSeq(asked, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		w := s.parse(line)
		if answer, is := s.question(w); is {
			b.WriteString(answer)
			continue
		}
		commands = append(commands, s.command(w))
	}
	if len(commands) > 0 {
		s.tell(&b, s.apply(commands...))
	}
	return b.String()
}

// words are one line: a verb and key=value pairs; a bare word is a flag.
type words struct {
	t    testing.TB
	verb string
	args map[string]string
	line string
}

func (s *story) parse(line string) words {
	fields := strings.Fields(line)
	w := words{t: s.t, verb: fields[0], args: map[string]string{}, line: line}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		w.args[key] = value
	}
	if at, ok := w.args["at"]; ok {
		d, err := time.ParseDuration(at)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		s.now = int64(d)
	}
	if w.has("epoch") {
		s.epoch = w.number("epoch")
	}
	return w
}

func (w words) has(key string) bool { _, ok := w.args[key]; return ok }

func (w words) number(key string) uint64 {
	text, ok := w.args[key]
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		w.t.Fatalf("%s: %v", w.line, err)
	}
	return n
}

// path is below the cell's root unless it is whole.
func (w words) path(key string) string {
	switch p := w.args[key]; {
	case p == ".":
		return "/ls/" + testCell
	case strings.HasPrefix(p, "/"):
		return p
	default:
		return "/ls/" + testCell + "/" + p
	}
}

func (w words) mode() uint32 {
	return map[string]uint32{"shared": 1, "exclusive": 2}[w.args["mode"]]
}

func (w words) kind() uint32 {
	return map[string]uint32{"file": 1, "dir": 2}[w.args["type"]]
}

func (w words) list(key string) []uint64 {
	var list []uint64
	for text := range strings.SplitSeq(w.args[key], ",") {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			list = append(list, n)
		}
	}
	return list
}

func (s *story) command(w words) *storepb.Command {
	switch w.verb {
	case "office":
		return office(nil)
	case "session":
		return &storepb.Command{Command: &storepb.Command_CreateSession{CreateSession: &storepb.CreateSession{Identity: w.args["identity"]}}}
	case "expire":
		return expire(w.number("session"))
	case "clear-delay":
		return clearDelay(w.path("path"), w.number("index"))
	case "delete-orphan":
		return deleteOrphan(w.path("path"), w.number("instance"))
	}
	m := s.mutation(w)
	session := max(w.number("session"), 1)
	m.Session, m.Number = session, w.number("number")
	if m.Number == 0 {
		s.next[session]++
		m.Number = s.next[session]
	}
	s.next[session] = max(s.next[session], m.Number)
	if w.has("confirmed") {
		m.Confirmed = []*storepb.Range{{First: 1, Last: w.number("confirmed")}}
	}
	return mutation(m)
}

func (s *story) mutation(w words) *storepb.Mutation {
	m := s.op(w)
	if text, ok := w.args["guard"]; ok {
		q, err := sequencer.Parse(text)
		if err != nil {
			s.t.Fatal(err)
		}
		m.Guard = &storepb.Guard{Path: string(q.Path), Mode: uint32(q.Mode), Generation: q.Generation}
	}
	return m
}

func (s *story) op(w words) *storepb.Mutation {
	path, instance, owner := w.path("path"), w.number("instance"), w.number("owner")
	switch w.verb {
	case "create":
		return create(&storepb.Create{Path: path, Type: max(w.kind(), 1), Ephemeral: w.has("ephemeral"),
			Exclusive: w.has("new"), Content: []byte(w.args["content"]), Acl: &storepb.ACLNames{Write: w.args["acl"]}})
	case "delete":
		return deletion(&storepb.Delete{Path: path, Instance: instance, Type: w.kind()})
	case "write":
		return edit(&storepb.Edit{Path: path, Instance: instance, IfGeneration: w.number("if"),
			Changes: []*storepb.Change{truncated(0), appended(w.args["content"])}})
	case "append":
		return edit(&storepb.Edit{Path: path, Instance: instance, Changes: []*storepb.Change{appended(w.args["content"])}})
	case "set-acl":
		return setACL(&storepb.SetACL{Path: path, Acl: &storepb.ACLNames{Write: w.args["acl"]}})
	case "set-permanence":
		return setPermanence(path, instance, w.has("ephemeral"))
	case "rename":
		return rename(&storepb.Rename{From: w.path("from"), To: w.path("to"), NoReplace: w.has("no-replace")})
	case "acquire":
		return acquire(&storepb.Acquire{Path: path, Instance: instance, Owner: owner, Mode: w.mode(),
			LockDelayMs: int64(w.number("delay")) * 1000, Waits: w.has("waits")})
	case "release":
		return release(&storepb.Release{Path: path, Instance: instance, Owner: owner})
	case "close-owner":
		return closeOwner(owner, w.list("numbers")...)
	case "give-up":
		return giveUp(w.number("target"))
	case "close-session":
		return closeSession(w.list("expired")...)
	}
	s.t.Fatalf("%s: no such command", w.line)
	return nil
}

// question answers a line that changes nothing.
func (s *story) question(w words) (string, bool) {
	p := lockfs.Path(w.path("path"))
	var b strings.Builder
	var err error
	switch w.verb {
	case "lock":
		var l Lock
		if l, err = s.state.Lock(p, 0); err == nil {
			fmt.Fprintf(&b, "%v:%d", l.Mode, l.Generation)
			for _, h := range l.Holders {
				fmt.Fprintf(&b, " %d/%d", h.Session, h.Owner)
			}
			b.WriteByte('\n')
		}
	case "cat":
		var content []byte
		if content, _, err = s.state.Contents(p, w.number("instance")); err == nil {
			fmt.Fprintf(&b, "%s\n", content)
		}
	case "ls":
		var entries []lockfs.Entry
		entries, _, err = s.state.List(p, 0)
		for _, e := range entries {
			fmt.Fprintf(&b, "%s#%d\n", e.Name, e.Instance)
		}
	case "stat":
		var st lockfs.Stat
		if st, err = s.state.Stat(p, 0); err == nil {
			fmt.Fprintf(&b, "#%d content=%d lock=%d acl=%d size=%d mtime=%v\n", st.Instance, st.ContentGeneration,
				st.LockGeneration, st.ACLGeneration, st.Size, time.Duration(st.Mtime.UnixNano()))
		}
	case "orphans":
		for _, id := range s.state.Orphans() {
			fmt.Fprintf(&b, "%s\n", id)
		}
	default:
		return "", false
	}
	if err != nil {
		return fmt.Sprintln(err), true
	}
	return b.String(), true
}

// tell writes results and effects as the stories show them.
func (s *story) tell(b *strings.Builder, out Outcome) {
	if out.Refused {
		b.WriteString("refused\n")
	}
	for _, r := range out.Results {
		fmt.Fprintf(b, "%s\n", resultText(r))
	}
	e := out.Effects
	effects(b, "changed", e.Changed)
	effects(b, "lock", e.Locks)
	effects(b, "deleted", e.Deleted)
	effects(b, "lost", e.Lost)
	effects(b, "ended", e.Ended)
	effects(b, "delay", e.Delays)
	effects(b, "orphan", e.Orphans)
}

func effects[E any](b *strings.Builder, what string, list []E) {
	for _, e := range list {
		fmt.Fprintf(b, "  %s %v\n", what, e)
	}
}

func (id NodeID) String() string { return fmt.Sprintf("%s#%d", id.Path, id.Instance) }

func (l Loss) String() string { return fmt.Sprintf("%v %d/%d", l.Node, l.Session, l.Owner) }

func (d Delay) String() string {
	return fmt.Sprintf("%s %v %v entry=%d", d.Path, d.Mode, d.LockDelay, d.Index)
}

func resultText(r *storepb.Result) string {
	text := "ok"
	if r.Kind != 0 {
		text = lockfs.Kind(r.Kind).Error()
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	if r.Number != 0 {
		text = fmt.Sprintf("%d %s", r.Number, text)
	}
	if r.Session != 0 {
		text += fmt.Sprintf(" session=%d", r.Session)
	}
	if st := r.Stat; st != nil {
		text += fmt.Sprintf(" #%d", st.Instance)
		if r.LockGeneration == 0 {
			text += fmt.Sprintf(" content=%d", st.ContentGeneration)
		}
	}
	if r.Created {
		text += " created"
	}
	if r.LockGeneration != 0 {
		text += fmt.Sprintf(" %v:%d", lockfs.Mode(r.LockMode), r.LockGeneration)
	}
	if r.GivenUp != nil {
		text += " (" + resultText(r.GivenUp) + ")"
	}
	return text
}
