package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockfs/internal/fusetest"
	"lockfs/internal/proccell"
)

// readme returns README.md, and the blocks in it that are meant to be typed.
func readme(t *testing.T) (text string, blocks []string) {
	t.Helper()
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindAllStringSubmatch(string(data), -1) {
		blocks = append(blocks, match[1])
	}
	if len(blocks) == 0 {
		t.Fatal("README.md has no block of sh")
	}
	return string(data), blocks
}

// freePorts returns the beginning of three ports that are free, and end with 1, 2 and 3.
func freePorts(t *testing.T) string {
	t.Helper()
	for tens := 2000; tens < 3000; tens++ {
		free := true
		for last := 1; free && last <= 3; last++ {
			listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d%d", tens, last))
			if free = err == nil; free {
				listener.Close()
			}
		}
		if free {
			return fmt.Sprint(tens)
		}
	}
	t.Fatal("no free ports")
	return ""
}

// TestReadme types everything that README.md shows, in order and in one shell, as its reader would;
// only ports, folders and the leader's time in office are this test's own. The last block takes all
// away that the others made.
func TestReadme(t *testing.T) {
	fusetest.Need(t)
	text, blocks := readme(t)
	folder := filepath.Join(t.TempDir(), "lockfs")
	mine := strings.NewReplacer("127.0.0.1:742", "127.0.0.1:"+freePorts(t), "/tmp/lockfs", folder, "sleep 2\n", "sleep 6\n")
	last := len(blocks) - 1
	script := "set -e\n" + mine.Replace(strings.Join(blocks[:last], "\n")) + `
flock $B/orders-db/master true # the leader of the first thing has ended
test "$(cat $B/orders-db/config)" = limit=100
test "$(wc -l < $A/orders-db/log)" = 1
! lockfs sequencer get $A/orders-db/master
! flock $A/orders-db true
` + mine.Replace(blocks[last])
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(programs.Lockfs)+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		for _, mount := range []string{"a", "b"} {
			if err := proccell.Detach(filepath.Join(folder, mount)); err != nil {
				t.Error(err)
			}
		}
	})
	output, err := proccell.Run(within(t, 2*time.Minute), "README.md", cmd)
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, want := range []string{
		"\norders-db\n", "\n10.4.7.22:7000 leads\n", "\nit runs elsewhere\n", "/ls/ny1/orders-db/master:EXCLUSIVE:",
		"/ls/ny1/orders-db/master  held ", "; 1 more may be lost\n",
		"nodes with ", " bytes read back equal; the first lock there is of generation ",
		"sequencer get " + folder + "/a/ny1/orders-db/master: no program of this host holds a lock of lockfs on it\n",
		"orders-db: Is a directory\n",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("typing what README.md shows does not print %q; it printed\n%s", want, output)
		}
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what README.md shows leaves %s behind: %v", folder, err)
	}

	for _, target := range regexp.MustCompile("`make ([a-z]+)").FindAllStringSubmatch(text, -1) {
		cmd := exec.Command("make", "-n", target[1])
		cmd.Dir = ".."
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("README.md speaks of make %s: %v: %s", target[1], err, output)
		}
	}
	for _, path := range regexp.MustCompile("`([a-z]+(?:/[a-z]+)*\\.(?:go|proto))`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("..", path[1])); err != nil {
			t.Errorf("README.md tells to read %s: %v", path[1], err)
		}
	}
}
