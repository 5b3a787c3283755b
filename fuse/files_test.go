package fuse

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWriteHereReadThere(t *testing.T) {
	c, a, b := twoHosts(t)
	a.expect("echo one > $D/f", "")
	b.expect("cat $D/f", "one\n")
	b.expect("echo two >> $D/f; cat $D/f", "one\ntwo\n")
	a.expect("cat $D/f; stat -c %s $D/f", "one\ntwo\n8\n")
	a.expect("printf long-text > $D/f; printf x > $D/f; cat $D/f", "x")
	a.expect("truncate -s 3 $D/f; od -An -c $D/f | tr -s ' '", " x \\0 \\0\n")
	if content := c.content("/ls/ny1/d/f"); content != "x\x00\x00" {
		t.Errorf("the cell has %q", content)
	}
}

// TestL050ReadersSeeWholeFiles: writers replace a file by redirection, and readers
// never see it empty or torn.
func TestL050ReadersSeeWholeFiles(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "0000 0000\n")
	writer := a.start(`for i in $(seq -w 1 300); do echo 0$i 0$i > $D/f; done`)
	reads := 0
	for ended := false; !ended; reads++ {
		select {
		case <-writer.done:
			ended = true
		default:
		}
		for _, h := range []*host{a, b} {
			content := h.readFile("f")
			var x, y string
			if n, _ := fmt.Sscanf(content, "%4s %4s\n", &x, &y); n != 2 || x != y {
				t.Fatalf("read %d: %q", reads, content)
			}
		}
	}
	if code := writer.wait(time.Second); code != 0 {
		t.Errorf("writer: exit code %d: %s", code, writer.out)
	}
	b.expect("cat $D/f", "0300 0300\n")
	if reads < 10 {
		t.Errorf("only %d reads", reads)
	}
}

// TestL020FlushIsNotTheClose: a close of a copy of the descriptor, as shells and flock(1) make many,
// publishes nothing that is not written and unlocks nothing.
func TestL020FlushIsNotTheClose(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "0\n")
	writer := a.start("for i in $(seq 500); do echo $i > $D/f; done")
	for last, ended := 0, false; !ended; {
		select {
		case <-writer.done:
			ended = true
		default:
		}
		n := -1
		content := b.readFile("f")
		if fmt.Sscanf(content, "%d\n", &n); n < last || ended && n != 500 {
			t.Fatalf("read %q after %d", content, last)
		}
		last = n
	}
	b.fails("flock $D/f sh -c 'true; flock -n $D/f true'", 1)
	a.start("exec 9< $D/f; flock 9; true; (true); echo locked; read -r _ < <(sleep 1000)")
	until(t, "A has the lock", func() bool { _, code := b.script("flock -n $D/f true"); return code == 1 })
	a.expect("true; /bin/true; exec 8< $D/f; exec 8<&-", "")
	b.fails("flock -n $D/f true", 1)
}

// TestL056NothingWritten: what was cut and not written shows on this host when close returned.
func TestL056NothingWritten(t *testing.T) {
	c, a, b := twoHosts(t)
	a.expect("for i in $(seq 300); do echo x > $D/f; : > $D/f; test ! -s $D/f || echo BAD; done", "")
	a.expect("for i in $(seq 100); do echo x > $D/f; cp /dev/null $D/f; test ! -s $D/f || echo BAD; done", "")
	b.expect("test ! -s $D/f && echo empty", "empty\n")
	p := a.program()
	for range 100 {
		a.writeFile("f", "x")
		p.do("open f $D/f w!", "")
		p.do("close f", "")
		if content := a.readFile("f"); content != "" {
			t.Fatalf("after close the file holds %q", content)
		}
	}
	// A copy of the descriptor that is closed is not the file's end.
	a.writeFile("f", "kept")
	shell := a.start("exec 9> $D/f; echo opened; read -r _ < <(sleep 1000)")
	until(t, "the shell opens", func() bool { return strings.Contains(shell.out.String(), "opened") })
	a.expect("cat $D/f", "kept")
	if content := c.content("/ls/ny1/d/f"); content != "kept" {
		t.Errorf("the cell has %q", content)
	}
}

// TestCutIsNotLate cuts files by an open, and nothing else. When the close returns that is done: what
// anybody writes after it stays.
func TestCutIsNotLate(t *testing.T) {
	_, a, b := twoHosts(t)
	p, q := a.program(), b.program()
	for range 50 {
		a.writeFile("f", "old")
		p.do("open append $D/f a", "")
		p.do("open read $D/f r", "")
		p.do("make $D/f w!", "")
		p.do("pread read 0 9", "")
		p.do("write append kept", "")
		p.do("fsync append", "")
		p.do("close append", "")
		p.do("close read", "")
		q.do("open f $D/f r", "")
		q.do("pread f 0 9", "kept")
		q.do("close f", "")
	}
	for range 50 {
		a.writeFile("f", "old")
		p.do("make $D/f w!", "")
		q.do("open f $D/f a", "")
		q.do("write f kept", "")
		q.do("close f", "")
		a.expect("cat $D/f", "kept")
	}
	// A rename comes between the open, which cuts, and the close.
	a.writeFile("from", "new")
	p.do("open f $D/f w!", "")
	p.do("rename $D/from $D/f", "")
	p.do("close f", "")
	b.expect("cat $D/f", "new")
	p.do("open f $D/f w!", "")
	p.do("rename $D/f $D/to", "")
	p.do("close f", "")
	b.expect("cat $D/to", "")
}

// TestSignalsAtAChange interrupts a process all the time, by handlers after which calls go on, while
// the cell cannot be reached for a moment. What is said to be done is done, EINTR says that it is not,
// and fsync cannot be interrupted.
func TestSignalsAtAChange(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "old")
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("pwrite f 0 new", "")
	for _, change := range []struct{ command, done string }{
		{"fsync f", "test $(cat $D/f) = new"},
		{"mkdir $D/made 755", "test -d $D/made"},
		{"rename $D/f $D/g", "test -e $D/g"},
		{"rmdir $D/made", "test ! -e $D/made"},
	} {
		back := c.leave(a)
		p.tell("%s", change.command)
		for began := time.Now(); time.Since(began) < 300*time.Millisecond; <-time.After(20 * time.Millisecond) {
			p.signalThreads(syscall.SIGURG)
		}
		back()
		got := p.hear()
		if got != "" && (got != "EINTR" || change.command == "fsync f") {
			t.Errorf("%s: %s", change.command, got)
		}
		if got == "EINTR" {
			b.fails(change.done+" 2> /dev/null", 1)
			p.do(change.command, "")
		}
		if out, code := b.script(change.done); code != 0 {
			t.Errorf("%s: not done: %s", change.command, out)
		}
	}
}

// TestLockFileKeepsItsContents is trap 2: exec 9>file is how scripts open a lock file.
func TestLockFileKeepsItsContents(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "kept\n")
	a.expect("exec 9> $D/f; flock 9; cat $D/f", "kept\n")
	b.expect("cat $D/f", "kept\n")
	holder := a.start("exec 8<> $D/f; flock 8; echo held; exec sleep 1000")
	until(t, "the lock is held", func() bool { return strings.Contains(holder.out.String(), "held") })
	b.fails("exec 9> $D/f; flock -n 9 || exit 5", 5)
	b.expect("cat $D/f", "kept\n")
	holder.Process.Kill()
	a.expect("exec 9> $D/f; flock 9; echo new >&9; exec 9>&-; cat $D/f", "new\n")
}

func TestL055EditOntoWhatWasRead(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "hello")
	// L055: B's version is not wiped by one who has not seen it.
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("pread f 0 9", "hello")
	p.do("pwrite f 0 J", "")
	b.writeFile("f", "new")
	p.do("fsync f", "ESTALE")
	p.do("pread f 0 9", "ESTALE")
	p.do("close f", "ESTALE")
	a.expect("cat $D/f", "new")
	// What is known by the write fails there, and is lost to nobody.
	p.do("open f $D/f r+", "")
	p.do("pread f 0 9", "new")
	b.writeFile("f", "next")
	p.do("pwrite f 0 J", "ESTALE")
	p.do("pread f 0 9", "next")
	p.do("pwrite f 0 N", "")
	p.do("close f", "")
	b.expect("cat $D/f", "Next")
	// So a shell, which does not look at what its close says, sees it too.
	a.expect(`exec 9<>$D/f; flock 9; cat <&9; echo by name > $D/f; echo by 9 2>/dev/null >&9 || echo no; cat $D/f`, "Nextno\nby name\n")
	// Nothing was read, or it was read anew.
	p.do("open f $D/f r+", "")
	b.writeFile("f", "old")
	p.do("pwrite f 0 g", "")
	p.do("fsync f", "")
	b.expect("cat $D/f", "gld")
	p.do("pread f 0 9", "gld")
	b.writeFile("f", "cold")
	p.do("pread f 0 9", "cold")
	p.do("pwrite f 0 b", "")
	p.do("pread f 0 9", "bold")
	b.expect("cat $D/f", "cold")
	p.do("close f", "")
	b.expect("cat $D/f", "bold")
}

func TestAppends(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("log", "")
	var writers []*running
	for i, h := range []*host{a, b, a, b} {
		writers = append(writers, h.start(`for i in $(seq 50); do echo $1-$i >> $D/log; done`, fmt.Sprint(i)))
	}
	for _, w := range writers {
		if code := w.wait(60 * time.Second); code != 0 {
			t.Errorf("exit code %d: %s", code, w.out)
		}
	}
	a.expect("wc -l < $D/log; sort -u $D/log | wc -l", "200\n200\n")
	// An append goes to the end whatever the kernel believes of it.
	p := a.program()
	a.writeFile("f", "hello ")
	p.do("open f $D/f a", "")
	p.do("write f app1", "")
	a.expect("stat -c %s $D/f", "6\n")
	p.do("write f app2", "")
	p.do("end f", "14")
	p.do("close f", "")
	b.expect("cat $D/f", "hello app1app2")
}

func TestReadYourOwnEdits(t *testing.T) {
	_, a, b := twoHosts(t)
	p := a.program()
	p.do("open f $D/f w+", "")
	p.do("write f hello", "")
	p.do("pread f 0 9", "hello")
	p.do("truncate f 4", "")
	p.do("pwrite f 0 HE", "")
	p.do("pread f 0 9", "HEll")
	p.do("stat f", "size 4")
	a.expect("stat -c %s $D/f", "0\n")
	b.expect("cat $D/f", "")
	p.do("fsync f", "")
	b.expect("cat $D/f", "HEll")
	p.do("open s $D/f sync", "")
	p.do("pwrite s 2 LO", "")
	b.expect("cat $D/f", "HELO")
	p.do("pread f 0 9", "HELO")
}

func TestAPassOverAFile(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "first version")
	p := b.program()
	p.do("open f $D/f r", "")
	p.do("read f 6", "first ")
	a.writeFile("f", "SECOND VERSION, LONGER")
	p.do("read f 99", "version")
	p.do("read f 99", "")
	p.do("read f 99", "ION, LONGER"[2:])
	p.do("pread f 0 6", "SECOND")
}

// TestWriteUnderALock is trap 37: who gets the lock sees what was written under it, and a program
// that keeps its descriptor need not do more than write.
func TestWriteUnderALock(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "0")
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("flock f ex", "")
	p.do("pwrite f 0 1", "")
	b.expect("cat $D/f", "0")
	p.do("flock f un", "")
	b.expect("cat $D/f", "1")

	p.do("fcntl f ex", "")
	p.do("pwrite f 0 2", "")
	p.do("fcntl f sh", "") // a downgrade lets others in
	b.expect("cat $D/f", "2")
	p.do("fcntl f ex", "")
	p.do("pwrite f 0 3", "")
	until(t, "the write is committed, although nothing follows it", func() bool { return b.readFile("f") == "3" })
}

func TestTooLargeAtWrite(t *testing.T) {
	_, a, _ := twoHosts(t)
	a.expect("head -c 262144 /dev/zero > $D/f; stat -c %s $D/f", "262144\n")
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("fill f 1 262144", "EFBIG")
	p.do("fill f 262144 1", "EFBIG")
	p.do("truncate f 262145", "EFBIG")
	p.do("open a $D/f a", "")
	p.do("fill a 0 1", "EFBIG")
	a.expect(": > $D/f", "")
	p.do("fill a 0 1", "1") // others have made room
	p.do("close a", "")
	a.expect("stat -c %s $D/f", "1\n")
	// It is refused whole, in one write or many, and what was there stays.
	a.expect("echo kept > $D/f; head -c 262145 /dev/zero | cat 2>&1 > $D/f; cat $D/f", "cat: write error: File too large\nkept\n")
	a.expect("dd if=/dev/zero of=$D/f bs=262145 count=1 status=none 2>/dev/null; cat $D/f", "kept\n")
	a.expect("head -c 262144 /dev/zero | cat 2>&1 >> $D/f; cat $D/f", "cat: write error: File too large\nkept\n")
}

// TestL064Editors: tools that write a file anew, in place or beside it, and move it over.
func TestL064Editors(t *testing.T) {
	_, a, b := twoHosts(t)
	const text = "a b\n"
	for _, test := range []struct {
		tool, script, want string
	}{
		{"sed", "sed -i s/a/x/ f", "x b\n"},
		{"sed", "sed -i s/a/x/ f; sed -i s/x/y/ f", "y b\n"},
		{"mv", "echo new > t; mv t f", "new\n"},
		{"mv", "mv f g; test ! -e f; mv g f", text},
		{"install", "echo new > /tmp/lockfs-install; install -m 644 /tmp/lockfs-install f; rm /tmp/lockfs-install", "new\n"},
		{"vim", "vim -u NONE -es -c %s/b/c/ -c wq f", "a c\n"},
		{"vim", "vim -u NONE -es -c 'set backup backupcopy=no backupskip=' -c %s/b/c/ -c wq f; rm f~", "a c\n"},
		{"perl", "perl -pi -e s/a/x/ f", "x b\n"},
		{"python3", "python3 -c 'import os; open(\"t\", \"w\").write(\"new\\n\"); os.replace(\"t\", \"f\")'", "new\n"},
		{"dd", "echo X | dd of=f bs=1 count=1 conv=notrunc status=none", "X b\n"},
		{"tee", "tee f < /etc/hostname > /dev/null; echo c | tee f > /dev/null", "c\n"},
		{"truncate", "truncate -s 1 f; echo >> f", "a\n"},
	} {
		t.Run(test.script, func(t *testing.T) {
			if _, err := exec.LookPath(test.tool); err != nil {
				t.Skipf("%v; the others make the same system calls", err)
			}
			a.writeFile("f", text)
			before, _ := b.script("stat -c %i $D/f")
			if out, code := a.script("cd $D && " + test.script); code != 0 {
				t.Errorf("exit code %d: %s", code, out)
			}
			b.expect("cat $D/f; ls -A $D", test.want+"f\n")
			if after, _ := b.script("stat -c %i $D/f"); test.tool == "sed" && after != before {
				t.Errorf("inode %s became %s: a lock of the file would be lost", before, after)
			}
		})
	}
	// A step that fails leaves the original.
	a.writeFile("f", text)
	a.fails("mkdir $D/dir; mv $D/dir $D/f", 1)
	a.fails("cd $D; head -c 300000 /dev/zero > /tmp/lockfs-large; install /tmp/lockfs-large t && mv t f", 1)
	a.fails("cd $D; cp /tmp/lockfs-large f; code=$?; rm /tmp/lockfs-large t; exit $code", 1)
	b.expect("cat $D/f; ls -A $D", text+"dir\nf\n")
}

// TestL066Attributes: tools that keep times, modes and attributes end well, and an attribute that is
// not there hides none that is.
func TestL066Attributes(t *testing.T) {
	c, a, b := twoHosts(t)
	a.expect("cd $D; echo 1 > x; cp -a x y; cp -p x z; install -m 644 x w; tee v < x; dd if=x of=u status=none; tar cf - x | tar xf - -C /; rm /x; cat y z w v u; rm ?", strings.Repeat("1\n", 6))
	a.expect("cd $D; mkdir -p s/t; echo 2 > s/t/f; tar cf - s | (mkdir r; tar xf - -C r); cat r/s/t/f; cp -a s s2; cat s2/t/f; mv s s3; cat s3/t/f; rm -r s2 s3 r; ls", "2\n2\n2\n")
	a.expect("cd $D; mktemp tXXXXXX > /dev/null; touch n; touch -d '2001-01-01' n; chmod 644 n; chown root:root n; rm *", "")
	a.fails("cd $D; touch n; chmod 600 n", 1)
	b.fails("chown 1000 $D/n", 1)
	a.expect("cat < $D/n; test -r $D/n && test -w $D/n && test ! -x $D/n; rm $D/n", "")

	a.writeFile("f", "x")
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("flock f ex", "")
	p.do("getxattr $D/f user.x", "ENODATA")
	p.do("setxattr $D/f user.x 1", "ENOTSUP")
	p.do("getxattr $D/f security.selinux", "ENODATA")
	p.do("getxattr $D/f user.lockfs.sequencer", fmt.Sprintf("/ls/ny1/d/f:EXCLUSIVE:%d", c.stat(f).LockGeneration))
	// From memory: while the cell does not answer too.
	back := c.leave(a)
	p.do("getxattr "+a.dir+"/ny1 user.x", "ENODATA")
	p.do("setxattr "+a.dir+"/ny1 user.x 1", "ENOTSUP")
	back()
	p.do("close f", "")
}

// TestL061DirectoryInUse: what has children stays, whoever made them, and wherever.
func TestL061DirectoryInUse(t *testing.T) {
	_, a, b := twoHosts(t)
	for _, child := range []string{"touch $D/x/f", "mkdir $D/x/f", "touch $D/x/f; chmod +t $D/x/f"} {
		a.expect("mkdir $D/x", "")
		b.expect(child, "")
		if out, code := a.script("rmdir $D/x"); code != 1 || !strings.Contains(out, "not empty") {
			t.Errorf("%s; rmdir: exit code %d: %s", child, code, out)
		}
		b.fails("mkdir $D/x", 1)
		a.expect("ls $D/x; rm -r $D/x", "f\n")
	}
}

// TestL063Kinds: what does not exist here fails with EPERM, and leaves nothing behind.
func TestL063Kinds(t *testing.T) {
	_, a, b := twoHosts(t)
	a.expect("mkdir $D/x; touch $D/x/f", "")
	for _, script := range []string{"ln f g", "ln -s x s", "mkfifo p", "mknod c c 1 3", "mknod b b 1 3", "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'"} {
		if out, code := a.script("cd $D/x; " + script); code != 1 || !strings.Contains(out, "not permitted") {
			t.Errorf("%s: exit code %d: %s", script, code, out)
		}
	}
	p := a.program()
	p.do("open t $D/x tmpfile", "EPERM")
	b.expect("ls -A $D/x", "f\n")
}

// TestNames is the rules of rename, and what is not a name or not to be changed.
func TestNames(t *testing.T) {
	_, a, b := twoHosts(t)
	p := a.program()
	a.expect("mkdir $D/x; touch $D/x/f", "")
	p.do("renameat2 $D/x $D/y 0", "EXDEV")
	a.expect("echo f > $D/f; echo g > $D/g", "")
	p.do("renameat2 $D/f $D/g 1", "EEXIST")
	p.do("renameat2 $D/f $D/g 2", "EINVAL")
	p.do("renameat2 $D/f $D/h 1", "")
	b.expect("cat $D/g $D/h; test -e $D/f || echo gone", "g\nf\ngone\n")
	a.fails("mkdir "+a.dir+"/new", 1)
	a.fails("touch "+a.dir+"/new", 1)
	a.fails("rmdir "+a.dir+"/ny1", 1)
	a.fails("rm "+a.dir+"/local", 1)
	a.fails("mv "+a.dir+"/ny1 "+a.dir+"/ny2", 1)
	if out, code := a.script(`touch "$D/"$'a\tb'`); code == 0 || !strings.Contains(out, "Invalid argument") {
		t.Errorf("a tab in a name: exit code %d: %s", code, out)
	}
	if out, code := a.script(`touch "$D/$(printf 'x%.0s' $(seq 256))"`); code == 0 || !strings.Contains(out, "too long") {
		t.Errorf("a long name: exit code %d: %s", code, out)
	}
	a.expect("rm -r $D/*; ls -A $D", "")
}

// TestL057CreateRaces: one winner for exclusive creation, and no EEXIST without it.
func TestL057CreateRaces(t *testing.T) {
	_, a, b := twoHosts(t)
	for round := range 5 {
		var exclusive, plain []*running
		for _, h := range []*host{a, b, a, b} {
			exclusive = append(exclusive, h.start("set -C; echo $$ > $D/dotlock-$1 2> /dev/null", fmt.Sprint(round)))
			plain = append(plain, h.start("for i in $(seq 10); do touch $D/n-$1 & pids+=($!); done; for p in ${pids[@]}; do wait $p || exit 1; done", fmt.Sprint(round)))
		}
		won := 0
		for i := range exclusive {
			if exclusive[i].wait(20*time.Second) == 0 {
				won++
			}
			if code := plain[i].wait(20 * time.Second); code != 0 {
				t.Errorf("touch: exit code %d: %s", code, plain[i].out)
			}
		}
		if won != 1 {
			t.Errorf("%d of 4 created the file exclusively", won)
		}
	}
}

// TestL059Gone is L045 too: a node that is gone is ESTALE to who has it open, and its name is
// another's.
func TestL059Gone(t *testing.T) {
	_, a, b := twoHosts(t)
	a.writeFile("f", "one")
	p := a.program()
	p.do("open f $D/f r+", "")
	p.do("pread f 0 9", "one")
	before, _ := a.script("stat -c %i $D/f")
	b.expect("rm $D/f; echo two > $D/f", "")
	p.do("pread f 0 9", "ESTALE")
	p.do("stat f", "ESTALE")
	p.do("flock f ex nb", "ESTALE")
	p.do("pwrite f 0 x", "ESTALE")
	p.do("fsync f", "ESTALE")
	// Who holds its lock, and has nothing to write, is told as well.
	a.writeFile("held", "")
	p.do("open h $D/held r+", "")
	p.do("flock h ex nb", "")
	p.do("fsync h", "")
	b.expect("rm $D/held", "")
	p.do("fsync h", "ESTALE")
	p.do("open g $D/f r", "")
	p.do("pread g 0 9", "two\n")
	if after, _ := a.script("stat -c %i $D/f"); after == before {
		t.Errorf("the new file has the old one's inode number %s", after)
	}
	reader := b.start("for i in $(seq 200); do cat $D/f > /dev/null || exit 1; done")
	a.expect("for i in $(seq 100); do echo $i > $D/t; mv $D/t $D/f; done", "")
	if code := reader.wait(60 * time.Second); code != 0 {
		t.Errorf("a reader failed while the file was replaced: %s", reader.out)
	}
	// A directory that was made anew is not the one that a program is in.
	a.expect("mkdir $D/dir", "")
	shell := a.start("cd $D/dir; echo there; read -r _ < <(while test ! -e $D/go; do sleep 0.02; done; echo); echo x > file")
	until(t, "the shell is there", func() bool { return strings.Contains(shell.out.String(), "there") })
	b.expect("rmdir $D/dir; mkdir $D/dir; touch $D/go", "")
	if code := shell.wait(20 * time.Second); code == 0 || !strings.Contains(shell.out.String(), "Stale") {
		t.Errorf("created a file in a directory that is gone: exit code %d: %s", code, shell.out)
	}
	b.expect("ls $D/dir", "")
}

func TestAttributes(t *testing.T) {
	c, a, b := twoHosts(t)
	a.writeFile("f", "hello")
	n := c.stat("/ls/ny1/d/f")
	p, q := a.program(), b.program()
	for name, want := range map[string]string{
		"user.lockfs.instance":           fmt.Sprint(n.Instance),
		"user.lockfs.content_generation": fmt.Sprint(n.ContentGeneration),
		"user.lockfs.checksum":           fmt.Sprintf("%016x", n.Checksum),
		"user.lockfs.permanence":         "permanent",
		"user.lockfs.lock.mode":          "FREE",
		"user.lockfs.lock.holders":       "",
		"user.lockfs.lock_delay":         "0",
		"user.lockfs.sequencer":          "ENODATA",
		"user.lockfs.x":                  "ENODATA",
		"user.x":                         "ENODATA",
		"security.selinux":               "ENODATA",
	} {
		p.do("getxattr $D/f "+name, want)
	}
	p.do("getxattr $D user.lockfs.checksum", "ENODATA")
	p.do("getxattr $D user.lockfs.permanence", "permanent")
	p.do("open f $D/f r+", "")
	p.do("flock f ex", "")
	p.do("getxattr $D/f user.lockfs.sequencer", fmt.Sprintf("/ls/ny1/d/f:EXCLUSIVE:%d", n.LockGeneration+1))
	q.do("getxattr $D/f user.lockfs.sequencer", "ENODATA")
	q.do("getxattr $D/f user.lockfs.lock.mode", "EXCLUSIVE")
	q.tell("getxattr $D/f user.lockfs.lock.holders")
	if got, want := q.hear(), fmt.Sprintf("pid %d ", p.cmd.Process.Pid); !strings.Contains(got, want) {
		t.Errorf("lock.holders is %q, without %q", got, want)
	}
	p.do("flock f un", "")
	p.do("flock f sh", "")
	p.do("getxattr $D/f user.lockfs.sequencer", fmt.Sprintf("/ls/ny1/d/f:SHARED:%d", n.LockGeneration+2))
	p.tell("listxattr $D/f")
	if got := p.hear(); !strings.Contains(got, "user.lockfs.instance ") || !strings.Contains(got, "user.lockfs.sequencer ") {
		t.Errorf("listxattr: %q", got)
	}
	for value, want := range map[string]string{"0": "", "5": "", "60": "", "61": "EINVAL", "-1": "EINVAL", "x": "EINVAL"} {
		p.do("setxattr $D/f user.lockfs.lock_delay "+value, want)
	}
	p.do("setxattr $D/f user.lockfs.lock_delay 7s", "")
	p.do("getxattr $D/f user.lockfs.lock_delay", "7")
	p.do("setxattr $D/f user.lockfs.acl.write /ls/ny1/acl/x", "")
	q.do("getxattr $D/f user.lockfs.acl.write", "/ls/ny1/acl/x")
	p.do("setxattr $D/f user.lockfs.instance 1", "ENOTSUP")
	p.do("setxattr $D/f user.x 1", "ENOTSUP")
	q.do("getxattr $D/f user.lockfs.sequencer", "ENODATA")
	before := n.ContentGeneration
	a.expect("touch $D/f; cat $D/f", "hello")
	if after := c.stat("/ls/ny1/d/f").ContentGeneration; after != before+1 {
		t.Errorf("touch moved the generation from %d to %d", before, after)
	}
}
