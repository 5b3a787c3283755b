package master

import (
	"container/heap"

	"lockfs/internal/clock"
)

// timetable holds one deadline for each key. Moving a deadline to a later time, the usual thing
// by far, costs a map write: its place in the heap is put right when its old time comes.
type timetable[K comparable] struct {
	entries map[K]*dueEntry
	due     dueHeap[K]
}

type dueEntry struct {
	at     clock.Instant
	queued bool          // an item of the heap stands for it,
	item   clock.Instant // the one of this time; others of its key are left over
}

type dueItem[K comparable] struct {
	key K
	at  clock.Instant
}

func newTimetable[K comparable]() timetable[K] {
	return timetable[K]{entries: make(map[K]*dueEntry)}
}

// set gives key the deadline at.
func (t *timetable[K]) set(key K, at clock.Instant) {
	e, known := t.entries[key]
	if !known {
		e = new(dueEntry)
		t.entries[key] = e
	}
	e.at = at
	if !e.queued || at < e.item {
		t.push(key, e)
	}
}

func (t *timetable[K]) push(key K, e *dueEntry) {
	e.queued, e.item = true, e.at
	heap.Push(&t.due, dueItem[K]{key, e.at})
}

// at returns the deadline of key, passed or not.
func (t *timetable[K]) at(key K) (clock.Instant, bool) {
	if e, ok := t.entries[key]; ok {
		return e.at, true
	}
	return 0, false
}

func (t *timetable[K]) remove(key K) { delete(t.entries, key) }

// expired returns the keys whose deadline is at or before now. Each is told once for each time
// that it was set, and keeps its deadline until it is removed.
func (t *timetable[K]) expired(now clock.Instant) []K {
	var keys []K
	for len(t.due) > 0 && t.due[0].at <= now {
		item := heap.Pop(&t.due).(dueItem[K])
		e, ok := t.entries[item.key]
		switch {
		case !ok || !e.queued || e.item != item.at: // left over
		case e.at > now:
			t.push(item.key, e)
		default:
			e.queued = false
			keys = append(keys, item.key)
		}
	}
	return keys
}

// next returns when expired should be asked again. It may be early.
func (t *timetable[K]) next() (clock.Instant, bool) {
	if len(t.due) == 0 {
		return 0, false
	}
	return t.due[0].at, true
}

type dueHeap[K comparable] []dueItem[K]

func (h dueHeap[K]) Len() int           { return len(h) }
func (h dueHeap[K]) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap[K]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap[K]) Push(x any)        { *h = append(*h, x.(dueItem[K])) }
func (h *dueHeap[K]) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
