package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// crowd is how many clients there are where there are many.
const crowd = 64

// row is something that is measured: a floor, or an operation of lockfs.
type row struct {
	where   string // floor, fuse, library or mount
	what    string
	clients int
	floors  []string // names of the rows that it is compared with
	measure func(ctx context.Context, d time.Duration) (figures, error)
}

func (r row) name() string { return fmt.Sprintf("%s %s %d", r.where, r.what, r.clients) }

// mounts reports whether the row needs mounts.
func (r row) mounts() bool { return r.where == "mount" || r.where == "fuse" }

// slack is how much longer than it was told to a row may take.
const slack = time.Minute

// run measures for d, or fails.
func (r row) run(ctx context.Context, d time.Duration) (figures, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+slack, fmt.Errorf("not within %v", d+slack))
	defer cancel()
	f, err := r.measure(ctx, d)
	if err != nil {
		return figures{}, fmt.Errorf("%s: %w", r.name(), err)
	}
	return f, nil
}

// rows are all there are, floors beside what stands on them.
func (s *stage) rows() []row {
	var rows []row
	rows = append(rows,
		row{where: "floor", what: "tcp", clients: 1, measure: s.echo.tcp},
		row{where: "floor", what: "sync", clients: 1, measure: s.appendAndSync})
	for _, n := range []int{1, crowd} {
		stream := fmt.Sprintf("floor stream %d", n)
		floors, below := []string{stream}, []string(nil)
		if n == 1 { // many clients share syncs, and the way; one cannot
			floors, below = append(floors, "floor sync 1"), []string{"floor tcp 1"}
		}
		rows = append(rows,
			row{"floor", "unary", n, below, s.echo.unary(n)},
			row{"floor", "stream", n, below, s.echo.stream(n)},
			row{"library", "lock", n, floors, s.library.each(n, s.library.lock)},
			row{"library", "write", n, floors, s.library.each(n, s.library.write)},
			row{"library", "read", n, []string{stream}, s.library.each(n, s.library.read)})
	}
	for _, n := range []int{2, 8} {
		library := row{"library", "hand-off", n, []string{"floor stream 1", "floor sync 1"}, s.library.handOff(n)}
		mount := row{"mount", "hand-off", n, []string{library.name()}, s.play("hand-off", n, s.bothMounts)}
		rows = append(rows, library, mount)
	}
	for _, what := range []string{"lock", "write", "read"} {
		for _, n := range []int{1, crowd} {
			fuse := row{"fuse", what, n, nil, s.play(what, n, s.bareMount)}
			library := fmt.Sprintf("library %s %d", what, n)
			mount := row{"mount", what, n, []string{fuse.name(), library}, s.play(what, n, s.oneMount)}
			rows = append(rows, fuse, mount)
		}
	}
	return rows
}

// choose keeps the rows whose names match, and those that they are compared with.
func choose(all []row, names *regexp.Regexp) (chosen []row) {
	wanted := make(map[string]bool)
	var want func(r row)
	want = func(r row) {
		wanted[r.name()] = true
		for _, floor := range r.floors {
			want(all[slices.IndexFunc(all, func(r row) bool { return r.name() == floor })])
		}
	}
	for _, r := range all {
		if names.MatchString(r.name()) {
			want(r)
		}
	}
	for _, r := range all {
		if wanted[r.name()] {
			chosen = append(chosen, r)
		}
	}
	return chosen
}
