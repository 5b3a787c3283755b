// Package proccell runs a cell as it runs in earnest: replicas and mounts as processes, on loopback
// addresses and in a scratch folder. Tests and the demo kill, freeze and start them again; whatever
// happens, Close leaves no process, no mount and no stuck system call behind.
//
//	programs, err := proccell.Build(ctx, folder)
//	cell, err := proccell.New(proccell.Config{Programs: programs, Dir: scratch})
//	defer cell.Close()
//	err = cell.Start(ctx)
//	a, err := cell.Mount(ctx, "a")
//	os.ReadFile(a.Path("orders-db/master"))
//
// A process that holds files of a mount must be ended before the mount: forking while it holds them
// waits for the mount's answer, so a frozen mount freezes them too. Tests that freeze a mount hold
// its files in processes of their own, never in the test itself.
package proccell

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are the paths of the built commands.
type Programs struct {
	Lockfsd, Mount, Lockfs string
}

// In returns the programs of a folder that make build or Build filled.
func In(folder string) Programs {
	return Programs{
		Lockfsd: filepath.Join(folder, "lockfsd"),
		Mount:   filepath.Join(folder, "lockfs-mount"),
		Lockfs:  filepath.Join(folder, "lockfs"),
	}
}

// Build compiles the commands into folder, with the race detector where the caller has it too.
func Build(ctx context.Context, folder string) (Programs, error) {
	args := []string{"build", "-o", folder + "/"}
	if raceEnabled {
		args = append(args, "-race")
		// For what is built here: the detector's pause of a second at each program's end is for
		// programs that do not wait for their goroutines.
		os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	}
	args = append(args, "lockfs/cmd/lockfsd", "lockfs/cmd/lockfs-mount", "lockfs/cmd/lockfs")
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return In(folder), nil
}
