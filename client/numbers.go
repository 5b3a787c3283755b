package client

import (
	"slices"

	"lockfs/lockpb"
)

// numbers is a set of request numbers, kept as ranges: ascending, and neither touching nor
// overlapping each other.
type numbers []numberRange

type numberRange struct{ first, last uint64 }

// maxConfirmed bounds the ranges that one call confirms. There is about one for each call that is
// answered out of turn, so the bound is hardly met, and what is left over goes with the next call.
const maxConfirmed = 64

// add puts n into the set.
func (s *numbers) add(n uint64) {
	i, found := slices.BinarySearchFunc(*s, n, func(r numberRange, n uint64) int {
		switch {
		case r.last < n:
			return -1
		case r.first > n:
			return 1
		}
		return 0
	})
	if found {
		return
	}
	*s = slices.Insert(*s, i, numberRange{n, n})
	s.join(i)
	s.join(i - 1)
}

// join makes one of the ranges i and i+1 where they touch.
func (s *numbers) join(i int) {
	if i < 0 || i+1 >= len(*s) || (*s)[i].last+1 != (*s)[i+1].first {
		return
	}
	(*s)[i].last = (*s)[i+1].last
	*s = slices.Delete(*s, i+1, i+2)
}

// remove takes all of other out of the set.
func (s *numbers) remove(other numbers) {
	var rest numbers
	for _, r := range *s {
		for len(other) > 0 && other[0].last < r.first {
			other = other[1:]
		}
		for _, o := range other {
			if o.first > r.last {
				break
			}
			if r.first < o.first {
				rest = append(rest, numberRange{r.first, o.first - 1})
			}
			r.first = o.last + 1
		}
		if r.first <= r.last {
			rest = append(rest, r)
		}
	}
	*s = rest
}

// some returns a copy of the first ranges, as many as one call may confirm.
func (s numbers) some() numbers { return slices.Clone(s[:min(len(s), maxConfirmed)]) }

func (s numbers) wire() []*lockpb.NumberRange {
	ranges := make([]*lockpb.NumberRange, len(s))
	for i, r := range s {
		ranges[i] = &lockpb.NumberRange{First: r.first, Last: r.last}
	}
	return ranges
}
