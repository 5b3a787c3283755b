package e2e

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
	"github.com/cespare/xxhash/v2"

	"lockfs"
)

// asked is what somebody asked of a file or of a lock.
type asked struct {
	verb         verb
	value        string      // what a write puts there, or the line that is appended
	ifGeneration uint64      // of a write; 0 is any
	owner        string      // of a lock
	mode         lockfs.Mode // of an acquire
	host         string      // the mount that was asked; empty for the library
}

type verb string

const (
	reads    verb = "read"
	writes   verb = "write"
	appends  verb = "append"
	acquires verb = "acquire"
	releases verb = "release"
)

// answered is what came of it.
type answered struct {
	fate       fate
	value      string // what was read: contents, of a journal their print, of a lock its mode
	generation uint64 // of the contents or of the lock then; 0 where it was not told
}

type fate string

const (
	done    fate = "done"
	denied  fate = "denied"  // by what was there: other contents, another holder, no holder
	failed  fate = "failed"  // EIO of a mount: not done, unless the mount's log says that it is unknown
	unknown fate = "unknown" // done, or done later, or never
	undone  fate = "undone"  // a lock that was given up: never granted, or granted and given back, both before its end
)

func (a asked) String() string {
	var b strings.Builder
	b.WriteString(string(a.verb))
	if a.verb == acquires {
		fmt.Fprintf(&b, " %v", a.mode)
	}
	if a.value != "" {
		fmt.Fprintf(&b, " %q", strings.TrimSuffix(a.value, "\n"))
	}
	if a.ifGeneration != 0 {
		fmt.Fprintf(&b, " onto generation %d", a.ifGeneration)
	}
	for _, who := range []string{a.owner, a.host} {
		if who != "" {
			fmt.Fprintf(&b, " by %s", who)
		}
	}
	return b.String()
}

func (a answered) String() string {
	text := string(a.fate)
	if a.value != "" {
		text += fmt.Sprintf(" %q", strings.TrimSuffix(a.value, "\n"))
	}
	if a.generation != 0 {
		text += fmt.Sprintf(", generation %d", a.generation)
	}
	return text
}

// Many callers at once, some of them left in the dark, leave the checker far too much to try. So the
// models take from the whole history what spares it the hopeless ways, and no other. Nobody but the
// one who was told a generation can have drawn it. A value, and a generation of a lock, is left only
// when all have come who saw it. And what is unknown either came about before the end, or it never
// did.
const ends verb = "end"

// staged is a state, and whether the history has ended.
type staged[state comparable] struct {
	state state
	over  bool
}

// model makes porcupine's model of a plain one, which has a step to each state that may follow, or to
// none where the answer is wrong. It is not asked about what never came about.
func model[state comparable](start state, step func(s state, in asked, out answered) []state) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{staged[state]{state: start}} },
		Step: func(s, in, out any) (next []any) {
			now, ask, answer := s.(staged[state]), in.(asked), out.(answered)
			switch {
			case ask.verb == ends:
				return []any{staged[state]{now.state, true}}
			case now.over && answer.fate == unknown:
				return []any{now}
			case now.over:
				return nil
			}
			for _, s := range step(now.state, ask, answer) {
				next = append(next, staged[state]{s, false})
			}
			return next
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %v", in, out) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s.(staged[state]).state) },
	}
	return nondeterministic.ToModel()
}

// onlyIf is the state, if that may follow.
func onlyIf[state any](right bool, s state) []state {
	if !right {
		return nil
	}
	return []state{s}
}

// ended is the history with its end, which comes after all that was answered and before what is
// still unknown.
func ended(calls []porcupine.Operation) []porcupine.Operation {
	const last = math.MaxInt64 - 1
	return append(slices.Clone(calls), porcupine.Operation{Input: asked{verb: ends}, Output: answered{}, Call: last, Return: last})
}

// told reports whether the answer's generation is this one, or was not told.
func told(out answered, generation uint64) bool {
	return out.generation == 0 || out.generation == generation
}

// register is a file whose contents are replaced as a whole. Each write takes its generation one
// further.
type register struct {
	value      string
	generation uint64
	seen       int // by how many
}

// registerModel is of a register whose values are all different. So who reads one with its generation
// tells which generation its write drew.
func registerModel(generation uint64, calls []porcupine.Operation) porcupine.Model {
	drawn := make(map[string]uint64) // by a value
	taken := make(map[uint64]bool)   // the same generations
	readers := make(map[string]int)  // of a value
	latest := generation
	for _, op := range calls {
		in, out := op.Input.(asked), op.Output.(answered)
		if in.verb == reads {
			readers[out.value]++
		}
		if out.fate != done || out.generation == 0 {
			continue
		}
		drawn[in.value+out.value] = out.generation // one of them is empty
		taken[out.generation] = true
		latest = max(latest, out.generation)
	}
	return model(register{generation: generation}, func(r register, in asked, out answered) []register {
		switch {
		case in.verb == reads:
			right := out.value == r.value && told(out, r.generation)
			r.seen++
			return onlyIf(right, r)
		case out.fate == denied:
			return onlyIf(in.ifGeneration != 0 && in.ifGeneration != r.generation, r)
		case in.ifGeneration != 0 && in.ifGeneration != r.generation:
			return nil
		case out.fate == unknown && r.generation >= latest:
			return nil
		case r.seen < readers[r.value]:
			return nil
		}
		r = register{in.value, r.generation + 1, 0}
		if its, known := drawn[in.value]; known {
			return onlyIf(its == r.generation && told(out, r.generation), r)
		}
		return onlyIf(!taken[r.generation], r)
	})
}

// journalState is of a file that lines are appended to, each line another. What it holds at the end says in
// which order they came, so it is only how many lines there are.
type journalState struct {
	lines int
	seen  int // by how many
}

func journalModel(generation uint64, final string, calls []porcupine.Operation) porcupine.Model {
	place := make(map[string]int)   // of a line
	prints := []string{printOf("")} // of the contents with so many lines
	size, digest := 0, xxhash.New()
	for line := range strings.Lines(final) {
		place[line] = len(prints) - 1
		size += len(line)
		digest.WriteString(line)
		prints = append(prints, printed(size, digest.Sum64()))
	}
	readers := make(map[string]int) // of a print
	for _, op := range calls {
		if op.Input.(asked).verb == reads {
			readers[op.Output.(answered).value]++
		}
	}
	return model(journalState{}, func(j journalState, in asked, out answered) []journalState {
		if in.verb == reads {
			right := out.value == prints[j.lines] && told(out, generation+uint64(j.lines))
			j.seen++
			return onlyIf(right, j)
		}
		at, there := place[in.value]
		right := there && at == j.lines && told(out, generation+uint64(at)+1) && j.seen == readers[prints[j.lines]]
		return onlyIf(right, journalState{j.lines + 1, 0})
	})
}

// printOf stands for the contents of a journal in its history.
func printOf(content string) string {
	return printed(len(content), xxhash.Sum64String(content))
}

func printed(size int, sum uint64) string { return fmt.Sprintf("%d bytes, sum %016x", size, sum) }

// lockState is a lock, with its holders' names, sorted, as one string.
type lockState struct {
	mode       lockfs.Mode
	generation uint64
	holders    string
	told       int // how many were told the generation when they were granted
}

func lockModel(generation uint64, calls []porcupine.Operation) porcupine.Model {
	drawn := make(map[uint64]lockfs.Mode) // what was granted at a generation, where it was told
	grants := make(map[uint64]int)        // and to how many
	latest := generation
	for _, op := range calls {
		in, out := op.Input.(asked), op.Output.(answered)
		if in.verb == acquires && out.generation != 0 {
			drawn[out.generation] = in.mode
			grants[out.generation]++
		}
		latest = max(latest, out.generation)
	}
	return model(lockState{generation: generation}, func(l lockState, in asked, out answered) []lockState {
		switch {
		case in.verb == reads:
			return onlyIf(out.value == l.mode.String() && told(out, l.generation), l)
		case in.verb == releases:
			return slices.DeleteFunc(l.release(in, out), func(next lockState) bool {
				return next.mode != l.mode && l.told < grants[l.generation]
			})
		case out.fate == denied: // also by one who waits, but only for one who holds
			return onlyIf(l.mode != lockfs.Free, l)
		}
		next, granted := l.grant(in)
		if out.generation != 0 {
			next.told++
		}
		mode, known := drawn[next.generation]
		switch {
		case granted && known && out.generation == 0: // it would have been one more who shares it
			granted = in.mode == lockfs.Shared && mode == lockfs.Shared
		case out.fate == unknown || out.fate == undone:
			granted = granted && next.generation <= latest
		}
		if out.fate == undone {
			return append(onlyIf(granted, next), l)
		}
		return onlyIf(granted && told(out, next.generation), next)
	})
}

func (l lockState) holds(owner string) bool { return slices.Contains(strings.Fields(l.holders), owner) }

func (l lockState) release(in asked, out answered) []lockState {
	others := slices.DeleteFunc(strings.Fields(l.holders), func(h string) bool { return h == in.owner })
	switch held := l.holds(in.owner); out.fate {
	case denied:
		return onlyIf(!held, l)
	case undone:
		return []lockState{l.with(others)}
	default:
		return onlyIf(held, l.with(others))
	}
}

// grant is the lock with one more holder, if that may be.
func (l lockState) grant(in asked) (next lockState, may bool) {
	if l.mode.Conflicts(in.mode) || l.holds(in.owner) {
		return l, false
	}
	if l.mode != in.mode {
		l = lockState{mode: in.mode, generation: l.generation + 1, holders: l.holders}
	}
	return l.with(append(strings.Fields(l.holders), in.owner)), true
}

func (l lockState) with(holders []string) lockState {
	slices.Sort(holders)
	l.holders = strings.Join(holders, " ")
	if l.holders == "" {
		l.mode = lockfs.Free
	}
	return l
}
