package clock

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// A Virtual is the clock of a host in a test. It runs on package time, so inside testing/synctest
// time jumps, and it can be made to misbehave as a host's clock does.
//
// A frozen host (a stopped process, a paused virtual machine) runs nothing, but time passes for it
// as for everybody: while the clock is frozen Now goes on, no timer fires, and at Thaw all that
// have become due meanwhile fire at once, the earliest deadline first.
type Virtual struct {
	mu struct {
		sync.Mutex
		since  time.Time // when the host's clock showed shown
		shown  Instant
		rate   float64 // seconds of the host in a second of package time
		frozen bool
		armed  map[*virtualTimer]struct{}
		made   uint64 // timers made so far: the order of equal deadlines
	}
}

// NewVirtual returns a clock that runs as package time does. Its origin is an hour ago, as a
// host's is: zero is no instant that a test could meet by chance.
func NewVirtual() *Virtual {
	v := new(Virtual)
	v.mu.since = time.Now()
	v.mu.shown = Instant(time.Hour)
	v.mu.rate = 1
	v.mu.armed = make(map[*virtualTimer]struct{})
	return v
}

// Now returns what the host's clock shows, also while it is frozen.
func (v *Virtual) Now() Instant {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nowLocked()
}

func (v *Virtual) nowLocked() Instant {
	return v.mu.shown.Add(time.Duration(float64(time.Since(v.mu.since)) * v.mu.rate))
}

// Freeze holds all timers until Thaw.
func (v *Virtual) Freeze() { v.change(func() { v.mu.frozen = true }) }

// Thaw ends Freeze and fires what became due.
func (v *Virtual) Thaw() { v.change(func() { v.mu.frozen = false }) }

// Frozen reports whether the host is frozen.
func (v *Virtual) Frozen() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.frozen
}

// SetRate makes the host's clock show rate seconds a second from now on. It panics if rate is not
// positive: a clock that stands still is a Freeze or nothing.
func (v *Virtual) SetRate(rate float64) {
	if !(rate > 0) {
		panic("clock: the rate of a Virtual must be positive")
	}
	v.change(func() { v.mu.rate = rate })
}

// Jump puts the host's clock forward by d at once, as a suspend does to CLOCK_BOOTTIME. It panics
// if d is negative: these clocks never go back.
func (v *Virtual) Jump(d time.Duration) {
	if d < 0 {
		panic("clock: a Virtual cannot jump back")
	}
	v.change(func() { v.mu.shown = v.mu.shown.Add(d) })
}

// change brings the reading up to date, lets how alter how it goes on, and sets every timer anew.
func (v *Virtual) change(how func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.shown, v.mu.since = v.nowLocked(), time.Now()
	how()
	for _, t := range slices.SortedFunc(maps.Keys(v.mu.armed), earlier) {
		t.wakeLocked()
	}
}

// NewTimer returns a timer that fires once d has passed on this clock and the host is not frozen.
func (v *Virtual) NewTimer(d time.Duration) Timer {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.made++
	t := &virtualTimer{clock: v, number: v.mu.made, c: make(chan time.Time, 1)}
	t.armLocked(d)
	return t
}

// A virtualTimer is guarded by its clock's mutex. While it is armed it stands in the clock's set.
type virtualTimer struct {
	clock    *Virtual
	number   uint64
	c        chan time.Time
	deadline Instant
	wake     *time.Timer // calls fire when the deadline may have come; nil while frozen
}

func earlier(a, b *virtualTimer) int {
	return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.number, b.number))
}

func (t *virtualTimer) C() <-chan time.Time { return t.c }

func (t *virtualTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.disarmLocked()
}

func (t *virtualTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := t.disarmLocked()
	t.armLocked(d)
	return was
}

func (t *virtualTimer) armLocked(d time.Duration) {
	t.deadline = t.clock.nowLocked().Add(d)
	t.clock.mu.armed[t] = struct{}{}
	t.wakeLocked()
}

// disarmLocked also takes back a value that nobody has received, as package time does. It reports
// whether there was anything to stop.
func (t *virtualTimer) disarmLocked() bool {
	_, armed := t.clock.mu.armed[t]
	delete(t.clock.mu.armed, t)
	t.stopWakeLocked()
	select {
	case <-t.c:
		return true
	default:
		return armed
	}
}

// wakeLocked fires t if it is due, else sees to it that it is looked at again in time.
func (t *virtualTimer) wakeLocked() {
	t.stopWakeLocked()
	v := t.clock
	if v.mu.frozen {
		return // Thaw looks again
	}
	left := t.deadline.Sub(v.nowLocked())
	if left <= 0 {
		delete(v.mu.armed, t)
		t.c <- time.Now() // never blocks: a timer fires once, and arming it takes back the last value
		return
	}
	var wake *time.Timer
	wake = time.AfterFunc(time.Duration(math.Ceil(float64(left)/v.mu.rate)), func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if t.wake == wake { // else the timer was stopped or set anew while this was on its way
			t.wakeLocked()
		}
	})
	t.wake = wake
}

func (t *virtualTimer) stopWakeLocked() {
	if t.wake != nil {
		t.wake.Stop()
		t.wake = nil
	}
}
