// Package clock is where time enters lockfs. Each host, replica or client, is given one Clock;
// nothing else of the project asks the operating system what time it is. So a test can freeze a
// host, let its oscillator run wrong, or let it jump.
package clock

import (
	"time"
)

// Instant is a moment on one host's clock: the time since an origin that only this host knows.
// Instants of different hosts are never compared, and no Instant is ever sent.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from other to i.
func (i Instant) Sub(other Instant) time.Duration { return time.Duration(i - other) }

// A Clock tells one host's time, which never goes back, and wakes its host.
type Clock interface {
	Now() Instant
	// NewTimer returns a timer that fires once, d from now on this clock.
	NewTimer(d time.Duration) Timer
}

// A Timer sends on C once. Stop and Reset behave as those of time.Timer since Go 1.23: after
// either returns no value of before arrives.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}
