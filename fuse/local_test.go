package fuse

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
)

// TestLikeALocalFile does the same things at random to a file of the mount and to one of a local
// file system, through one open file at a time, and wants the same answers and the same contents.
func TestLikeALocalFile(t *testing.T) {
	_, a, b := twoHosts(t)
	local := t.TempDir()
	for seed := range uint64(sized(30, 1000)) {
		random := rand.New(rand.NewPCG(seed, 0))
		here, there := a.program(), a.program()
		a.expect("touch $D/f "+local+"/f", "")
		both := func(command string) {
			t.Helper()
			here.tell("%s", strings.ReplaceAll(command, "$F", a.path("f")))
			there.tell("%s", strings.ReplaceAll(command, "$F", filepath.Join(local, "f")))
			if got, want := here.hear(), there.hear(); got != want {
				t.Fatalf("seed %d: %s: %q, and of a local file %q", seed, command, got, want)
			}
		}
		for range 6 {
			how := []string{"c", "r+", "w", "w!", "w+", "a", "a+", "sync"}[random.IntN(8)]
			both("open f $F " + how)
			if random.IntN(3) == 0 && how[len(how)-1] != '!' && how != "w+" { // a lock would undo the cut
				both("flock f ex")
			}
			for range random.IntN(12) {
				both(randomCall(random))
			}
			for _, command := range []string{"close f", "open r $F r", "read r 200", "read r 200", "stat r", "close r"} {
				both(command)
			}
		}
		here.kill()
		there.kill()
		b.expect("test \"$(od -c $D/f)\" = \"$(od -c "+local+"/f)\" && rm -f $D/f "+local+"/f", "")
	}
}

// randomCall is one call on the open file f.
func randomCall(random *rand.Rand) string {
	offset, length := random.IntN(40), random.IntN(20)
	data := "abcdefghijklmnopqrst"[:1+length]
	switch random.IntN(15) {
	case 0, 1, 2:
		return "write f " + data
	case 3, 4:
		return fmt.Sprintf("pwrite f %d %s", offset, data)
	case 5, 6:
		return fmt.Sprintf("read f %d", length)
	case 7:
		return fmt.Sprintf("pread f %d %d", offset, length)
	case 8:
		return fmt.Sprintf("truncate f %d", offset)
	case 9:
		return fmt.Sprintf("fallocate f 0 %d %d", offset, 1+length)
	case 10:
		return fmt.Sprintf("fallocate f %d %d %d", 1+2*random.IntN(2), offset, 1+length) // keep the size, punch a hole
	case 11:
		return "end f"
	case 12:
		return "fsync f"
	case 13:
		return "stat f"
	}
	return fmt.Sprintf("copy f %d f %d %d", offset, offset+length+random.IntN(9), length)
}

// TestLikeLocalNames makes, deletes and renames at random on the mount and on a local file system.
func TestLikeLocalNames(t *testing.T) {
	_, a, b := twoHosts(t)
	local := t.TempDir()
	paths := []string{"a", "b", "a/x", "a/y", "b/x", "a/x/p", "b/x/p", "c"}
	here, elsewhere, there := a.program(), b.program(), a.program()
	for seed := range uint64(sized(60, 2000)) {
		random := rand.New(rand.NewPCG(seed, 1))
		both := func(command string) string {
			t.Helper()
			p := []*program{here, elsewhere}[random.IntN(2)]
			p.tell("%s", strings.ReplaceAll(command, "$T", p.h.here))
			there.tell("%s", strings.ReplaceAll(command, "$T", local))
			got, want := p.hear(), there.hear()
			if got != want {
				t.Fatalf("seed %d: %s: %q, and on a local file system %q", seed, command, got, want)
			}
			return got
		}
		for range 30 {
			one, other := "$T/"+paths[random.IntN(len(paths))], "$T/"+paths[random.IntN(len(paths))]
			switch random.IntN(10) {
			case 0, 1:
				both("mkdir " + one + " 755")
			case 2:
				both("rmdir " + one)
			case 3:
				both("unlink " + one)
			case 4, 5:
				both("make " + one + []string{" c", " new", " w!"}[random.IntN(3)])
			case 6, 7, 8:
				if both("kind "+one) != "40000" { // directories are not renamed
					both("rename " + one + " " + other)
				}
			case 9:
				both("ls " + one)
			}
		}
		a.expect("cd $D; find | sort; rm -rf *", findAll(t, a, local))
	}
}

// findAll lists a local folder as find | sort does, and empties it.
func findAll(t *testing.T, h *host, dir string) string {
	t.Helper()
	out, code := h.script("cd $1; find | sort; rm -rf *", dir)
	if code != 0 {
		t.Fatal(out)
	}
	return out
}
