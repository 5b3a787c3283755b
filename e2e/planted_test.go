package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockfs"
)

// at is a call of a written history: when it began and ended, what was asked and what was answered.
type at struct {
	began, ended int64
	in           asked
	out          answered
}

func put(value string) asked { return asked{verb: writes, value: value} }

func putOnto(generation uint64, value string) asked {
	return asked{verb: writes, value: value, ifGeneration: generation}
}

func line(text string) asked { return asked{verb: appends, value: text} }

func take(owner string, mode lockfs.Mode) asked {
	return asked{verb: acquires, owner: owner, mode: mode}
}

func free(owner string) asked { return asked{verb: releases, owner: owner} }

// yes is an answer without contents: a write or a grant of that generation.
func yes(generation uint64) answered { return answered{fate: done, generation: generation} }

func saw(value string, generation uint64) answered { return answered{done, value, generation} }

var (
	get  = asked{verb: reads}
	no   = answered{fate: denied}
	dark = answered{fate: unknown}
)

// planted are histories as they may be, and as they may not: each kind of file is made at generation
// 1, empty and free. Fault is what must be found.
var planted = []struct {
	name  string
	kind  kind
	final string // of a journal
	fault bool
	calls []at
}{
	{"writes and reads in turn", registers, "", false, []at{
		{1, 2, put("a"), yes(2)}, {3, 4, get, saw("a", 2)}, {5, 6, putOnto(2, "b"), yes(3)}, {7, 8, putOnto(2, "c"), no}, {9, 10, get, saw("b", 3)}}},
	{"a read beside a write sees either", registers, "", false, []at{
		{1, 9, put("a"), yes(2)}, {2, 3, get, saw("", 1)}, {4, 5, get, saw("a", 2)}}},
	{"a lost write", registers, "", true, []at{
		{1, 2, put("a"), yes(2)}, {3, 4, put("b"), yes(3)}, {5, 6, get, saw("a", 2)}}},
	{"a lost write that told no generation", registers, "", true, []at{
		{1, 2, put("a"), yes(0)}, {3, 4, get, saw("", 1)}}},
	{"a write lost under one that came later", registers, "", true, []at{
		{1, 2, put("a"), yes(2)}, {3, 4, put("b"), yes(0)}, {5, 6, put("c"), yes(3)}, {7, 8, get, saw("c", 3)}}},
	{"a stale read", registers, "", true, []at{
		{1, 9, put("a"), yes(2)}, {2, 3, get, saw("a", 2)}, {4, 5, get, saw("", 1)}}},
	{"a stale read through a mount", registers, "", true, []at{
		{1, 2, put("a"), yes(2)}, {3, 4, put("b"), yes(3)}, {5, 6, get, saw("a", 0)}}},
	{"a read of what was refused", registers, "", true, []at{{1, 2, get, saw("never written", 2)}}},
	{"a generation that goes back", registers, "", true, []at{
		{1, 2, put("a"), yes(2)}, {3, 4, put("b"), yes(2)}}},
	{"two compare onto one generation", registers, "", true, []at{
		{1, 4, putOnto(1, "a"), yes(2)}, {2, 5, putOnto(1, "b"), yes(2)}}},
	{"a compare that was refused for nothing", registers, "", true, []at{
		{1, 2, put("a"), yes(2)}, {3, 4, putOnto(2, "b"), no}, {5, 6, get, saw("a", 2)}}},
	{"an unknown write that came about late", registers, "", false, []at{
		{1, 2, put("a"), dark}, {3, 4, get, saw("", 1)}, {5, 6, put("b"), yes(2)}, {7, 8, get, saw("a", 3)}}},
	{"an unknown write that never came about", registers, "", false, []at{
		{1, 2, put("a"), dark}, {3, 4, put("b"), yes(2)}, {5, 6, get, saw("b", 2)}}},
	{"an unknown write that came and went again", registers, "", true, []at{
		{1, 2, put("a"), dark}, {3, 4, get, saw("a", 2)}, {5, 6, get, saw("", 1)}}},
	{"an unknown write that came about twice", registers, "", true, []at{
		{1, 2, put("a"), dark}, {3, 4, get, saw("a", 2)}, {5, 6, put("b"), yes(3)}, {7, 8, get, saw("a", 4)}}},

	{"lines", journals, "a\nb\n", false, []at{
		{1, 2, line("a\n"), yes(2)}, {3, 4, get, saw(printOf("a\n"), 2)}, {5, 6, line("b\n"), yes(3)}, {7, 8, get, saw(printOf("a\nb\n"), 0)}}},
	{"an unknown line that is there", journals, "a\nb\n", false, []at{
		{1, 2, line("b\n"), dark}, {3, 4, line("a\n"), yes(2)}, {5, 6, get, saw(printOf("a\nb\n"), 3)}}},
	{"an unknown line that is not there", journals, "a\n", false, []at{
		{1, 2, line("b\n"), dark}, {3, 4, line("a\n"), yes(2)}}},
	{"a line that is not there", journals, "b\n", true, []at{
		{1, 2, line("a\n"), yes(0)}, {3, 4, line("b\n"), yes(0)}}},
	{"a line that is there twice", journals, "a\na\n", true, []at{{1, 2, line("a\n"), yes(2)}}},
	{"an unknown line that is there twice", journals, "a\na\n", true, []at{{1, 2, line("a\n"), dark}}},
	{"a line that was refused", journals, "a\nb\n", true, []at{{1, 2, line("a\n"), yes(2)}}},
	{"lines out of order", journals, "b\na\n", true, []at{
		{1, 2, line("a\n"), yes(0)}, {3, 4, line("b\n"), yes(0)}}},
	{"a stale read of lines", journals, "a\nb\n", true, []at{
		{1, 2, line("a\n"), yes(2)}, {3, 4, line("b\n"), yes(3)}, {5, 6, get, saw(printOf("a\n"), 2)}}},
	{"a read of half a line", journals, "aa\n", true, []at{
		{1, 2, line("aa\n"), yes(2)}, {3, 4, get, saw(printOf("a"), 0)}}},

	{"turns", locks, "", false, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, take("y", lockfs.Exclusive), no}, {5, 6, free("x"), yes(0)},
		{7, 8, take("y", lockfs.Shared), yes(3)}, {9, 10, take("z", lockfs.Shared), yes(3)}, {11, 12, free("x"), no}}},
	{"one waits for the other", locks, "", false, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 8, take("y", lockfs.Exclusive), yes(3)}, {5, 7, free("x"), yes(0)}}},
	{"a lock given twice", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, take("y", lockfs.Exclusive), yes(3)}, {5, 6, free("x"), yes(0)}, {7, 8, free("y"), yes(0)}}},
	{"a lock given twice to those who tell no generation", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(0)}, {3, 4, take("y", lockfs.Exclusive), yes(0)}, {5, 6, free("x"), yes(0)}}},
	{"a shared lock beside an exclusive one", locks, "", true, []at{
		{1, 2, take("x", lockfs.Shared), yes(2)}, {3, 4, take("y", lockfs.Exclusive), yes(3)}, {5, 6, free("x"), yes(0)}}},
	{"a lock that is lost", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, free("x"), no}}},
	{"a generation drawn twice", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, free("x"), yes(0)}, {5, 6, take("y", lockfs.Exclusive), yes(2)}}},
	{"a generation too far", locks, "", true, []at{{1, 2, take("x", lockfs.Exclusive), yes(3)}}},
	{"a lock that nobody holds is not to be had", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, free("x"), yes(0)}, {5, 6, take("y", lockfs.Exclusive), no}}},
	{"a lock that is held at the end", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, free("x"), yes(0)}, {5, 6, get, saw("EXCLUSIVE", 3)}}},
	{"one who gave up had it, and gave it back", locks, "", false, []at{
		{1, 5, take("x", lockfs.Exclusive), answered{fate: undone}}, {1, 5, free("x"), answered{fate: undone}}, {2, 3, take("y", lockfs.Exclusive), no},
		{6, 7, take("y", lockfs.Exclusive), yes(3)}}},
	{"one who gave up never had it", locks, "", false, []at{
		{1, 5, take("x", lockfs.Exclusive), answered{fate: undone}}, {1, 5, free("x"), answered{fate: undone}}, {6, 7, take("y", lockfs.Exclusive), yes(2)}}},
	{"one who gave up has it still", locks, "", true, []at{
		{1, 3, take("x", lockfs.Exclusive), answered{fate: undone}}, {1, 3, free("x"), answered{fate: undone}}, {4, 5, take("y", lockfs.Exclusive), no}}},
	{"a release that came about late", locks, "", false, []at{
		{1, 2, take("x", lockfs.Exclusive), yes(2)}, {3, 4, free("x"), dark}, {5, 6, take("y", lockfs.Exclusive), no}, {7, 8, take("y", lockfs.Exclusive), yes(3)}}},
	{"a grant that nobody knows of", locks, "", false, []at{
		{1, 2, take("x", lockfs.Exclusive), dark}, {3, 4, take("y", lockfs.Exclusive), no}, {5, 6, free("x"), dark}, {7, 8, take("y", lockfs.Exclusive), yes(3)}}},
	{"a grant that nobody knows of, and another beside it", locks, "", true, []at{
		{1, 2, take("x", lockfs.Exclusive), dark}, {3, 4, take("y", lockfs.Exclusive), yes(3)}, {5, 6, take("z", lockfs.Shared), yes(4)}}},
}

// TestPlanted plants faults in histories. What TestKills believes is worth as much as what is found
// here.
func TestPlanted(t *testing.T) {
	for _, test := range planted {
		t.Run(test.name, func(t *testing.T) {
			made := lockfs.Stat{ContentGeneration: 1, LockGeneration: 1}
			c := &chapter{kind: test.kind, name: "f", made: made}
			for i, call := range test.calls {
				c.record(i, call.began, call.in, call.out, call.ended)
			}
			err := c.check(test.final, time.Now().Add(time.Minute))
			if (err != nil) != test.fault {
				t.Errorf("fault %v, and it says %v", test.fault, err)
			}
			if err != nil && strings.Contains(err.Error(), "not checked") {
				t.Error(err)
			}
		})
	}
}

// world plays a file or a lock as it should be, to many at once, and writes down what they were told.
// Some are left in the dark, and what they asked for comes about later or never. Its fault, if it has
// one, comes about once.
type world struct {
	random  *rand.Rand
	kind    kind
	hides   string // the fault
	fault   string // the same, until it has come about
	moments moments
	chapter *chapter
	lock    lockState
	next    int // the last value, line or owner
	calls   int // that came about
	leaving int // how many are about to let the lock go

	content    string
	generation uint64
}

// player is one who asks, and waits, and is told.
type player struct {
	began int64
	in    asked
	out   answered
	asks  bool
	told  bool
	dark  bool   // will not learn of it
	owner string // of the lock that it holds
}

func newWorld(k kind, fault string, seed uint64) *world {
	made := lockfs.Stat{ContentGeneration: 1, LockGeneration: 1}
	return &world{random: rand.New(rand.NewPCG(seed, 0)), kind: k, hides: fault, fault: fault, chapter: &chapter{kind: k, name: "f", made: made},
		lock: lockState{generation: 1}, generation: 1}
}

// play lets many players make so many calls, one small step of one of them after another.
func (w *world) play(players, calls int) {
	all := make([]player, players)
	for w.calls < calls || slices.ContainsFunc(all, func(p player) bool { return p.asks || p.owner != "" }) {
		p := &all[w.random.IntN(players)]
		switch {
		case !p.asks && (w.calls < calls || p.owner != ""):
			*p = player{asks: true, began: w.moments.now(), in: w.wish(p.owner), owner: p.owner}
			p.dark = w.leaves(p.in)
			if p.in.verb == releases {
				w.leaving++
			}
		case p.asks && !p.told && w.random.IntN(4) == 0:
			if w.do(p) {
				w.tell(p) // at once: nobody can have let go meanwhile
			}
		case p.told:
			w.tell(p)
		}
	}
	w.chapter.record(players, w.moments.now(), asked{verb: reads}, w.look(), w.moments.now())
}

// leaves says whether who asks this is left in the dark. A lost write could hide behind one of those.
func (w *world) leaves(in asked) bool {
	return w.hides != "lost write" && in.verb != reads && in.verb != acquires && w.random.IntN(30) == 0
}

func (w *world) tell(p *player) {
	if p.dark {
		p.out = answered{fate: unknown}
	}
	w.chapter.record(0, p.began, p.in, p.out, w.moments.now())
	p.asks, p.told = false, false
	switch {
	case p.in.verb == acquires && p.out.fate == done:
		p.owner = p.in.owner
	case p.in.verb == releases:
		p.owner = ""
	}
}

// wish is what a player asks for next.
func (w *world) wish(owner string) asked {
	w.next++
	name := fmt.Sprintf("%d\n", w.next)
	switch {
	case owner != "":
		return free(owner)
	case w.kind == locks:
		return take(fmt.Sprint(w.next), []lockfs.Mode{lockfs.Shared, lockfs.Exclusive}[w.random.IntN(2)])
	case w.random.IntN(2) == 0:
		return get
	case w.kind == journals:
		return line(name)
	}
	return put(name)
}

// do makes the call of a player come about, and says whether it went wrong. A lock may have to be
// waited for.
func (w *world) do(p *player) (fault bool) {
	fault = w.plants(p)
	p.told = true
	switch {
	case p.in.verb == reads && fault:
		p.out = answered{done, w.chapter.shown(nil), 0}
	case p.in.verb == reads:
		if p.out = w.look(); w.random.IntN(3) == 0 { // as mounts do
			p.out.generation = 0
		}
	case p.in.verb == acquires:
		next, may := w.lock.grant(p.in)
		if p.told = may || fault; !p.told {
			return false
		}
		if fault {
			next = lockState{lockfs.Exclusive, w.lock.generation + 1, w.lock.holders + " " + p.in.owner, 0}
		}
		w.lock, p.out = next, yes(next.generation)
	case p.in.verb == releases:
		w.leaving--
		w.lock, p.out = w.lock.release(p.in, yes(0))[0], yes(0)
	case fault:
		p.out = yes(0)
	default:
		w.write(p)
	}
	w.calls++
	return fault
}

func (w *world) write(p *player) {
	w.generation++
	p.out = yes(w.generation * uint64(w.random.IntN(2)))
	if p.in.verb == writes {
		w.content = ""
	}
	w.content += p.in.value
}

// plants says whether this call is the one that goes wrong.
func (w *world) plants(p *player) bool {
	_, may := w.lock.grant(p.in)
	fits := map[string]bool{
		"stale read":   p.in.verb == reads,
		"lost write":   p.in.verb == writes || p.in.verb == appends,
		"double grant": p.in.verb == acquires && p.in.mode == lockfs.Exclusive && !may && w.leaving == 0,
	}
	if w.calls < 500 || p.dark || !fits[w.fault] {
		return false
	}
	w.fault = ""
	return true
}

func (w *world) look() answered {
	if w.kind == locks {
		return saw(w.lock.mode.String(), w.lock.generation)
	}
	return saw(w.chapter.shown([]byte(w.content)), w.generation)
}

// TestPlantedAmongMany checks histories as long as those of TestKills, and finds one
// fault in each that has one.
func TestPlantedAmongMany(t *testing.T) {
	for _, test := range []struct {
		kind  kind
		fault string
	}{
		{registers, ""}, {registers, "stale read"}, {registers, "lost write"},
		{journals, ""}, {journals, "stale read"}, {journals, "lost write"},
		{locks, ""}, {locks, "double grant"},
	} {
		t.Run(fmt.Sprintf("%s %s", test.kind, test.fault), func(t *testing.T) {
			for seed := range uint64(sized(3, 300)) {
				w := newWorld(test.kind, test.fault, seed)
				w.play(12, chapterLength)
				if w.fault != "" {
					t.Fatalf("seed %d: no %s was planted", seed, w.fault)
				}
				err := w.chapter.check(w.content, time.Now().Add(20*time.Second))
				if (err != nil) != (test.fault != "") || err != nil && strings.Contains(err.Error(), "not checked") {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
}
