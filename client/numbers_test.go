package client

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A set of ranges does what a map does, and stays in its form.
func TestNumbersAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var s numbers
		model := make(map[uint64]bool)
		for range 60 {
			if random.IntN(8) > 0 {
				n := random.Uint64N(40) + 1
				s.add(n)
				model[n] = true
			} else {
				other := random.Perm(12)
				var out numbers
				for _, n := range other[:random.IntN(12)] {
					out.add(uint64(3 * n))
					delete(model, uint64(3*n))
				}
				s.remove(out)
			}
			check(t, s, model)
		}
	}
}

func check(t *testing.T, s numbers, model map[uint64]bool) {
	t.Helper()
	count := 0
	for i, r := range s {
		if r.first > r.last || i > 0 && s[i-1].last+1 >= r.first {
			t.Fatalf("not in form: %v", s)
		}
		for n := r.first; n <= r.last; n++ {
			count++
			if !model[n] {
				t.Fatalf("%d is in %v, and should not be", n, s)
			}
		}
	}
	if count != len(model) {
		t.Fatalf("%v has %d numbers, not %d", s, count, len(model))
	}
}

func TestNumbersConfirmedAreBounded(t *testing.T) {
	var s numbers
	for n := range uint64(1000) {
		s.add(2 * n)
	}
	some := s.some()
	if len(some) != maxConfirmed || !slices.Equal(some, s[:maxConfirmed]) {
		t.Fatalf("%d ranges", len(some))
	}
	s.remove(some)
	if len(s) != 1000-maxConfirmed || s[0].first != 2*maxConfirmed {
		t.Fatalf("what was confirmed is still there: %v", s[0])
	}
}
