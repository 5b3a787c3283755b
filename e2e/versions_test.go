package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"testing"
)

// history is what is known of the versions of a file while they are written, by any number of
// writers. Versions have numbers in the order in which their writes began.
type history struct {
	mu    sync.Mutex
	begun int
	order []int       // versions that have been seen, by when they first were
	place map[int]int // where in order a version stands
	// What had been seen when a write began is overwritten as soon as that write has been seen.
	before map[int]int // by version: how much of order that is
	old    int         // so much of order is overwritten
}

// begin returns the number of a version that is now going to be written.
func (h *history) begin() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.place == nil {
		h.place, h.before = make(map[int]int), make(map[int]int)
	}
	h.begun++
	h.before[h.begun] = len(h.order)
	return h.begun
}

// seen says that a version is surely there, since its write has returned or somebody read it.
func (h *history) seen(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seenLocked(n)
}

func (h *history) seenLocked(n int) {
	if _, again := h.place[n]; !again {
		h.place[n] = len(h.order)
		h.order = append(h.order, n)
	}
	h.old = max(h.old, h.before[n])
}

// overwritten returns how many versions, of those seen, nobody may read any more who asks from now
// on.
func (h *history) overwritten() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.old
}

// check takes what was read by somebody who asked when old versions were overwritten.
func (h *history) check(n, old int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n < 1 || n > h.begun {
		return fmt.Errorf("version %d was written by nobody, of %d", n, h.begun)
	}
	if place, seen := h.place[n]; seen && place < old {
		return fmt.Errorf("version %d is %d versions old", n, old-place)
	}
	h.seenLocked(n)
	return nil
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun
}

// form is how the versions of a file look. From each alone it can be told whether it is whole.
type form interface {
	version(n int) []byte              // all that the file holds
	addition(n int) []byte             // what its writer has to write to get there
	parse(content []byte) (int, error) // its number
}

var (
	changing = sheet{lengths: []int{0, 30, 200, 5, 1000, 3, 4500, 50, 300, 1, 12000, 100}}
	constant = sheet{lengths: []int{350}}
	growing  = journalForm{}
)

// sheet is a header with number, length and checksum, and below it sheetLines equal lines, whose
// length goes through lengths.
type sheet struct{ lengths []int }

const (
	sheetLines   = 20
	headerFormat = "version %08d length %06d checksum %08x\n"
)

func (s sheet) version(n int) []byte {
	line := fmt.Sprintf("%08d %s\n", n, strings.Repeat("x", s.lengths[n%len(s.lengths)]))
	body := strings.Repeat(line, sheetLines)
	return []byte(header(n, body) + body)
}

func header(n int, body string) string {
	return fmt.Sprintf(headerFormat, n, len(body), crc32.ChecksumIEEE([]byte(body)))
}

func (s sheet) addition(n int) []byte { return s.version(n) }

var errEmpty = errors.New("empty")

func (s sheet) parse(content []byte) (int, error) {
	if len(content) == 0 {
		return 0, errEmpty
	}
	head, body, _ := bytes.Cut(content, []byte("\n"))
	var n, length int
	var sum uint32
	if _, err := fmt.Sscanf(string(head)+"\n", headerFormat, &n, &length, &sum); err != nil {
		return 0, fmt.Errorf("header: %w", err)
	}
	switch {
	case len(body) != length:
		return 0, fmt.Errorf("version %d has %d bytes, not %d", n, len(body), length)
	case sum != crc32.ChecksumIEEE(body):
		return 0, fmt.Errorf("version %d is mixed with another", n)
	}
	return n, nil
}

// journalForm grows by a line with each version, which carries its number, length and checksum, and
// begins anew after journalLines.
type journalForm struct{}

const journalLines = 100

func (journalForm) addition(n int) []byte {
	body := strings.Repeat("x", n%50) + "\n"
	return []byte(strings.TrimSuffix(header(n, body), "\n") + " " + body)
}

func (j journalForm) version(n int) []byte {
	var content []byte
	for i := n - (n-1)%journalLines; i <= n; i++ {
		content = append(content, j.addition(i)...)
	}
	return content
}

func (j journalForm) parse(content []byte) (n int, err error) {
	if len(content) == 0 {
		return 0, errEmpty
	}
	last := content[bytes.LastIndexByte(content[:len(content)-1], '\n')+1:]
	if _, err := fmt.Sscanf(string(last), "version %d", &n); err != nil {
		return 0, fmt.Errorf("last line: %w", err)
	}
	if n < 1 || !bytes.Equal(content, j.version(n)) {
		return 0, fmt.Errorf("these are not the lines up to %d", n)
	}
	return n, nil
}

// TestForms checks that what is not one version is told from what is.
func TestForms(t *testing.T) {
	for _, form := range []form{changing, constant, growing} {
		for n := 1; n < 250; n++ {
			version := form.version(n)
			if got, err := form.parse(version); err != nil || got != n {
				t.Errorf("%T: version %d is read as %d, %v", form, n, got, err)
			}
			if len(version) > 1<<18 {
				t.Errorf("%T: version %d has %d bytes", form, n, len(version))
			}
		}
		version := form.version(108)
		for what, content := range map[string][]byte{
			"nothing":         nil,
			"one byte":        version[:1],
			"half of it":      version[:len(version)/2],
			"all but a byte":  version[:len(version)-1],
			"all but a piece": append(bytes.Clone(version[:40]), version[90:]...),
			"twice":           append(bytes.Clone(version), version...),
			"zeroes":          make([]byte, len(version)),
		} {
			if n, err := form.parse(content); err == nil {
				t.Errorf("%T: %s is read as version %d", form, what, n)
			}
		}
	}
	mixed := append(constant.version(108)[:3000], constant.version(109)[3000:]...)
	if n, err := constant.parse(mixed); err == nil {
		t.Errorf("half of version 108 and half of 109 is read as version %d", n)
	}
}

// TestHistory plays two writers and a reader.
func TestHistory(t *testing.T) {
	h := new(history)
	read := func(n, old int, ok bool) {
		t.Helper()
		if err := h.check(n, old); (err == nil) != ok {
			t.Errorf("reading version %d: %v", n, err)
		}
	}
	one := h.begin()
	read(one, h.overwritten(), true) // under way
	h.seen(one)
	two, three := h.begin(), h.begin()
	early := h.overwritten()
	read(one, h.overwritten(), true) // still there, for all that is known
	h.seen(three)
	read(one, h.overwritten(), false)
	read(one, early, true)             // who asked before three had returned
	read(two, h.overwritten(), true)   // it may be the later one of the two
	read(three, h.overwritten(), true) // or not
	read(4, h.overwritten(), false)
	four := h.begin()
	early = h.overwritten()
	read(four, early, true) // not returned, but now two and three are gone
	read(two, h.overwritten(), false)
	read(three, h.overwritten(), false)
	read(three, early, true)
}
