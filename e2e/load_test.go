package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/internal/proccell"
)

// journal appends numbered lines through one host, as echo >> does, and remembers which of them
// were acknowledged and which refused. The promise is that exactly the acknowledged ones are
// there, each once.
type journal struct {
	host *proccell.Mount
	file atomic.Value // string: the file's name, changed now and then to stay below a file's limit

	mu struct {
		sync.Mutex
		acked, refused map[string][]string // lines by file
		longest        time.Duration       // between two acknowledged lines
		last           time.Time           // when one was
		count          int
		errors         map[string]int
	}
}

func newJournal(host *proccell.Mount, file string) *journal {
	j := &journal{host: host}
	j.file.Store(file)
	j.mu.acked, j.mu.refused = make(map[string][]string), make(map[string][]string)
	j.mu.errors = make(map[string]int)
	j.mu.last = time.Now()
	return j
}

// write appends until stop is closed.
func (j *journal) write(stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		file := j.file.Load().(string)
		line := fmt.Sprintf("%s-%d", j.host.Name, i)
		j.note(file, line, appendLine(j.host.Path(file), line))
	}
}

func (j *journal) note(file, line string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.mu.refused[file] = append(j.mu.refused[file], line)
		var errno unix.Errno
		errors.As(err, &errno)
		j.mu.errors[errno.Error()]++
		return
	}
	j.mu.acked[file] = append(j.mu.acked[file], line)
	j.mu.longest = max(j.mu.longest, time.Since(j.mu.last))
	j.mu.last = time.Now()
	j.mu.count++
}

// acknowledged is how many lines were, so far.
func (j *journal) acknowledged() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.count
}

func appendLine(path, line string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line + "\n")
	return errors.Join(err, file.Close())
}

// verify compares a file with what its writers were told about their lines.
func (h *hosts) verify(file string, journals ...*journal) {
	h.Helper()
	content, err := os.ReadFile(h.b.Path(file))
	h.ok(err)
	times := make(map[string]int)
	for line := range strings.Lines(string(content)) {
		times[strings.TrimSuffix(line, "\n")]++
	}
	for _, j := range journals {
		for _, line := range j.mu.acked[file] {
			if times[line] != 1 {
				h.Errorf("%s: line %s was acknowledged and is there %d times", file, line, times[line])
			}
			delete(times, line)
		}
		for _, line := range j.mu.refused[file] {
			if times[line] != 0 {
				h.Errorf("%s: line %s was refused and is there %d times", file, line, times[line])
			}
			delete(times, line)
		}
	}
	for line := range times {
		h.Errorf("%s: line %q was written by nobody", file, line)
	}
}

// critical counts in a file under its lock, from every host, and sees whether anybody else is in
// there too.
type critical struct {
	inside atomic.Int32
	adds   atomic.Int64 // acknowledged increments
	cycles atomic.Int64
}

// run enters until stop is closed.
func (c *critical) run(t *testing.T, host *proccell.Mount, name string, stop <-chan struct{}) {
	path := host.Path(name)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if err := c.enter(t, path); err != nil {
			t.Errorf("lock of %s on host %s: %v", name, host.Name, err)
			return
		}
		c.cycles.Add(1)
	}
}

// enter is one cycle through one open file: lock, read, write, unlock. What was written is the cell's
// when the unlock has returned. The error is the lock's; that a write is refused while there is no
// master is no fault.
func (c *critical) enter(t *testing.T, path string) error {
	file, err := openPatiently(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := flock(file, unix.LOCK_EX); err != nil {
		return err
	}
	if n := c.inside.Add(1); n != 1 {
		t.Errorf("%d hold the lock at once", n)
	}
	counted := count(file)
	c.inside.Add(-1)
	err = flock(file, unix.LOCK_UN)
	if counted == nil && err == nil {
		c.adds.Add(1)
	}
	if errors.Is(err, unix.EIO) {
		return nil
	}
	return err
}

// flock is flock(2), and again after a signal of the Go runtime's.
func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// openPatiently opens a file, again where no master was found in time to look it up.
func openPatiently(path string) (*os.File, error) {
	for tries := 0; ; tries++ {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if !errors.Is(err, unix.EIO) || tries == 5 {
			return file, err
		}
	}
}

// count adds one to the number in a file, which never gets shorter by that.
func count(file *os.File) error {
	text := make([]byte, 20)
	size, err := file.ReadAt(text, 0)
	if err != nil && err != io.EOF {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text[:size])))
	if err != nil {
		return err
	}
	_, err = file.WriteAt(fmt.Appendln(nil, n+1), 0)
	return err
}
