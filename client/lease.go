package client

import (
	"time"

	"lockfs/internal/clock"
)

// lease is a session's time, as the client sees it. A renewal's lease counts from when the renewal
// was sent, less a sixteenth for the difference of two clocks, so it ends here before it ends at
// the master, which counts from when it answered.
//
//	sent      a third          two thirds        fifteen sixteenths       + grace
//	|---------|----------------|-----------------|------------------------|
//	          renewal is sent  no answer: the    jeopardy: calls wait     lost
//	                           stream is given
//	                           up
type lease struct {
	length time.Duration // as the master last said
	grace  time.Duration

	end    clock.Instant            // until then the master surely keeps the session
	number uint64                   // of the last renewal
	sent   map[uint64]clock.Instant // renewals without an answer on this stream, by number
	next   clock.Instant            // when to send one
	pause  time.Duration            // from a renewal without an answer to the next
	asked  clock.Instant            // since when the stream owes an answer; 0 is not
}

// minPause bounds how fast renewals follow each other, however short a lease is.
const minPause = 20 * time.Millisecond

// newLease is the lease of a session whose making was asked for at sent.
func newLease(sent clock.Instant, length, grace time.Duration) *lease {
	l := &lease{length: length, grace: grace, sent: make(map[uint64]clock.Instant)}
	l.extend(sent)
	return l
}

func (l *lease) extend(sent clock.Instant) {
	l.end = max(l.end, sent.Add(l.length*15/16))
	l.next = sent.Add(l.third())
}

// third is a third of a lease: when to renew, and how long a master may be silent.
func (l *lease) third() time.Duration { return l.length / 3 }

// valid reports whether the master surely keeps the session at now.
func (l *lease) valid(now clock.Instant) bool { return now < l.end }

// lost returns when the grace period ends.
func (l *lease) lost() clock.Instant { return l.end.Add(l.grace) }

// cut says that the stream is gone: what was asked on it has no answer any more.
func (l *lease) cut() {
	clear(l.sent)
	l.pause, l.asked = 0, 0
}

// greet begins on a new stream, which owes an answer to the greeting that is sent at now.
func (l *lease) greet(now clock.Instant) {
	l.cut()
	l.asked = now
}

// greeted says that the greeting was answered; a renewal is due at once.
func (l *lease) greeted(now clock.Instant) {
	l.asked = 0
	l.next = now
}

// renew returns the number of a renewal that is sent at now.
func (l *lease) renew(now clock.Instant) (number uint64) {
	l.number++
	l.sent[l.number] = now
	if l.asked == 0 {
		l.asked = now
	}
	l.pause = max(minPause, min(2*l.pause, l.length/6), l.length/24)
	l.next = now.Add(l.pause)
	return l.number
}

// renewed takes the answer to a renewal. One to a renewal of an earlier stream says nothing.
func (l *lease) renewed(number uint64, length time.Duration) {
	sent, ok := l.sent[number]
	if !ok {
		return
	}
	l.length, l.pause, l.asked = length, 0, 0
	for n, at := range l.sent {
		if n <= number {
			delete(l.sent, n) // an answer to one of these would promise less
		} else if l.asked == 0 || at < l.asked {
			l.asked = at
		}
	}
	l.extend(sent)
}

// silent reports whether the stream has owed an answer for so long that it is given up.
func (l *lease) silent(now clock.Instant) bool {
	return l.asked != 0 && now >= l.asked.Add(l.third())
}
