package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// TestDemo plays the demo twice: to its end, and interrupted by Ctrl-C where most is going on.
// Either way nothing may be left behind.
func TestDemo(t *testing.T) {
	fusetest.Need(t)
	programs, err := proccell.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, interruptAt string }{
		{"to its end", ""},
		{"interrupted", "host A freezes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			out := &fusetest.Screen{At: func(said string) {
				if test.interruptAt != "" && strings.Contains(said, test.interruptAt) {
					interrupt()
				}
			}}
			err := run(ctx, filepath.Dir(programs.Lockfsd), out)
			if test.interruptAt == "" && err != nil || test.interruptAt != "" && err == nil {
				t.Errorf("error %v", err)
			}
			if t.Failed() || testing.Verbose() {
				t.Log(out.String())
			}
			fusetest.NothingLeft(t, temp)
		})
	}
}
