// Package fusetest is for tests that mount: it says whether that can be, and whether anything was left.
package fusetest

import (
	"os"
	"testing"
)

// Need skips a test, with the reason, on a machine where nothing can be mounted. Where CI is set
// the test fails instead, so that a machine without FUSE cannot pass for one on which mounts work.
func Need(t testing.TB) {
	t.Helper()
	why := ""
	if os.Geteuid() != 0 {
		why = "mounting needs root"
	} else if device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		why = "mounting needs FUSE: " + err.Error()
	} else {
		device.Close()
	}
	switch {
	case why == "":
	case os.Getenv("CI") != "":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}
