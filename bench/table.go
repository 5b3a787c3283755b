package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// round is what the rows were in one round, by name.
type round map[string]figures

// result is what is printed of a row.
type result struct {
	row
	typical figures // the median of each figure
	ratios  []ratio // to each of the row's floors
}

// ratio is a row's p50 as a multiple of another's.
type ratio struct {
	floor                   string
	lowest, median, highest float64
}

// sum brings the rounds together.
func sum(rows []row, rounds []round) (results []result) {
	for _, r := range rows {
		result := result{row: r, typical: figures{
			Count: median(each(rounds, func(of round) int { return of[r.name()].Count })),
			P50:   median(each(rounds, func(of round) time.Duration { return of[r.name()].P50 })),
			P99:   median(each(rounds, func(of round) time.Duration { return of[r.name()].P99 })),
			Rate:  median(each(rounds, func(of round) float64 { return of[r.name()].Rate })),
		}}
		for _, floor := range r.floors {
			ratios := each(rounds, func(of round) float64 { return float64(of[r.name()].P50) / float64(of[floor].P50) })
			result.ratios = append(result.ratios, ratio{floor, slices.Min(ratios), median(ratios), slices.Max(ratios)})
		}
		results = append(results, result)
	}
	return results
}

func each[T any](rounds []round, f func(round) T) (values []T) {
	for _, r := range rounds {
		values = append(values, f(r))
	}
	return values
}

// median returns the middle value; of an even number the upper one, which is one that was measured.
func median[T cmp.Ordered](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// printTable prints the results, sorted by where, and by what in the order of measuring.
func printTable(out io.Writer, results []result, rounds int) {
	fmt.Fprintf(out, "\n%-22s %10s %10s %9s   times the p50 of its floors: median [lowest..highest] of %d\n",
		"", "p50 ms", "p99 ms", "per s", rounds)
	for _, where := range []string{"floor", "fuse", "library", "mount"} {
		for _, r := range results {
			if r.where == where {
				fmt.Fprintln(out, r)
			}
		}
	}
}

func (r result) String() string {
	var ratios []string
	for _, x := range r.ratios {
		ratios = append(ratios, fmt.Sprintf("%s: %s [%s..%s]", x.floor, short(x.median), short(x.lowest), short(x.highest)))
	}
	line := fmt.Sprintf("%-22s %10s %10s %9.0f   %s", r.name(),
		short(milliseconds(r.typical.P50)), short(milliseconds(r.typical.P99)), r.typical.Rate, strings.Join(ratios, ", "))
	return strings.TrimRight(line, " ")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// short is a number in about three digits.
func short(v float64) string {
	decimals := 0
	for limit := 100.0; v < limit && decimals < 3; limit /= 10 {
		decimals++
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
