package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockfs"
	"lockfs/client"
	"lockfs/internal/proccell"
)

// failoverTime is what the longest failover may take, with all that a loaded machine adds.
const failoverTime = 20 * time.Second

// writers are programs of the library on hosts of their own, each of which appends numbered lines to
// files of its own. The promise is that exactly the acknowledged ones are there, in order, each once.
type writers struct {
	*testing.T
	cell *proccell.Cell
	all  []*writer
	stop chan struct{}
	done sync.WaitGroup
}

// An outcome is what a writer was told about a line.
type outcome byte

const (
	lineAcked   outcome = 'a' // it is done
	lineRefused outcome = 'r' // it is not, and never will be
	lineUnknown outcome = 'u'
)

type writer struct {
	name   string
	client *client.Client

	mu struct {
		sync.Mutex
		outcomes []outcome // by line
		acked    int
		last     time.Time     // when one was
		longest  time.Duration // between two that were
		errors   map[string]int
	}
}

// linesPerFile keeps a file below the limit of one.
const linesPerFile = 10_000

// startWriters starts n of them. The end of the test ends their clients.
func startWriters(t *testing.T, cell *proccell.Cell, n int) *writers {
	t.Helper()
	w := &writers{T: t, cell: cell, stop: make(chan struct{})}
	for i := range n {
		one := &writer{name: fmt.Sprint("writer-", i), client: newClient(t, cell)}
		one.mu.last, one.mu.errors = time.Now(), make(map[string]int)
		w.all = append(w.all, one)
		w.done.Go(func() { one.run(t.Context(), cell.Name(), w.stop) })
	}
	t.Cleanup(w.halt)
	return w
}

// newClient returns a client of a cell, which the test's end closes.
func newClient(t *testing.T, cell *proccell.Cell) *client.Client {
	t.Helper()
	var addresses []string
	for _, r := range cell.Replicas {
		addresses = append(addresses, r.Address)
	}
	c, err := client.Open(client.Config{Cell: cell.Name(), Addresses: addresses})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Close(ctx) // the cell may be gone already
	})
	return c
}

// run appends until stop is closed or the test ends.
func (w *writer) run(ctx context.Context, cell string, stop <-chan struct{}) {
	for line := 0; ctx.Err() == nil; line++ {
		select {
		case <-stop:
			return
		default:
		}
		w.note(w.append(ctx, w.path(cell, line), fmt.Sprintln(line)))
	}
}

func (w *writer) path(cell string, line int) lockfs.Path {
	return lockfs.Path(fmt.Sprintf("/ls/%s/%s-%d", cell, w.name, line/linesPerFile))
}

// append adds a line to a file, which the first line makes.
func (w *writer) append(ctx context.Context, path lockfs.Path, line string) error {
	s, err := w.client.Session(ctx)
	if err != nil {
		return notDone(err)
	}
	edit := client.Edit{Path: path, Changes: []client.Change{{Kind: client.Append, Data: []byte(line)}}}
	if _, err = s.Edit(ctx, edit); !errors.Is(err, lockfs.ErrNotExist) {
		return err
	}
	if _, _, err := s.Create(ctx, client.Create{Path: path, Type: lockfs.File}); err != nil {
		return notDone(err)
	}
	_, err = s.Edit(ctx, edit)
	return err
}

// notDone is an error of a call that came before the write.
func notDone(err error) error { return fmt.Errorf("not tried: %v", err) }

func (w *writer) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.mu.outcomes = append(w.mu.outcomes, lineAcked)
		w.mu.acked++
		w.mu.longest = max(w.mu.longest, time.Since(w.mu.last))
		w.mu.last = time.Now()
		return
	case errors.Is(err, lockfs.ErrUnknown), errors.Is(err, lockfs.ErrSession):
		w.mu.outcomes = append(w.mu.outcomes, lineUnknown)
	default:
		w.mu.outcomes = append(w.mu.outcomes, lineRefused)
	}
	w.mu.errors[err.Error()]++
}

// told returns what the writer was told so far, by line.
func (w *writer) told() []outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.outcomes)
}

func (w *writer) acknowledged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.acked
}

// progress waits until each writer has had n more lines acknowledged.
func (w *writers) progress(n int, limit time.Duration) {
	w.Helper()
	goals := make(map[*writer]int)
	for _, one := range w.all {
		goals[one] = one.acknowledged() + n
	}
	until(w.T, fmt.Sprintf("%d more acknowledged lines of each writer", n), limit, func() bool {
		return !slices.ContainsFunc(w.all, func(one *writer) bool { return one.acknowledged() < goals[one] })
	})
}

// halt ends the writing.
func (w *writers) halt() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.done.Wait()
}

// finish ends the writing, compares what is there with what was told, and the replicas with each
// other. No writer may have waited for longer than longest.
func (w *writers) finish(longest time.Duration) {
	w.Helper()
	w.halt()
	reader := newClient(w.T, w.cell).Reader()
	for _, one := range w.all {
		there := w.lines(reader, one)
		w.compare(one.name, one.told(), there)
		w.Logf("%s: %d lines acknowledged, the longest stretch without one was %v; errors: %v",
			one.name, one.mu.acked, one.mu.longest.Round(time.Millisecond), one.mu.errors)
		if one.mu.longest > longest {
			w.Errorf("%s: nothing was acknowledged for %v; a failover may take %v", one.name, one.mu.longest, longest)
		}
	}
	sameHash(w.T, w.cell)
}

// lines returns what a cell has of a writer, in order.
func (w *writers) lines(reader client.Reader, one *writer) (all []string) {
	w.Helper()
	for first := 0; first < len(one.told()); first += linesPerFile {
		content, _, err := reader.Read(within(w.T, time.Minute), one.path(w.cell.Name(), first), 0)
		if err != nil && !errors.Is(err, lockfs.ErrNotExist) {
			w.Fatal(err)
		}
		all = append(all, strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")...)
	}
	return slices.DeleteFunc(all, func(line string) bool { return line == "" })
}

// compare checks that the lines that are there are those that may be, in order, and that none is
// missing that must be.
func (w *writers) compare(name string, told []outcome, there []string) {
	w.Helper()
	for i, o := range told {
		is := len(there) > 0 && there[0] == fmt.Sprint(i)
		if is {
			there = there[1:]
		}
		if is && o == lineRefused || !is && o == lineAcked {
			w.Errorf("%s: what was told of line %d is %c, and is there: %v", name, i, o, is)
		}
	}
	if len(there) > 0 {
		w.Errorf("%s: %d lines are there that are out of place or that nobody wrote, the first is %q", name, len(there), there[0])
	}
}

// fatal returns what ends the test at an error.
func fatal(t *testing.T) func(err error) {
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// until polls other processes until they show what is awaited.
func until(t *testing.T, what string, limit time.Duration, shown func() bool) {
	t.Helper()
	(&hosts{T: t}).until(what, limit, shown)
}

// sameHash waits until all replicas that run have applied the same, and compares their hashes.
func sameHash(t *testing.T, cell *proccell.Cell) {
	t.Helper()
	hashes := make(map[string]uint64)
	until(t, "all replicas at the same entry", time.Minute, func() bool {
		clear(hashes)
		applied := make(map[uint64]bool)
		for _, r := range cell.Replicas {
			if !r.Running() {
				continue
			}
			status, err := cell.Status(t.Context(), r)
			if err != nil {
				return false
			}
			applied[status.GetApplied()], hashes[r.Name] = true, status.GetHash()
		}
		return len(applied) == 1
	})
	if different := slices.Compact(slices.Sorted(maps.Values(hashes))); len(different) != 1 {
		t.Errorf("at the same entry the replicas have different hashes: %x", hashes)
	}
}
