package lockpb

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"lockfs"
	"lockfs/sequencer"
)

func TestStatCrossesTheWire(t *testing.T) {
	for _, s := range []lockfs.Stat{
		{},
		{
			Path: "/ls/ny1/a", Type: lockfs.File, Ephemeral: true, OwnerSession: 7,
			Instance: 1, ContentGeneration: 2, LockGeneration: 3, ACLGeneration: 4,
			Checksum: 1 << 63, Size: 5,
			ACL:   lockfs.ACLNames{Read: "r", Write: "w", ChangeACL: "c"},
			Mtime: time.Unix(12, 34),
		},
	} {
		if got := StatFromWire(StatToWire(s)); got != s {
			t.Errorf("%+v became %+v", s, got)
		}
	}
	if got := StatFromWire(nil); got != (lockfs.Stat{}) {
		t.Errorf("no stat became %+v", got)
	}
}

func TestSequencerCrossesTheWire(t *testing.T) {
	s := sequencer.Sequencer{Path: "/ls/ny1/a", Mode: lockfs.Exclusive, Generation: 41}
	if w := SequencerToWire(s); w.GetPath() != "/ls/ny1/a" || w.GetMode() != uint32(lockfs.Exclusive) || w.GetGeneration() != 41 {
		t.Errorf("%v became %v", s, w)
	}
	if SequencerToWire(sequencer.Sequencer{}) != nil {
		t.Error("the zero sequencer guards something")
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	detailed := &lockfs.Error{Op: "open", Path: "/ls/x/y", Kind: lockfs.ErrStale, Detail: "gone"}
	for _, c := range []struct {
		err    error
		kind   lockfs.Kind
		detail string
	}{
		{nil, 0, ""},
		{detailed, lockfs.ErrStale, "gone"},
		{fmt.Errorf("more: %w", detailed), lockfs.ErrStale, "gone"},
		{lockfs.ErrBusy, lockfs.ErrBusy, ""},
		{io.EOF, lockfs.ErrInternal, "EOF"},
	} {
		kind, detail := FailureOf(c.err)
		if kind != uint32(c.kind) || detail != c.detail {
			t.Errorf("%v crosses as %d %q", c.err, kind, detail)
		}
		back := ErrorOf(kind, detail, "open", "/ls/x/y")
		if (back == nil) != (c.err == nil) || lockfs.KindOf(back) != c.kind {
			t.Errorf("%v came back as %v", c.err, back)
		}
	}
	if err := ErrorOf(4711, "", "open", ""); !errors.Is(err, lockfs.ErrInternal) {
		t.Errorf("an impossible kind became %v", err)
	}
}

func TestErrorsEndStreams(t *testing.T) {
	err := FromStatus(StatusOf(&lockfs.Error{Op: "x", Kind: lockfs.ErrCell, Detail: "this is ny2"}), "hello", "")
	if !errors.Is(err, lockfs.ErrCell) || err.Error() != "hello: another cell: this is ny2" {
		t.Errorf("came back as %v", err)
	}
	if err := FromStatus(io.EOF, "hello", ""); !errors.Is(err, lockfs.ErrUnavailable) {
		t.Errorf("a broken stream is %v", err)
	}
	if StatusOf(nil) != nil || FromStatus(nil, "", "") != nil {
		t.Error("no error became one")
	}
}

func TestLimitsCrossTheWire(t *testing.T) {
	l := lockfs.Limits{FileBytes: 1, Nodes: 2, Bytes: 3, Children: 4}
	if got := LimitsFromWire(LimitsToWire(l)); got != l {
		t.Errorf("%+v became %+v", l, got)
	}
}
