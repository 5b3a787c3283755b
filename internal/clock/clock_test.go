package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSystemClocksRun(t *testing.T) {
	for name, c := range map[string]Clock{"monotonic": Monotonic(), "boottime": Boottime()} {
		before := c.Now()
		<-c.NewTimer(time.Millisecond).C()
		if passed := c.Now().Sub(before); passed < time.Millisecond {
			t.Errorf("%s: a timer of 1ms fired after %v", name, passed)
		}
	}
	// Both count since boot, and only boottime counts suspends. It is read second.
	if m, b := Monotonic().Now(), Boottime().Now(); m > b {
		t.Errorf("monotonic %v is ahead of boottime %v", m, b)
	}
}

// fired reports whether a timer's value is there, after all goroutines came to rest.
func fired(t Timer) bool {
	synctest.Wait()
	select {
	case <-t.C():
		return true
	default:
		return false
	}
}

// A step waits on the test's own time, does something to the clock, and says what a timer of ten
// seconds made at the start and the reading should be after it.
type step struct {
	wait  time.Duration
	do    func(*Virtual)
	shown time.Duration
	fired bool
}

func TestVirtual(t *testing.T) {
	nothing := func(*Virtual) {}
	freeze, thaw := (*Virtual).Freeze, (*Virtual).Thaw
	rate := func(r float64) func(*Virtual) { return func(v *Virtual) { v.SetRate(r) } }
	jump := func(d time.Duration) func(*Virtual) { return func(v *Virtual) { v.Jump(d) } }
	const s = time.Second
	for name, steps := range map[string][]step{
		"runs as time does":      {{10*s - 1, nothing, 10*s - 1, false}, {1, nothing, 10 * s, true}},
		"frozen until thawed":    {{9 * s, freeze, 9 * s, false}, {9 * s, nothing, 18 * s, false}, {0, thaw, 18 * s, true}},
		"frozen and not yet due": {{1 * s, freeze, 1 * s, false}, {2 * s, thaw, 3 * s, false}, {7*s - 1, nothing, 10*s - 1, false}, {1, nothing, 10 * s, true}},
		"frozen twice":           {{1 * s, freeze, 1 * s, false}, {1 * s, freeze, 2 * s, false}, {9 * s, thaw, 11 * s, true}},
		"thawed though running":  {{1 * s, thaw, 1 * s, false}, {9 * s, nothing, 10 * s, true}},
		"fast":                   {{0, rate(2), 0, false}, {5*s - 1, nothing, 10*s - 2, false}, {1, nothing, 10 * s, true}},
		"slow":                   {{0, rate(0.5), 0, false}, {20*s - 2, nothing, 10*s - 1, false}, {2, nothing, 10 * s, true}},
		"fast, then slow":        {{0, rate(2), 0, false}, {4 * s, rate(0.25), 8 * s, false}, {8*s - 4, nothing, 10*s - 1, false}, {4, nothing, 10 * s, true}},
		"jumps short of it":      {{1 * s, jump(8 * s), 9 * s, false}, {1*s - 1, nothing, 10*s - 1, false}, {1, nothing, 10 * s, true}},
		"jumps past it":          {{1 * s, jump(60 * s), 61 * s, true}},
		"jumps while frozen":     {{0, freeze, 0, false}, {0, jump(60 * s), 60 * s, false}, {0, thaw, 60 * s, true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := NewVirtual()
				origin, timer := v.Now(), v.NewTimer(10*s)
				for i, step := range steps {
					<-time.After(step.wait)
					step.do(v)
					if got := v.Now().Sub(origin); got != step.shown {
						t.Fatalf("step %d: the clock shows %v, want %v", i, got, step.shown)
					}
					if got := fired(timer); got != step.fired {
						t.Fatalf("step %d: fired is %v, want %v", i, got, step.fired)
					}
				}
			})
		})
	}
}

func TestVirtualStopAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual()
		timer := v.NewTimer(time.Second)
		if !timer.Stop() || timer.Stop() {
			t.Fatal("Stop must report whether it stopped the timer")
		}
		<-time.After(time.Minute)
		if fired(timer) {
			t.Fatal("a stopped timer fired")
		}
		if timer.Reset(time.Second) {
			t.Fatal("Reset of a stopped timer reports that it was running")
		}
		<-time.After(2 * time.Second)
		synctest.Wait() // its value is in the channel now
		if !timer.Reset(time.Second) || fired(timer) {
			t.Fatal("after Reset the value of before arrived")
		}
		<-time.After(time.Second)
		if !fired(timer) || timer.Stop() {
			t.Fatal("a timer that was set anew must fire, once")
		}
		if timer.Reset(0); !fired(timer) {
			t.Fatal("a timer of no time must fire at once")
		}
		v.Freeze()
		timer.Reset(time.Second)
		<-time.After(2 * time.Second)
		if !timer.Stop() {
			t.Fatal("Stop of a timer that is due on a frozen host must stop it")
		}
		v.Thaw()
		if fired(timer) {
			t.Fatal("a timer stopped while due fired at Thaw")
		}
	})
}

func TestVirtualLeavesNothingArmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual()
		for i := range 3 {
			v.NewTimer(time.Duration(i) * time.Second)
		}
		v.NewTimer(time.Hour).Stop()
		<-time.After(5 * time.Second)
		synctest.Wait()
		v.mu.Lock()
		defer v.mu.Unlock()
		if n := len(v.mu.armed); n != 0 {
			t.Fatalf("%d timers are kept after they fired or were stopped", n)
		}
	})
}

func TestVirtualRefuses(t *testing.T) {
	for name, f := range map[string]func(*Virtual){
		"no rate":       func(v *Virtual) { v.SetRate(0) },
		"negative rate": func(v *Virtual) { v.SetRate(-1) },
		"jump back":     func(v *Virtual) { v.Jump(-1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Fatal("it was let through")
				}
			}()
			f(NewVirtual())
		})
	}
}
