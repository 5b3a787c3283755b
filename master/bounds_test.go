package master

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"lockfs"
	"lockfs/lockpb"
	"lockfs/store"
	"lockfs/store/storepb"
)

// raftLimit is what raft takes for one proposal.
const raftLimit = 2 << 20

// largest applies what is proposed, and returns the size of the largest proposal in bytes.
func (h *history) largest() int {
	size := 0
	for len(h.machine.proposals) > 0 {
		size = max(size, proto.Size(h.machine.proposals[0]))
		h.applyOne()
	}
	return size
}

// TestManyHeirs lets thousands who share a lock follow one who held it alone, with the longest
// notes and paths. The log must be able to take it.
func TestManyHeirs(t *testing.T) {
	h := newHistory(t, 0)
	path := "/ls/c/" + strings.Repeat("p", lockfs.MaxName)
	h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_Create{Create: &storepb.Create{Path: path, Type: uint32(lockfs.File)}}})
	h.drain()
	acquire := func(session, owner uint64, mode lockfs.Mode) {
		h.call(&storepb.Mutation{Session: session, Op: &storepb.Mutation_Acquire{Acquire: &storepb.Acquire{
			Path: path, Owner: owner, Mode: uint32(mode), Waits: true, Note: strings.Repeat("n", 1000)}}})
	}
	acquire(1, 1, lockfs.Exclusive)
	h.drain()
	const heirs = 1600
	for owner := range uint64(heirs) {
		acquire(2, owner+1, lockfs.Shared)
	}
	h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_CloseOwner{CloseOwner: &storepb.CloseOwner{Owner: 1}}})
	if size := h.largest(); size > raftLimit {
		t.Errorf("a proposal of %d bytes", size)
	}
	if held := len(h.machine.state.HeldBy(2)); held != heirs {
		t.Errorf("%d of %d have the lock", held, heirs)
	}
}

// TestManyOrphans ends a session that leaves thousands of ephemeral nodes behind.
func TestManyOrphans(t *testing.T) {
	h := newHistory(t, 0)
	for i := range 900 {
		h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_Create{Create: &storepb.Create{
			Path: fmt.Sprintf("/ls/c/%d%s", i%9, strings.Repeat("d", 200)), Type: uint32(lockfs.Dir)}}})
		h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_Create{Create: &storepb.Create{
			Path: fmt.Sprintf("/ls/c/%d%s/%d", i%9, strings.Repeat("d", 200), i), Type: uint32(lockfs.File), Ephemeral: true}}})
	}
	h.drain()
	before := h.machine.state.Nodes()
	h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_CloseSession{CloseSession: new(storepb.CloseSession)}})
	if size := h.largest(); size > raftLimit/4 {
		t.Errorf("a proposal of %d bytes", size)
	}
	if gone := before - h.machine.state.Nodes(); gone < 800 || len(h.machine.state.Orphans()) > 0 {
		t.Errorf("%d nodes are gone, %d orphans are left", gone, len(h.machine.state.Orphans()))
	}
}

// TestRejectedProposal has the log refuse a release with its heir: both callers are told, and the lock
// goes on to others.
func TestRejectedProposal(t *testing.T) {
	h := newHistory(t, 0)
	acquire := func(owner uint64) {
		h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_Acquire{Acquire: &storepb.Acquire{
			Path: "/ls/c/x", Owner: owner, Mode: uint32(lockfs.Exclusive), Waits: true}}})
		h.drain()
	}
	acquire(1)
	acquire(2)
	release := func() {
		h.call(&storepb.Mutation{Session: 1, Op: &storepb.Mutation_Release{Release: &storepb.Release{Path: "/ls/c/x", Owner: 1}}})
	}
	release()
	p := h.machine.proposals[0]
	h.machine.proposals = nil
	h.machine.rejected(p, lockfs.ErrTooLarge)
	h.hear()
	if len(h.machine.pending) > 0 || len(h.machine.calls) > 0 {
		t.Errorf("left over: %d pending, %d calls", len(h.machine.pending), len(h.machine.calls))
	}
	acquire(3)
	release()
	h.drain()
	if held := h.machine.state.HeldBy(1); len(held) != 1 || held[0].Owner != 3 {
		t.Errorf("held after a release: %v", held)
	}
}

func TestLargeRequests(t *testing.T) {
	r := &Replica{cfg: Config{Cell: "c"}}
	big := make([]byte, mutationBytesMax)
	for name, call := range map[string]*lockpb.Call{
		"edit": {Op: &lockpb.Call_Edit{Edit: &lockpb.Edit{Path: "/ls/c/x", Changes: []*lockpb.Change{
			{Change: &lockpb.Change_Append{Append: big}}}}}},
		"many changes": {Op: &lockpb.Call_Edit{Edit: &lockpb.Edit{Path: "/ls/c/x"}}},
		"create":       {Op: &lockpb.Call_Create{Create: &lockpb.Create{Path: "/ls/c/x", Type: uint32(lockfs.File), Content: big}}},
		"close":        {Op: &lockpb.Call_CloseOwner{CloseOwner: &lockpb.CloseOwner{Owner: 1, Numbers: make([]uint64, mutationBytesMax)}}},
	} {
		call.Session, call.Number = 1, 1
		if name == "many changes" {
			for range changesMax + 1 {
				call.GetEdit().Changes = append(call.GetEdit().Changes, &lockpb.Change{Change: &lockpb.Change_Truncate{}})
			}
		}
		if _, err := r.mutation(call); lockfs.KindOf(err) != lockfs.ErrTooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
	note := &lockpb.Call{Session: 1, Number: 1, Op: &lockpb.Call_Acquire{Acquire: &lockpb.Acquire{
		Path: "/ls/c/x", Mode: uint32(lockfs.Shared), Wait: true, Note: string(make([]byte, store.MaxNote+1))}}}
	if _, err := r.mutation(note); lockfs.KindOf(err) != lockfs.ErrInvalid {
		t.Errorf("a long note: %v", err)
	}
}
