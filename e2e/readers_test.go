package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// TestReaders reads files in tight loops while programs write them, in all the ways in which
// programs write. A reader sees one version each time, whole, and none that was overwritten by a
// write that had returned, or whose successor anybody had read, before the reader asked. So it is
// with several writers on both hosts, and while masters are killed.
func TestReaders(t *testing.T) {
	h := twoHosts(t, proccell.Config{})
	ways := writingWays(t)
	reads := sized(5_000, 100_000)
	groups := make(map[string][]writing) // a file's name, and who writes it
	for name, way := range ways {
		groups[name] = []writing{{way, h.a}}
	}
	groups["contended"] = []writing{{ways["redirect"], h.a}, {ways["cp"], h.b}, {ways["mv"], h.a}, {ways["as Python"], h.b}}
	groups["failing masters"] = []writing{{ways["redirect"], h.a}, {ways["tee"], h.b}, {ways["mv"], h.a}}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		t.Run(name, func(t *testing.T) {
			h := &hosts{T: t, cell: h.cell, a: h.a, b: h.b}
			if name == "failing masters" {
				defer h.killMasters()()
			}
			h.readWhileWritten(strings.ReplaceAll(name, " ", "-"), groups[name], reads/len(groups)+1)
		})
	}
}

// killMasters kills a master after the other, about one a second, until it is told to end it.
func (h *hosts) killMasters() (finish func()) {
	ctx, cancel := context.WithCancel(h.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			master, err := h.cell.Master(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = errors.Join(master.Process().Kill(), master.Start(within(h.T, time.Minute)))
			}
			if err != nil {
				h.Error(err)
				return
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	return func() { cancel(); <-ended }
}

type writing struct {
	way  way
	host *proccell.Mount
}

// way is a way to write the next version of a file.
type way struct {
	form  form
	start func(t *testing.T, file, next string) *proccell.Talker
}

// In a shell's way $f is the file, $next has the next version of it, or what is to be appended, and
// n is its number.
var shellWays = map[string]struct {
	form   form
	script string
}{
	"redirect": {changing, `cat $next > $f`},
	"echo":     {changing, `text=$(<$next); echo "$text" > $f`},
	"cp":       {changing, `cp $next $f`},
	"tee":      {changing, `tee $f < $next > /dev/null`},
	"dd":       {changing, `dd if=$next of=$f bs=1000 status=none`},
	"dd fsync": {changing, `dd if=$next of=$f conv=fsync status=none`},
	"dd over":  {constant, `dd if=$next of=$f bs=999 conv=notrunc status=none`},
	"mv":       {changing, `cp $next $f.tmp.$$ && mv $f.tmp.$$ $f`},
	"sed -i":   {changing, `{ IFS= read -r head; IFS= read -r line; } < $next; sed -i -e "1s/.*/$head/" -e "2,\$s/.*/$line/" $f`},
	"append": {growing, `
		if ((n % lines == 1)); then cp $next $f
		elif ((n % 3 == 0)); then line=$(<$next); echo "$line" >> $f
		elif ((n % 3 == 1)); then tee -a $f < $next > /dev/null
		else dd if=$next of=$f oflag=append conv=notrunc status=none
		fi`},
}

const shellLoop = `
f=$1 next=$2 lines=$3
while read -r n; do
	eval "$way"
	echo "written $n $?"
done`

// pythonWays are those of programs in Python.
var pythonWays = map[string]string{
	"Python": `
with open(f, 'w') as out:
    out.write(text)`,
	"Python replaces": `
import tempfile, os
out = tempfile.NamedTemporaryFile('w', dir=os.path.dirname(f), delete=False)
with out:
    out.write(text)
    out.flush()
    os.fsync(out.fileno())
os.replace(out.name, f)`,
	"Python in place": `
with open(f, 'r+') as out:
    out.write(text)
    out.truncate()`,
}

const pythonLoop = `
import sys
f, next, way = sys.argv[1], sys.argv[2], compile(sys.argv[3], 'way', 'exec')
for line in sys.stdin:
    with open(next) as source:
        text = source.read()
    exec(way)
    print('written', line.strip(), 0, flush=True)`

// writingWays are all ways for which this machine has the programs.
func writingWays(t *testing.T) map[string]way {
	ways := map[string]way{
		"as Python": {changing, func(t *testing.T, file, next string) *proccell.Talker { return program(t, "rewrite", file, next) }},
	}
	for name, shell := range shellWays {
		ways[name] = way{shell.form, func(t *testing.T, file, next string) *proccell.Talker {
			cmd := exec.Command("bash", "-c", "way='"+shell.script+"'\n"+shellLoop, "writer", file, next, fmt.Sprint(journalLines))
			return talk(t, name, cmd)
		}}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Log("without Python: ", err)
		return ways
	}
	for name, script := range pythonWays {
		ways[name] = way{changing, func(t *testing.T, file, next string) *proccell.Talker {
			return talk(t, name, exec.Command(python, "-c", pythonLoop, file, next, script))
		}}
	}
	return ways
}

// playRewrite writes as a program in Python does: a buffer at a time, and everything at the close.
//
//	rewrite FILE NEXT
func playRewrite(args []string, told *bufio.Scanner) error {
	rewrite := func() error {
		text, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		out, err := os.Create(args[0])
		if err != nil {
			return err
		}
		for chunk := range slices.Chunk(text, 8192) {
			if _, err := out.Write(chunk); err != nil {
				out.Close()
				return err
			}
		}
		return out.Close()
	}
	for told.Scan() {
		if err := rewrite(); err != nil {
			return err
		}
		fmt.Println("written", told.Text(), 0)
	}
	return nil
}

// readWhileWritten runs the writers of a file until its readers have read it so often.
func (h *hosts) readWhileWritten(name string, writings []writing, reads int) {
	versions := new(history)
	form := writings[0].way.form
	first := versions.begin()
	h.ok(os.WriteFile(h.a.Path(name), form.version(first), 0o644))
	versions.seen(first)

	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(reads))
	for _, w := range writings {
		next := filepath.Join(h.TempDir(), "next")
		talker := w.way.start(h.T, w.host.Path(name), next)
		writers.Go(func() { h.write(talker, form, next, versions, stop) })
	}
	began := time.Now()
	reader := func(host *proccell.Mount, read reading) {
		readers.Go(func() {
			if err := repeat(read, host.Path(name), form, versions, &left); err != nil {
				h.Errorf("reading on host %s: %v", host.Name, err)
				left.Store(0)
			}
		})
	}
	for _, read := range []reading{whole, inChunks, inChunks, keptOpen, keptOpen, keptOpen, keptOpen, byCat} {
		reader(h.b, read)
	}
	reader(h.a, whole)
	readers.Wait()
	close(stop)
	writers.Wait()
	h.Logf("%d reads, %d versions in %v", reads, versions.count(), time.Since(began).Round(time.Millisecond))
	if versions.count() < 3 {
		h.Error("nothing was written meanwhile")
	}
}

// write has a writer write version after version, until stop is closed.
func (h *hosts) write(talker *proccell.Talker, form form, next string, versions *history, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		n := versions.begin()
		if err := writeNext(h.Context(), talker, form, next, n); err != nil {
			h.Errorf("version %d: %v", n, err)
			return
		}
		versions.seen(n)
	}
}

func writeNext(ctx context.Context, talker *proccell.Talker, form form, next string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := os.WriteFile(next, form.addition(n), 0o600); err != nil {
		return err
	}
	_, err := talker.Ask(ctx, fmt.Sprint(n), fmt.Sprintf("written %d 0", n))
	return err
}

// repeat reads while reads are left, and fails where what it reads is not one version, or old.
func repeat(read reading, path string, form form, versions *history, left *atomic.Int64) error {
	var keep *os.File
	defer func() { keep.Close() }()
	for left.Add(-1) >= 0 {
		old := versions.overwritten()
		content, err := read(&keep, path)
		if err != nil {
			return err
		}
		n, err := form.parse(content)
		if err != nil {
			return fmt.Errorf("%w: %d bytes %.200q", err, len(content), content)
		}
		if err := versions.check(n, old); err != nil {
			return err
		}
	}
	return nil
}

// reading reads a file whole. Keep is for what stays open between two readings.
type reading func(keep **os.File, path string) ([]byte, error)

func whole(_ **os.File, path string) ([]byte, error) { return os.ReadFile(path) }

func byCat(_ **os.File, path string) ([]byte, error) { return exec.Command("cat", path).Output() }

// inChunks reads as most programs do, a buffer at a time until the end is told.
func inChunks(_ **os.File, path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var content []byte
	for buf := make([]byte, 4096); ; {
		n, err := file.Read(buf)
		if content = append(content, buf[:n]...); err == io.EOF {
			return content, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// keptOpen looks at a file that stays open, as a program does that reads its configuration again.
// It is one system call, and Go's signals are many: os.File would try again too.
func keptOpen(keep **os.File, path string) (content []byte, err error) {
	if *keep == nil {
		if *keep, err = os.Open(path); err != nil {
			return nil, err
		}
	}
	buf := make([]byte, 1<<18)
	for {
		n, err := unix.Pread(int((*keep).Fd()), buf, 0)
		if err != unix.EINTR {
			return buf[:max(n, 0)], err
		}
	}
}
