package e2e

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"lockfs"
)

// chapterLength is after how many calls a file or lock is left for a fresh one: what a checker
// takes to find an order grows faster than the history.
const chapterLength = 1500

// kind is what a file is used for, and so by which model it is judged.
type kind string

const (
	registers kind = "register"
	journals  kind = "journal"
	locks     kind = "lock"
)

// chapter is the history of one file, or of its lock, from its making on. Who asks takes a moment
// before, and has it recorded with what was answered after.
type chapter struct {
	kind kind
	name string      // below the cell's root
	made lockfs.Stat // as the file was made, empty and free

	mu struct {
		sync.Mutex
		calls []porcupine.Operation
	}
}

// moments order what happens in this process, as precisely as can be: of two calls one was over
// before the other began, or they overlap.
type moments struct{ last atomic.Int64 }

func (m *moments) now() int64 { return m.last.Add(1) }

// record adds a call. What is unknown may come about until the end.
func (c *chapter) record(who int, began int64, in asked, out answered, ended int64) {
	if out.fate == unknown {
		ended = math.MaxInt64
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.calls = append(c.mu.calls, porcupine.Operation{ClientId: who, Input: in, Call: began, Output: out, Return: ended})
}

func (c *chapter) length() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.calls)
}

// settle decides about the failed calls: those on a file that the log of their mount names as one
// with unknown outcomes may have been done, the others are surely not, and leave the history. It
// returns how many calls there are whose outcome is unknown.
func (c *chapter) settle(unknownOn func(host, file string) bool) (dark int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var kept []porcupine.Operation
	for _, op := range c.mu.calls {
		in := op.Input.(asked)
		switch op.Output.(answered).fate {
		case failed:
			// A lock may have been granted and given back.
			if in.verb != acquires && !unknownOn(in.host, c.name) {
				continue
			}
			op.Output, op.Return = answered{fate: unknown}, math.MaxInt64
			dark++
		case unknown:
			dark++
		}
		kept = append(kept, op)
	}
	c.mu.calls = kept
	return dark
}

// check looks for an order of the calls that explains all answers. Final is what a journal holds at
// the end. An error is a proof that there is none, or says that none was found until the deadline.
func (c *chapter) check(final string, deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var by porcupine.Model
	switch c.kind {
	case registers:
		if err := c.writes(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		by = registerModel(c.made.ContentGeneration, c.mu.calls)
	case journals:
		if err := c.lines(final); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		by = journalModel(c.made.ContentGeneration, final, c.mu.calls)
	case locks:
		by = lockModel(c.made.LockGeneration, c.mu.calls)
	}
	return explained(c.name, by, c.mu.calls, deadline)
}

// explained is check with the model.
func explained(name string, by porcupine.Model, calls []porcupine.Operation, deadline time.Time) error {
	calls = ended(calls)
	left := time.Until(deadline)
	if left <= 0 {
		return fmt.Errorf("%s: no time left to check its %d calls", name, len(calls))
	}
	switch porcupine.CheckOperationsTimeout(by, calls, left) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: its %d calls were not checked within %v", name, len(calls), left.Round(time.Second))
	}
	_, info := porcupine.CheckOperationsVerbose(by, calls, max(time.Until(deadline), time.Second))
	return fmt.Errorf("%s: no order of its calls explains the answers: %s", name, stuck(by, calls, info))
}

// stuck shows where the longest explanation ends, for people.
func stuck(by porcupine.Model, calls []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partial := range slices.Concat(info.PartialLinearizationsOperations()...) {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	state := by.Init()
	placed := make(map[int64]bool) // by when they began, which is theirs alone
	for _, op := range longest {
		_, state = by.Step(state, op.Input, op.Output)
		placed[op.Call] = true
	}
	left := slices.DeleteFunc(slices.Clone(calls), func(op porcupine.Operation) bool { return placed[op.Call] })
	slices.SortFunc(left, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d fit, the last of them\n", len(longest), len(calls))
	for _, op := range longest[max(0, len(longest)-12):] {
		fmt.Fprintf(&b, "\t%s\n", shown(by, op))
	}
	fmt.Fprintf(&b, "which leaves it at %s, and then none of these does:\n", by.DescribeState(state))
	for _, op := range left[:min(12, len(left))] {
		fmt.Fprintf(&b, "\t%s\n", shown(by, op))
	}
	return b.String()
}

func shown(by porcupine.Model, op porcupine.Operation) string {
	ended := fmt.Sprint(op.Return)
	if op.Return == math.MaxInt64 {
		ended = "?"
	}
	return fmt.Sprintf("%d to %s, %d asked: %s", op.Call, ended, op.ClientId, by.DescribeOperation(op.Input, op.Output))
}

// lines checks by itself what nobody may lose: each line that was acknowledged is there, none is
// there twice, and none that nobody can have appended.
func (c *chapter) lines(final string) error {
	times := make(map[string]int)
	for line := range strings.Lines(final) {
		times[line]++
	}
	var errs []error
	for _, op := range c.mu.calls {
		in, out := op.Input.(asked), op.Output.(answered)
		if in.verb != appends {
			continue
		}
		if n := times[in.value]; n > 1 || n < 1 && out.fate == done {
			errs = append(errs, fmt.Errorf("%v: %v, and it is there %d times", in, out, n))
		}
		delete(times, in.value)
	}
	for line := range times {
		errs = append(errs, fmt.Errorf("line %q is there, and nobody was told that it might be", line))
	}
	return errors.Join(errs...)
}

// writes checks by itself what is hard to find among many: that each acknowledged write has drawn a
// generation. The history has told the last one.
func (c *chapter) writes() error {
	acknowledged, latest := uint64(0), c.made.ContentGeneration
	for _, op := range c.mu.calls {
		in, out := op.Input.(asked), op.Output.(answered)
		if in.verb == writes && out.fate == done {
			acknowledged++
		}
		latest = max(latest, out.generation)
	}
	if drawn := latest - c.made.ContentGeneration; acknowledged > drawn {
		return fmt.Errorf("%d writes were acknowledged, and the generation has grown by %d", acknowledged, drawn)
	}
	return nil
}

// checkAll checks chapters side by side, whose final contents are given by name.
func checkAll(chapters []*chapter, finals map[string]string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	todo := make(chan *chapter)
	var mu sync.Mutex
	var errs []error
	var checkers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		checkers.Go(func() {
			for c := range todo {
				if err := c.check(finals[c.name], deadline); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, c := range chapters {
		todo <- c
	}
	close(todo)
	checkers.Wait()
	return errors.Join(errs...)
}

// unknownIn tells by the log of a mount whether it has left somebody in the dark about a file.
func unknownIn(log string, path lockfs.Path) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "outcome unknown") && strings.Contains(line, string(path)) {
			return true
		}
	}
	return false
}
