// Package sequencer is the string that proves a lock: which lock, in which mode, drawn at which
// generation. A server that is told to obey a lock's holder compares generations and refuses the
// older one. The package knows nothing of cells and sessions; anyone may import it.
package sequencer

import (
	"fmt"
	"strconv"
	"strings"

	"lockfs"
)

// A Sequencer proves that its bearer held a lock when it was drawn. The zero Sequencer proves
// nothing: generations start at 1.
type Sequencer struct {
	Path       lockfs.Path
	Mode       lockfs.Mode
	Generation uint64
}

// String returns name:MODE:generation, as in /ls/ny1/orders-db/master:EXCLUSIVE:41.
func (s Sequencer) String() string {
	return fmt.Sprintf("%s:%s:%d", s.Path, s.Mode, s.Generation)
}

// Parse reads what String wrote, from the right, since a name may contain colons. It fails with
// ErrInvalid or with an error of lockfs.ParsePath.
func Parse(text string) (Sequencer, error) {
	rest, generation, ok := cutLast(text)
	name, mode, ok2 := cutLast(rest)
	if !ok || !ok2 {
		return Sequencer{}, invalid(text, "not of the form name:MODE:generation")
	}
	s := Sequencer{}
	switch mode {
	case "SHARED":
		s.Mode = lockfs.Shared
	case "EXCLUSIVE":
		s.Mode = lockfs.Exclusive
	default:
		return Sequencer{}, invalid(text, "the mode is neither SHARED nor EXCLUSIVE")
	}
	var err error
	if s.Generation, err = strconv.ParseUint(generation, 10, 64); err != nil || s.Generation == 0 || generation[0] == '0' {
		return Sequencer{}, invalid(text, "the generation is not a number from 1 on")
	}
	if s.Path, err = lockfs.ParsePath(name); err != nil {
		return Sequencer{}, fmt.Errorf("sequencer %q: %w", text, err)
	}
	return s, nil
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func invalid(text, why string) error {
	return &lockfs.Error{Op: "sequencer", Kind: lockfs.ErrInvalid, Detail: fmt.Sprintf("%q: %s", text, why)}
}
