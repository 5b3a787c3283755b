package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockfs"
	"lockfs/internal/proccell"
	"lockfs/sequencer"
)

// shell is a worker in a bash on one of the mounts. The programs it runs tell whether a close failed;
// bash itself, where it writes, does not.
type shell struct {
	*worker
	mount  *proccell.Mount
	talker *proccell.Talker
	folder string // with its local files
}

// In the lines that a shell is told, $dir is the cell's folder, $next has what is to be written,
// $read is for what was read. Each ends with how it ended, and what it complained of.
const askedShell = `
dir=$1 next=$2/next read=$2/read complaints=$2/complaints
while IFS= read -r line; do
	{ eval "$line"; } 2> "$complaints"
	code=$? said=$(<"$complaints")
	echo "ended $code ${said//$'\n'/; }"
done`

var (
	shellWrites  = []string{`cat $next > $f`, `tee $f < $next > /dev/null`, `cp $next $f`, `dd if=$next of=$f conv=fsync status=none`}
	shellAppends = []string{`cat $next >> $f`, `tee -a $f < $next > /dev/null`, `dd if=$next of=$f oflag=append conv=notrunc status=none`}
)

func newShell(s *siege, on *proccell.Mount) *shell {
	w := &shell{worker: s.newWorker(on.Name), mount: on, folder: s.TempDir()}
	w.talker = talk(s.T, "shell "+w.name(), exec.Command("bash", "-c", askedShell, "shell", on.Path(""), w.folder))
	return w
}

func (w *shell) run() {
	w.work(50*time.Millisecond, w.read, w.write, w.append, w.append, w.lock, w.lock, w.tryLock, w.readJournal, w.tryKept)
}

// tell has the shell do a line on a file, and returns its exit code and what it complained of.
func (w *shell) tell(in asked, ch *chapter, line string, limit time.Duration) (code int, said string) {
	w.begins(in, ch)
	ctx, cancel := context.WithTimeoutCause(w.Context(), limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	rest, err := w.talker.Ask(ctx, fmt.Sprintf("f=$dir/%s; %s", ch.name, line), "ended ")
	switch {
	case w.Context().Err() != nil: // the test is over
		return -1, ""
	case err != nil:
		w.Errorf("%s on %s: %v of %s: %v", w.name(), w.host, in, ch.name, err)
		return -1, ""
	}
	number, said, _ := strings.Cut(rest, " ")
	code, err = strconv.Atoi(number)
	if err != nil {
		w.Errorf("%s on %s: %v of %s: ended %q", w.name(), w.host, in, ch.name, rest)
	}
	return code, said
}

// do is tell, recorded with its end. Found brings what was read, and the generation of a lock.
func (w *shell) do(in asked, ch *chapter, line string, limit time.Duration, found func() answered) fate {
	in.host = w.host
	began := w.moments.now()
	code, said := w.tell(in, ch, line, limit)
	ended := w.moments.now()
	out := answered{fate: w.fateOf(in, ch, code, said)}
	if out.fate == done && found != nil {
		out = found()
		out.fate = done
	}
	if out.fate != failed || in.verb != reads {
		ch.record(w.id, began, in, out, ended)
	}
	return out.fate
}

// fateOf sorts how programs end. No session ends here, so that nothing but EIO is to be expected.
func (w *shell) fateOf(in asked, ch *chapter, code int, said string) fate {
	switch {
	case code == 0:
		return done
	case code == 1 && said == "" && in.verb == acquires:
		return denied
	case w.Context().Err() != nil: // the test is over
		return unknown
	case strings.Contains(said, unix.EIO.Error()) || strings.Contains(said, "Input/output error"):
		return failed
	}
	w.Errorf("%s on %s: %v of %s ended with code %d: %s", w.name(), w.host, in, ch.name, code, said)
	return unknown
}

func (w *shell) read()        { w.readIn(w.anywhere(registers).current.Load()) }
func (w *shell) readJournal() { w.readIn(w.anywhere(journals).current.Load()) }

func (w *shell) readIn(ch *chapter) {
	w.do(asked{verb: reads}, ch, `cat $f > $read`, callLimit, func() answered {
		content, err := os.ReadFile(filepath.Join(w.folder, "read"))
		if err != nil {
			w.Error(err)
		}
		return answered{value: ch.shown(content)}
	})
}

func (w *shell) write()  { w.put(writes, w.anywhere(registers).current.Load(), shellWrites) }
func (w *shell) append() { w.put(appends, w.anywhere(journals).current.Load(), shellAppends) }

func (w *shell) put(how verb, ch *chapter, ways []string) {
	in := asked{verb: how, value: w.unique()}
	if err := os.WriteFile(filepath.Join(w.folder, "next"), []byte(in.value), 0o600); err != nil {
		w.Error(err)
		return
	}
	if w.do(in, ch, ways[w.random.IntN(len(ways))], callLimit, nil) == done {
		w.count(w.host, ch.kind)
	}
}

func (w *shell) lock() {
	mode := w.mode()
	w.hold(w.anywhere(locks).current.Load(), mode, "")
}

func (w *shell) tryLock() {
	mode := w.mode()
	w.hold(w.anywhere(locks).current.Load(), mode, " -n")
}

// tryKept asks for a lock that is held from the beginning to the end.
func (w *shell) tryKept() {
	k := w.keepers[w.random.IntN(len(w.keepers))]
	if k.chapter.length() < chapterLength {
		w.hold(k.chapter, lockfs.Exclusive, " -n")
	}
}

// hold takes a lock with flock(1), as an owner of its own, and lets it go.
func (w *shell) hold(ch *chapter, mode lockfs.Mode, how string) {
	w.holds++
	in := asked{verb: acquires, owner: w.owner(), mode: mode}
	option := map[lockfs.Mode]string{lockfs.Shared: "-s", lockfs.Exclusive: "-x"}[mode]
	of := w.do(in, ch, fmt.Sprintf(`exec 9<>$f && flock %s%s 9`, option, how), waitLimit, func() answered {
		return answered{generation: w.holding(ch, mode)}
	})
	if of == done {
		w.letGo(ch, in.owner, option)
	} else if of != denied {
		w.closed(ch, in.owner)
	}
	w.tell(asked{verb: "close"}, ch, `exec 9>&-`, callLimit)
}

// holding is what a holder is asked; it returns its lock's generation, or 0 where the mount does not
// say.
func (w *shell) holding(ch *chapter, mode lockfs.Mode) uint64 {
	value := make([]byte, 2048)
	n, err := unix.Getxattr(w.mount.Path(ch.name), "user.lockfs.sequencer", value)
	if err == unix.EIO || err == unix.EINTR { // no master answers to say where that path leads
		return 0
	}
	if err != nil {
		w.Errorf("%s on %s holds %s, and its sequencer: %v", w.name(), w.host, ch.name, err)
		return 0
	}
	seq, err := sequencer.Parse(string(value[:n]))
	if err == nil && seq.Mode != mode {
		err = fmt.Errorf("it is not held %v", mode)
	}
	if err == nil {
		err = w.referee.enter(ch.name, grant{seq.Mode, seq.Generation})
	}
	if err != nil {
		w.Errorf("%s on %s with %s: %v", w.name(), w.host, value[:n], err)
	}
	return seq.Generation
}

// letGo shows the referee that it alone holds the lock, and unlocks.
func (w *shell) letGo(ch *chapter, owner, option string) {
	line := fmt.Sprintf(`exec 8<>%s && flock -n %s 8`, w.referee.path(ch.name), option)
	if code, said := w.tell(asked{verb: "enter", owner: owner}, ch, line, callLimit); code != 0 {
		w.Errorf("%s on %s: two hold %s at once, says flock: %d %s", owner, w.host, ch.name, code, said)
	}
	if w.do(asked{verb: releases, owner: owner}, ch, `flock -u 8; exec 8>&-; flock -u 9`, callLimit, nil) != done {
		w.closed(ch, owner)
		return
	}
	w.count(w.host, locks)
}

// closed records that a lock which may be held ends some time after the close of its file.
func (w *shell) closed(ch *chapter, owner string) {
	now := w.moments.now()
	ch.record(w.id, now, asked{verb: releases, owner: owner, host: w.host}, answered{fate: unknown}, now)
}
