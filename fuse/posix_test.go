package fuse

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// notPosix are the tests of go-fuse's suite that ask for what there is not here: why, and at what
// they fail.
var notPosix = map[string]struct{ why, says string }{
	"Link":             {noLinks, "Link: link .* operation not permitted"},
	"LinkUnlinkRename": {noLinks, "Link .* operation not permitted"},
	"OpenSymlinkRace":  {noLinks, "shuffler: Symlink: operation not permitted"},
	"SetattrSymlink":   {noLinks, "symlink: symlink .* operation not permitted"},
	"SymlinkReadlink":  {noLinks, "Symlink: symlink .* operation not permitted"},
	"Tmpfile":          {"a file without a name is a kind of node that does not exist", "O_TMPFILE: operation not permitted"},

	"OpenAt":        {noDirs, "rename .* invalid cross-device link"},
	"RenameOpenDir": {noDirs, "Rename: invalid cross-device link"},
	"RenameOverwriteDestNoExist": {"a file that is renamed is a new node, so that no sequencer of the old name's lock is good for the new one's",
		"got ino"},
	"RenameOverwriteDestExist": {onto, "got ino"},
	"NlinkZero":                {onto, "Nlink of overwritten file: got 1, want 0"},

	"FstatDeleted": {"a deleted node is ESTALE to who has it open, on every host alike", "stale file handle"},
	"FileBasic":    {"mode bits show what the cell allows, and are not kept", "Fstat: got mode 100644, want 100755"},
	"XAttr":        {noXAttrs, "Setxattr: operation not supported"},
	"XAttrLarge":   {noXAttrs, "Setxattr: operation not supported"},

	"FcntlFlockLocksFile": {"fcntl locks are of a process, which does not exclude itself by another descriptor: the test is wrong anywhere",
		"FcntlFlock returned <nil>, expected EAGAIN"},
}

const (
	noLinks  = "there are no links"
	noDirs   = "directories are not renamed"
	onto     = "a file that is renamed onto another replaces its contents, and the node stays, with its lock"
	noXAttrs = "attributes are the record's, and programs have none of their own"
)

// TestPosix runs go-fuse's suite on a mount, in a process of its own. What is in notPosix must fail
// as it says there, and all else must pass.
func TestPosix(t *testing.T) {
	_, a, _ := twoHosts(t)
	suite := exec.Command(os.Args[0], "-test.run=^TestPosixSuite$", "-test.v", "-test.timeout=5m")
	suite.Env = append(os.Environ(), "LOCKFS_TEST_POSIX="+a.here)
	suite.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, _ := suite.CombinedOutput() // it fails as a whole
	outcome, said := posixOutcome(string(out))
	for name := range posixtest.All {
		not, excluded := notPosix[name]
		switch {
		case !excluded && outcome[name] != "PASS":
			t.Errorf("%s: %s", name, outcome[name])
		case excluded && outcome[name] == "PASS":
			t.Errorf("%s passes, although %s", name, not.why)
		case excluded && !regexp.MustCompile(not.says).MatchString(said[name]):
			t.Errorf("%s: %s, and not at %q", name, outcome[name], not.says)
		}
	}
	for name := range notPosix {
		if posixtest.All[name] == nil {
			t.Errorf("%s is no test of the suite", name)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// posixOutcome reads the output of the suite: what became of each test, and what it said.
func posixOutcome(out string) (outcome, said map[string]string) {
	outcome, said = make(map[string]string), make(map[string]string)
	for _, match := range regexp.MustCompile(`--- (PASS|FAIL|SKIP): TestPosixSuite/(\w+)`).FindAllStringSubmatch(out, -1) {
		outcome[match[2]] = match[1]
	}
	for _, part := range strings.Split(out, "=== RUN   TestPosixSuite/") {
		name, text, _ := strings.Cut(part, "\n")
		said[name] = text
	}
	return outcome, said
}

// TestPosixSuite is the process that TestPosix starts.
func TestPosixSuite(t *testing.T) {
	dir := os.Getenv("LOCKFS_TEST_POSIX")
	if dir == "" {
		t.Skip("it is run by TestPosix")
	}
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			own := filepath.Join(dir, name)
			if err := os.Mkdir(own, 0o755); err != nil {
				t.Fatal(err)
			}
			posixtest.All[name](t, own)
		})
	}
}
