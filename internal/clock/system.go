package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic is the clock of a replica: the time its machine has been running. It stands still
// while the machine is suspended.
func Monotonic() Clock { return system{unix.CLOCK_MONOTONIC} }

// Boottime is the clock of a client: the time since its machine was started, suspended or not. A
// lease that ran out in a suspend is over when the machine wakes.
//
// Its timers are Go's, which do not count a suspend. So whoever acts on a deadline looks at Now
// before it acts, and does not only wait for the timer.
func Boottime() Clock { return system{unix.CLOCK_BOOTTIME} }

type system struct{ id int32 }

func (s system) Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(s.id, &ts); err != nil {
		panic("clock: the kernel has no such clock: " + err.Error())
	}
	return Instant(ts.Nano())
}

func (system) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ t *time.Timer }

func (t systemTimer) C() <-chan time.Time        { return t.t.C }
func (t systemTimer) Stop() bool                 { return t.t.Stop() }
func (t systemTimer) Reset(d time.Duration) bool { return t.t.Reset(d) }
