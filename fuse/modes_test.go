package fuse

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"lockfs/internal/fusetest"
)

// TestChmodT makes nodes ephemeral by chmod +t: they end with the session of the mount where that
// was said, and ls -l shows it.
func TestChmodT(t *testing.T) {
	fusetest.Need(t)
	c, a, b := hostsOf(newTestCell(t, shortLease))
	shows := func(h *host, name, mode string) {
		t.Helper()
		h.expect("stat -c %A $D/"+name, mode+"\n")
	}
	a.expect("cd $D; echo x > f; chmod +t f", "")
	shows(b, "f", "-rw-r--r-T")
	if st, session := c.stat(f), a.fs.allTenancies()[0].ID(); st.OwnerSession != session {
		t.Errorf("it belongs to session %d, not to %d", st.OwnerSession, session)
	}
	b.expect("cd $D; chmod +t f; chmod 1644 f; echo y > f; sed -i s/y/z/ f", "") // which it is already
	a.expect("cat $D/f; stat -c %a $D/f", "z\n1644\n")
	a.expect("chmod -t $D/f; stat -c %a $D/f", "644\n")
	b.expect("chmod +t $D/f; mv $D/f $D/g", "")
	shows(a, "g", "-rw-r--r-T")

	// What is made in an ephemeral directory is ephemeral, or it would be there for ever.
	a.expect("cd $D; mkdir e; touch e/f", "")
	a.fails("chmod +t $D/e", 1)
	a.expect("cd $D; rm e/f; chmod +t e; touch e/f; mkdir e/e; echo x > e/e/f; touch t; cp -a t e/; install -m 644 t e/i; rm t", "")
	for _, name := range []string{"e/f", "e/e/f", "e/t", "e/i"} {
		shows(b, name, "-rw-r--r-T")
	}
	shows(b, "e", "drwxr-xr-t")
	a.fails("chmod -t $D/e/f", 1)
	b.expect("touch $D/e/e/b; stat -c %a $D/e/e/b", "1644\n")
	p := a.program()
	p.do("open m $D/m new 1644", "")
	p.do("mkdir $D/n 1755", "")
	shows(b, "m", "-rw-r--r-T")
	shows(b, "n", "drwxr-xr-t")
	a.expect("touch $D/kept", "")

	c.expire(a)
	until(t, "A's nodes are gone", func() bool {
		out, _ := b.script("cd $D; echo *; ls e e/e")
		return out == "e g kept\ne:\ne\n\ne/e:\nb\n"
	})
	c.expire(b)
	until(t, "B's nodes are gone", func() bool { out, _ := a.script("cd $D; echo *"); return out == "kept\n" })
}

// TestChmodTEndsWithTheMount is the same where the mount is ended in order.
func TestChmodTEndsWithTheMount(t *testing.T) {
	_, a, b := twoHosts(t)
	a.expect("cd $D; mkdir members; touch members/a kept; chmod +t members/a", "")
	b.expect("ls $D/members", "a\n")
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	until(t, "the node is gone", func() bool { out, _ := b.script("cd $D; ls members; ls"); return out == "kept\nmembers\n" })
}

// TestModes is what the rules of design section 9 make of chmod and chown: what is so already is
// accepted, what would change is not, and what a program says of a node that it has just made is
// accepted and forgotten, as the mode of open(2) is.
func TestModes(t *testing.T) {
	_, a, _ := twoHosts(t)
	a.expect("cd $D; touch f; mkdir d", "")
	for _, test := range []struct {
		script string
		code   int
	}{
		{"chmod 644 f", 0},
		{"chmod 755 d", 0},
		{"chown 0:0 f d", 0},
		{"chmod 600 f", 1},
		{"chmod +x f", 1},
		{"chmod u+s f", 1},
		{"chmod 777 d", 1},
		{"chown 1000 f", 1},
		{"chgrp 1000 d", 1},
		{"chmod 755 " + a.dir + " " + a.dir + "/ny1", 0},
		{"chmod +t " + a.dir + "/ny1", 1},
		{"chmod 700 " + a.dir, 1},
		{"install -m 600 f g", 0},
		{"install -m 755 -o 1000 f g", 0},
		{"install -d -m 700 -o 1000 i", 0},
		{"mkdir -m 700 m", 0},
		{"umask 077; echo secret > s", 0},
	} {
		if out, code := a.script("cd $D; " + test.script); code != test.code {
			t.Errorf("%s: exit code %d, want %d: %s", test.script, code, test.code, out)
		}
	}
	a.expect("cd $D; stat -c '%n %a %u' *; find . -type f -perm 644 -user 0 | wc -l", "d 755 0\nf 644 0\ng 644 0\ni 755 0\nm 755 0\ns 644 0\n3\n")

	p, q := a.program(), a.program()
	p.do("open n $D/n new", "")
	p.do("fchmod n 600", "")
	p.do("fchown n 1000 1000", "")
	q.do("chmod $D/n 600", "EPERM")
	p.do("rename $D/n $D/o", "")
	p.do("chmod $D/o 600", "") // still what it has made
	q.do("chmod $D/o 600", "EPERM")
	p.do("chmod $D/f 600", "EPERM")
	p.do("open f $D/f c", "")
	p.do("fchmod f 600", "EPERM") // it was there
	p.do("open f $D/f w!", "")
	p.do("fchmod f 600", "") // and is written anew
	q.do("chmod $D/f 600", "EPERM")
}

// TestCopies is L066 and what issue 3 asks of copying tools: whatever modes and owners their
// sources have, they end well, and again when they copy to what is there. That directories which
// are there cannot be given other modes is said.
func TestCopies(t *testing.T) {
	_, a, b := twoHosts(t)
	src := t.TempDir()
	if out, code := a.script("cd $1; echo 1 > a; echo 2 > b; mkdir -p s/t; echo 3 > s/t/c; chmod 600 a; chmod 755 b; chown 1000:1000 . b s/t/c; find . -exec touch -d 2001-01-01 {} +", src); code != 0 {
		t.Fatal(out)
	}
	for _, test := range []struct {
		tool, script string
	}{
		{"cp", "cp -a $1/* $D/x"},
		{"cp", "cp -p $1/a $D/x/p; cp --preserve=all $1/b $D/x/p"},
		{"install", "install $1/a $D/x/i; install -m 600 $1/b $D/x/i"},
		{"tar", "tar cf - -C $1 a b s | tar xpf - -C $D/x"},
		{"rsync", "rsync -a $1/a $1/b $1/s $D/x/"},
		{"rsync", "rsync -aH --delete $1/s $D/x/"},
		{"python3", "python3 -c 'import shutil,sys; shutil.copy2(sys.argv[1]+\"/a\", sys.argv[2])' $1 $D/x/py"},
	} {
		t.Run(test.script, func(t *testing.T) {
			if _, err := exec.LookPath(test.tool); err != nil {
				t.Skipf("%v; cp, install and tar make the same system calls", err)
			}
			a.expect("rm -rf $D/x; mkdir $D/x", "")
			for _, when := range []string{"once", "again"} {
				if out, code := a.script(test.script, src); code != 0 {
					t.Errorf("%s: exit code %d: %s", when, code, out)
				}
			}
		})
	}
	a.expect("rm -rf $D/x; mkdir $D/x", "")
	if out, code := a.script("cp -a $1/. $D/x; cp -a $1/. $D/x", src); code != 1 || !strings.Contains(out, "not permitted") {
		t.Errorf("a directory of another owner, again: exit code %d: %s", code, out)
	}
	b.expect("cat $D/x/a $D/x/b $D/x/s/t/c; find $D/x -type f | wc -l", "1\n2\n3\n3\n")
}

// TestTouch: the generation moves, contents and times of others do not matter, and who touches what
// they have read or are writing does not get in their own way.
func TestTouch(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "hello")
	generation := c.stat(f).ContentGeneration
	moved := func(what string, by uint64) {
		t.Helper()
		generation += by
		if now := c.stat(f).ContentGeneration; now != generation {
			t.Errorf("%s: generation %d, want %d", what, now, generation)
			generation = now
		}
	}
	b.expect("touch $D/f; cat $D/f", "hello")
	moved("touch", 1)
	b.expect("touch -c $D/f; touch -m $D/f", "")
	moved("touch -c, touch -m", 2)
	b.expect("touch -d 2001-01-01 $D/f; touch -a $D/f; touch -r /etc/passwd $D/f; touch $D", "")
	moved("times that are not kept", 0)
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("pread f 0 9", "hello")
	p.do("touch f", "")
	moved("touch of what was read", 1)
	p.do("pwrite f 0 J", "")
	p.do("touch f", "")
	moved("touch of what was written and not committed", 0)
	p.do("close f", "")
	moved("close", 1)
	b.expect("cat $D/f", "Jello")
	p.do("open f $D/f r+", "")
	p.do("pread f 0 9", "Jello")
	b.expect("echo new > $D/f", "")
	p.do("touch f", "")
	p.do("pwrite f 0 H", "ESTALE") // onto what it has not seen
	p.do("close f", "")
	b.expect("cat $D/f", "new\n")
}

// TestL003LockedDirectory is a program, not flock(1), that locks a directory: that cannot be kept
// from it, but it is told of. Flock(1) is refused by name.
func TestL003LockedDirectory(t *testing.T) {
	_, a, b := twoHosts(t)
	for _, h := range []*host{a, b} {
		out, code := h.script("flock -n $D true")
		if code == 0 || code == 1 || !strings.Contains(out, "directory") {
			t.Errorf("flock of a directory: exit code %d, %q", code, out)
		}
	}
	seen := func(n int) func() bool {
		return func() bool {
			p := a.program()
			defer p.kill()
			p.tell("getxattr %s user.lockfs.local_locks", a.dir)
			return p.hear() == fmt.Sprint(n)
		}
	}
	p, q := a.program(), a.program()
	p.do("open d $D dir", "")
	p.do("flock d ex nb", "")
	until(t, "the lock is counted", seen(1))
	line := a.log.String()
	line = line[strings.Index(line, "has locked a directory"):]
	for _, part := range []string{"directory=/ls/ny1/d", "kind=FLOCK", fmt.Sprintf("pid=%d", p.cmd.Process.Pid), "count=1"} {
		if !strings.Contains(line, part) {
			t.Errorf("it said %q, without %q", line, part)
		}
	}
	q.do("open r "+a.dir+"/ny1 dir", "")
	q.do("ofd r sh nb", "")
	until(t, "the second is counted", seen(2))
	if !strings.Contains(a.log.String(), "directory=/ls/ny1 kind=OFDLCK") {
		t.Errorf("it said %q", a.log)
	}
	p.do("flock d un", "")
	q.do("flock r sh", "")
	q.do("open f $D/f c", "")
	q.do("flock f ex", "")
	until(t, "a third is, and no lock of a file", seen(3))
	p.do("flock d ex nb", "") // again
	until(t, "the fourth is counted", seen(4))
	p.do("getxattr $D user.lockfs.local_locks", "ENODATA")
	p.tell("listxattr %s", a.dir)
	if got := p.hear(); got != "user.lockfs.local_locks " {
		t.Errorf("attributes of the mount: %q", got)
	}
	syscall.Kill(p.cmd.Process.Pid, syscall.SIGKILL)
	syscall.Kill(q.cmd.Process.Pid, syscall.SIGKILL)
	b.expect("ls -A $D", "f\n")
	until(t, "nobody looks any more", func() bool {
		a.fs.localLocks.mu.Lock()
		defer a.fs.localLocks.mu.Unlock()
		return !a.fs.localLocks.mu.looking
	})
}

func TestLocalLocksOf(t *testing.T) {
	const text = `1: FLOCK  ADVISORY  WRITE 2517 00:2d:281474976710660 0 EOF
1: -> FLOCK  ADVISORY  WRITE 2518 00:2d:281474976710660 0 EOF
2: POSIX  ADVISORY  READ  77 fe:00:17 0 EOF
3: OFDLCK ADVISORY  READ  -1 00:2d:9 0 EOF
4: FLOCK  ADVISORY  WRITE 5 100:2d:1 0 EOF
`
	got := localLocksOf(text, "0:45")
	want := map[localLock]bool{{"FLOCK", 2517, 281474976710660}: true, {"OFDLCK", 0, 9}: true}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := localLocksOf(text, "254:0"); len(got) != 1 || !got[localLock{"POSIX", 77, 17}] {
		t.Errorf("%v", got)
	}
}
