package store

import (
	"cmp"
	"slices"
)

// contains reports whether number lies in one of the spans, which are in order.
func contains(spans []span, number uint64) bool {
	i := after(spans, number)
	return i > 0 && number <= spans[i-1].last
}

// after returns how many of the spans begin at or before number.
func after(spans []span, number uint64) int {
	i, found := slices.BinarySearchFunc(spans, number, func(s span, number uint64) int {
		return cmp.Compare(s.first, number)
	})
	if found {
		i++
	}
	return i
}

// add returns the spans with number, which is in none of them, and leaves its argument alone.
// Numbers are from 1 on.
func add(spans []span, number uint64) []span {
	i := after(spans, number)
	joinsBefore := i > 0 && spans[i-1].last == number-1
	joinsAfter := i < len(spans) && spans[i].first-1 == number
	next := slices.Clone(spans)
	switch {
	case joinsBefore && joinsAfter:
		next[i-1].last = next[i].last
		return slices.Delete(next, i, i+1)
	case joinsBefore:
		next[i-1].last = number
	case joinsAfter:
		next[i].first = number
	default:
		return slices.Insert(next, i, span{number, number})
	}
	return next
}
