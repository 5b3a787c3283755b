package store

import (
	"cmp"
	"slices"
	"sort"
)

// contains reports whether number lies in one of the spans, which are in order.
func contains(spans []span, number uint64) bool {
	return covers(spans, span{number, number})
}

// covers reports whether one of the spans has all of other.
func covers(spans []span, other span) bool {
	i := after(spans, other.first)
	return i > 0 && other.last <= spans[i-1].last
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

// merge returns the spans with all of more, which need not be in order, and leaves its arguments alone.
func merge(spans, more []span) []span {
	all := slices.Concat(spans, more)
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out []span
	for _, s := range all {
		if last := len(out) - 1; last >= 0 && s.first-1 <= out[last].last {
			out[last].last = max(out[last].last, s.last)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// add returns the spans with more, and leaves its argument alone. Numbers are from 1 on.
func add(spans []span, more span) []span {
	from := sort.Search(len(spans), func(i int) bool { return spans[i].last >= more.first-1 })
	to := sort.Search(len(spans), func(i int) bool { return spans[i].first-1 > more.last })
	if from < to { // these it touches or overlaps
		more.first = min(more.first, spans[from].first)
		more.last = max(more.last, spans[to-1].last)
	}
	return slices.Concat(spans[:from], []span{more}, spans[to:])
}
