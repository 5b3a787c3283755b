package lockfs

import (
	"errors"
	"strings"
)

// Kind is the class of an error: what a caller can act on. A Kind is itself an error, so
//
//	errors.Is(err, lockfs.ErrNotExist)
//
// works on whatever wraps one. Kinds cross the wire and stand in replicated results as numbers:
// the list only grows, and nothing in it is renumbered or used again.
type Kind uint8

const (
	_ Kind = 0 // no error; never printed

	ErrInternal    Kind = 1  // a fault of lockfs itself
	ErrBadName     Kind = 2  // not a name, see ParsePath
	ErrNameTooLong Kind = 3  // a component or a path over its bound
	ErrInvalid     Kind = 4  // an argument out of range, or that makes no sense on this node
	ErrNotExist    Kind = 5  // no node of this name
	ErrExist       Kind = 6  // a node of this name is there already
	ErrNotDir      Kind = 7  // a file where a directory is needed
	ErrIsDir       Kind = 8  // a directory where a file is needed
	ErrNotEmpty    Kind = 9  // the directory has children
	ErrTooLarge    Kind = 10 // the file would pass Limits.FileBytes
	ErrNoSpace     Kind = 11 // the cell or the directory would pass another of the Limits
	ErrPermission  Kind = 12 // the ACL says no
	ErrStale       Kind = 13 // the node was deleted or made anew since
	ErrChanged     Kind = 14 // the contents are not of the generation that was named
	ErrBusy        Kind = 15 // a conflicting lock is held, or waits, and the caller would not wait
	ErrLockDelay   Kind = 16 // the name is in its lock-delay, and the caller would not wait
	ErrDeadlock    Kind = 17 // two holders of a shared lock both wait to convert it
	ErrNotHeld     Kind = 18 // the owner holds no lock there
	ErrSequencer   Kind = 19 // the sequencer that guards the call is not valid any more
	ErrSession     Kind = 20 // the session has ended, or never was
	ErrGivenUp     Kind = 21 // the request number was given up: the mutation is not done and never will be
	ErrNotMaster   Kind = 22 // this replica is not the master
	ErrEpoch       Kind = 23 // the call names another epoch than the master's
	ErrCell        Kind = 24 // the call is for another cell
	ErrUnavailable Kind = 25 // no master answered in time
	ErrUnknown     Kind = 26 // it could not be learnt whether the mutation was done
	ErrLimit       Kind = 27 // too many sessions, waits or open requests
	ErrReleased    Kind = 28 // the owner was closed while it waited for a lock
)

var kindText = [...]string{
	ErrInternal:    "internal error",
	ErrBadName:     "bad name",
	ErrNameTooLong: "name too long",
	ErrInvalid:     "invalid argument",
	ErrNotExist:    "does not exist",
	ErrExist:       "exists already",
	ErrNotDir:      "is not a directory",
	ErrIsDir:       "is a directory",
	ErrNotEmpty:    "directory is not empty",
	ErrTooLarge:    "file too large",
	ErrNoSpace:     "no space left in the cell",
	ErrPermission:  "permission denied",
	ErrStale:       "node was deleted or replaced",
	ErrChanged:     "contents have changed",
	ErrBusy:        "lock is held",
	ErrLockDelay:   "lock is in its lock-delay",
	ErrDeadlock:    "deadlock of two conversions",
	ErrNotHeld:     "lock is not held",
	ErrSequencer:   "sequencer is not valid any more",
	ErrSession:     "session has ended",
	ErrGivenUp:     "request was given up",
	ErrNotMaster:   "not the master",
	ErrEpoch:       "another epoch",
	ErrCell:        "another cell",
	ErrUnavailable: "no master answers",
	ErrUnknown:     "outcome unknown",
	ErrLimit:       "too many",
	ErrReleased:    "owner was closed",
}

// Error returns the kind in words.
func (k Kind) Error() string {
	if int(k) < len(kindText) && kindText[k] != "" {
		return kindText[k]
	}
	return "unknown kind of error"
}

// Error says what was attempted on what, and why it failed.
type Error struct {
	Op     string // the operation, as a user would name it
	Path   Path   // what it was attempted on, if on a node
	Kind   Kind
	Detail string // what the kind does not say
}

func (e *Error) Error() string {
	var b strings.Builder
	for _, part := range []string{e.Op, string(e.Path)} {
		if part != "" {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(part)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(e.Kind.Error())
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	return b.String()
}

// Unwrap makes errors.Is find the kind.
func (e *Error) Unwrap() error { return e.Kind }

// KindOf returns the kind of err: 0 for nil, ErrInternal for an error without one.
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	var kind Kind
	if errors.As(err, &kind) {
		return kind
	}
	return ErrInternal
}
