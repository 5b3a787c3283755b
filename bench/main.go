// Bench measures a cell of three replicas on loopback, each a process, beside the floors that the
// machine sets in the same minute: through the library, and through mounts by system calls.
//
//	go run ./bench [-bin FOLDER] [-rounds N] [-time D] [-rows REGEXP] [-profile FOLDER]
//
// It needs root and FUSE for the rows with mounts, works in a scratch folder of $TMPDIR, which should be on a
// disk (in memory a sync costs nothing), and leaves no process, mount or file behind.
//
// # What is measured
//
// Clients work in closed loops, each on a file of its own, one call after the other:
//
//	lock      a free lock is taken and let go: two entries of the log
//	hand-off  so many clients pass one lock round; from the call of release to the next holder's
//	          return from acquire
//	write     the contents of a file are replaced by 256 bytes
//	read      256 bytes that are what was last written anywhere; nothing is cached yet
//
// Through the library each client has a connection and a session. Through the mount all are threads
// of one process: lock is flock(2) twice on an open file, write and read are open, write or read,
// and close. The clients of a hand-off are spread over two mounts.
//
//	floor sync    256 bytes appended and fdatasync'ed in the folder of the replicas' data
//	floor tcp     128 bytes to another process on loopback and back
//	floor unary   the same by a gRPC call, with gRPC as it comes
//	floor stream  the same by a message on an open stream of gRPC, as lockfs sends its calls
//	fuse …        the same system calls as of the mount's row, on a go-fuse file system with its
//	              options that answers at once
//
// # What is printed
//
// The median, over the rounds, of each round's p50, p99 and rate. Then, for each floor of a row, the
// row's p50 as a multiple of the floor's p50: the median of the multiples of the rounds, and the
// lowest and highest. Machines have other neighbours each minute, so these say more than the times,
// and a difference is one only where the ranges do not meet. A round measures every row once, a row
// beside its floors; every other round goes backwards. Nothing passes or fails by time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	bin     string
	rounds  int
	time    time.Duration
	rows    *regexp.Regexp
	profile string
}

func main() {
	if worker, ok := asWorker(); ok {
		exit(worker())
	}
	o := options{rows: regexp.MustCompile("")}
	flag.StringVar(&o.bin, "bin", "", "`folder` of the built commands; without it they are built")
	flag.IntVar(&o.rounds, "rounds", 5, "`number` of times that each row is measured")
	flag.DurationVar(&o.time, "time", time.Second, "how long a row is measured in each round, after a fifth of that to warm up")
	flag.Func("rows", "measure only rows whose name, such as \"library lock 64\", matches this `regexp`, and their floors", func(s string) (err error) {
		o.rows, err = regexp.Compile(s)
		return err
	})
	flag.StringVar(&o.profile, "profile", "", "`folder` for CPU profiles of the replicas and of the client, one set for each row \"library lock\", in a run of ten times -time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	_, err := run(ctx, o, os.Stdout)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run measures in a scratch folder, takes it away again, and returns what it printed of each row.
func run(ctx context.Context, o options, out io.Writer) (results []result, err error) {
	if o.rounds < 1 || o.time <= 0 {
		return nil, fmt.Errorf("%d rounds of %v measure nothing", o.rounds, o.time)
	}
	s := new(stage)
	rows := choose(s.rows(), o.rows)
	if len(rows) == 0 {
		return nil, fmt.Errorf("no row is called %q", o.rows)
	}
	if s.dir, err = os.MkdirTemp("", "lockfs-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	defer func() { err = errors.Join(err, s.clear(err, out)) }()
	if err := s.set(ctx, o.bin, slices.ContainsFunc(rows, row.mounts)); err != nil {
		return nil, err
	}
	s.describe(o, out)
	rounds, err := measure(ctx, rows, o, out)
	if err != nil {
		return nil, err
	}
	results = sum(rows, rounds)
	printTable(out, results, o.rounds)
	if o.profile != "" {
		err = s.profile(ctx, rows, o, out)
	}
	return results, err
}

// measure goes through the rows as often as there are rounds.
func measure(ctx context.Context, rows []row, o options, out io.Writer) ([]round, error) {
	rows = slices.Clone(rows)
	var rounds []round
	for i := range o.rounds {
		fmt.Fprintf(out, "round %d of %d ", i+1, o.rounds)
		figures := make(round)
		for _, r := range rows {
			f, err := r.run(ctx, o.time)
			if err != nil {
				return nil, err
			}
			figures[r.name()] = f
			fmt.Fprint(out, ".")
		}
		fmt.Fprintln(out)
		rounds = append(rounds, figures)
		slices.Reverse(rows) // what drifts within a round weighs on both ends alike
	}
	return rounds, nil
}
