package fuse

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/internal/fusetest"
)

// TestAllocate is fallocate(2), which posix_fallocate(3) calls.
func TestAllocate(t *testing.T) {
	_, a, b := twoHosts(t)
	fallocate := func(mode, offset, length int) string {
		return fmt.Sprintf("fallocate f %d %d %d", mode, offset, length)
	}
	const keep, punch, zero = unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE
	const limit = 256 << 10
	p := a.program()
	for _, test := range []struct {
		call   string
		errno  string
		before string
		after  string
	}{
		{fallocate(0, 2, 5), "", "hello", "hello\x00\x00"},
		{fallocate(0, 0, 3), "", "hello", "hello"},
		{fallocate(0, limit-3, 4), "EFBIG", "hello", "hello"},
		{fallocate(keep, 0, 100), "", "hello", "hello"},
		{fallocate(keep, limit-3, 4), "EFBIG", "hello", "hello"},
		{fallocate(punch|keep, 1, 2), "", "hello", "h\x00\x00lo"},
		{fallocate(punch|keep, 3, 100), "", "hello", "hel\x00\x00"},
		{fallocate(punch|keep, 5, 1), "", "hello", "hello"},
		{fallocate(zero|keep, 3, 100), "", "hello", "hel\x00\x00"},
		{fallocate(zero, 3, 3), "", "hello", "hel\x00\x00\x00"},
		{fallocate(unix.FALLOC_FL_COLLAPSE_RANGE, 0, 1), "ENOTSUP", "hello", "hello"},
	} {
		b.writeFile("f", test.before)
		p.do("open f $D/f r+", "")
		p.do(test.call, test.errno)
		if got := b.readFile("f"); got != test.before {
			t.Errorf("%s: before the close others read %q", test.call, got)
		}
		p.tell("close f")
		p.hear() // a refused edit says so once more
		if got := b.readFile("f"); got != test.after {
			t.Errorf("%s: %q became %q, want %q", test.call, test.before, got, test.after)
		}
	}
	b.expect("rm $D/f; fallocate -l 100 $D/f; stat -c %s $D/f", "100\n")
	b.expect("fallocate -x -l 200 $D/f; stat -c %s $D/f; printf hello > $D/f; fallocate -p -o 1 -l 2 $D/f; od -An -c $D/f | tr -s ' '",
		"200\n h \\0 \\0 l o\n")
}

// TestAllocateBlindly makes room in a file that others write to meanwhile: nothing of theirs is lost
// by it, nor refused.
func TestAllocateBlindly(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "")
	p := a.program()
	p.do("open f $D/f w", "")
	p.do("fallocate f 0 0 8", "")
	p.do("stat f", "size 8")
	b.expect("printf hello >> $D/f", "")
	p.do("fsync f", "")
	b.expect("od -An -c $D/f | tr -s ' '", " h e l l o \\0 \\0 \\0\n")
	p.do("fallocate f 0 0 8", "")
	b.expect("printf 'hello, world' > $D/f", "")
	p.do("close f", "")
	b.expect("cat $D/f", "hello, world")
}

// TestSeekDataAndHole is how cp and tar find out what they need not copy.
func TestSeekDataAndHole(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "hello")
	p := a.program()
	p.do("open f $D/f r+", "")
	for _, test := range [][2]string{
		{"data f 0", "0"}, {"data f 4", "4"}, {"data f 5", "ENXIO"}, {"data f 9", "ENXIO"},
		{"hole f 0", "5"}, {"hole f 4", "5"}, {"hole f 5", "ENXIO"},
	} {
		p.do(test[0], test[1])
	}
	p.do("pwrite f 5 !", "") // what is not committed counts
	p.do("hole f 0", "6")
	p.do("close f", "")
	// What is read where data was found is of the same version.
	p.do("open f $D/f r", "")
	p.do("data f 1", "1")
	b.writeFile("f", "HELLO, WORLD")
	p.do("read f 3", "ell")
	p.do("hole f 1", "6")
	p.do("data f 0", "0")
	p.do("read f 99", "hello!")
	p.do("read f 99", "")
	p.do("hole f 0", "12")
	a.expect("cd $D; head -c 100000 /dev/zero > z; cp --sparse=always z y; cp --sparse=auto z x; tar cSf - z | tar xSf - -O | cmp - z; cmp x z; cmp y z", "")
}

// TestCopyFileRange is what cp and cat of newer coreutils copy with.
func TestCopyFileRange(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "hello, world")
	p := a.program()
	p.do("open f $D/f r", "")
	p.do("open g $D/g c", "")
	p.do("copy f 0 g 0 5", "5")
	p.do("copy f 5 g 5 99", "7")
	p.do("copy f 12 g 12 99", "0")
	p.do("pread g 0 99", "hello, world")
	b.expect("cat $D/g", "")
	p.do("close g", "")
	b.expect("cat $D/g", "hello, world")
	// A copy in several steps is of one version.
	p.do("open g $D/g w+", "")
	p.do("copy f 0 g 0 5", "5")
	b.writeFile("f", "HELLO, WORLD")
	p.do("copy f 5 g 5 99", "7")
	p.do("close g", "")
	b.expect("cat $D/g", "hello, world")
	// Within a file, with what was written and not committed; and onto what was read only.
	p.do("open g $D/g r+", "")
	p.do("pwrite g 0 J", "")
	p.do("copy g 0 g 14 5", "5")
	p.do("pread g 0 99", "Jello, world\x00\x00Jello")
	b.writeFile("g", "others")
	p.do("fsync g", "ESTALE")
	p.do("copy g 0 g 20 5", "ESTALE")
	p.do("close g", "ESTALE")
	p.do("open s $D/g sync", "")
	p.do("copy f 0 s 0 5", "5")
	if got := c.content("/ls/ny1/d/g"); got != "HELLOs" {
		t.Errorf("a synchronous copy left %q", got)
	}
	p.do("open g $D/g w", "")
	p.do("fallocate g 0 0 262144", "")
	p.do("copy f 0 g 262140 5", "EFBIG")
	p.do("sendfile f s 99", "12")
	p.do("close s", "")
	b.expect("cat $D/g", "HELLO, WORLD")
	p.do("open s $D/g sync", "")
	p.do("sendfile f s 99", "0") // f has been read to its end

	a.expect("cd $D; cp --reflink=auto f h; cat f h > i; head -c 262144 /dev/urandom > j; cp j k; cmp j k; cat h i", strings.Repeat("HELLO, WORLD", 3))
	a.expect("cd $D; cp j /tmp/lockfs-copy && cp /tmp/lockfs-copy l && cmp j l; rm /tmp/lockfs-copy", "")
}

// TestLimitsOfTheCell is of a cell that has others than new ones get: what is too large is refused
// by write, not by close, and df shows what fits.
func TestLimitsOfTheCell(t *testing.T) {
	fusetest.Need(t)
	a := newLimitedCell(t, lockfs.DefaultLease, lockfs.Limits{FileBytes: 600 << 10, Nodes: 77, Bytes: 40 << 20, Children: 9}).mount("a", Config{})
	a.expect("cd $D; df --output=itotal . | tail -1 | tr -d ' '; df --output=size -B1M . | tail -1 | tr -d ' '", "77\n40\n")
	a.expect("cd $D; head -c 614400 /dev/zero > f; stat -c %s f", "614400\n")
	p := a.program()
	p.do("open f $D/f a", "")
	p.do("write f x", "EFBIG")
	p.do("truncate f 614401", "EFBIG")
	p.do("fallocate f 0 0 614401", "EFBIG")
	a.fails("cd $D; truncate -s 614401 f", 1)
	a.fails("cd $D; touch 1 2 3 4 5 6 7 8 9", 1)
}
