package store

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"lockfs/store/storepb"
)

// FuzzApply: whatever a proposal says, Apply does not panic, an error changes nothing, and the state
// it leaves is one that a replica can load.
func FuzzApply(f *testing.F) {
	for _, p := range append(livedIn(f).log, everyCommand()) {
		f.Add(marshal(nil, p))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &storepb.Proposal{}
		if proto.Unmarshal(b, p) != nil {
			return
		}
		p.Epoch = 1 + p.Epoch%2 // 2 takes office
		s := livedIn(t).state
		hash := s.Hash()
		if _, err := s.Apply(s.Applied()+1, p); err != nil && s.Hash() != hash {
			t.Fatalf("%v, and it changed something", err)
		}
		copied, _, err := ReadSnapshot(bytes.NewReader(snapshotOf(t, s)), testCell)
		if err != nil {
			t.Fatal(err)
		}
		checkSame(t, "snapshot", copied, s)
	})
}

// everyCommand holds one of each kind.
func everyCommand() *storepb.Proposal {
	p := &storepb.Proposal{Epoch: 1, Time: 1, Commands: []*storepb.Command{
		office(&storepb.Seed{ClusterId: 1}), expire(1), clearDelay("/ls/ny1/dir", 9), deleteOrphan("/ls/ny1/dir/e", 5),
		checkHash(0, 0), checkHash(9, 9), raise(3)}}
	for i, m := range []*storepb.Mutation{
		create(&storepb.Create{Path: "/ls/ny1/x", Type: 1, Ephemeral: true}), deletion(&storepb.Delete{Path: "/ls/ny1/file"}),
		edit(&storepb.Edit{Path: "/ls/ny1/file", Changes: []*storepb.Change{appended("x"), truncated(3), writtenTo(9, "y")}}),
		setACL(&storepb.SetACL{Path: "/ls/ny1/file", Acl: &storepb.ACLNames{Read: "/ls/ny1/acl"}}),
		rename(&storepb.Rename{From: "/ls/ny1/file", To: "/ls/ny1/dir/file"}),
		acquire(&storepb.Acquire{Path: "/ls/ny1/dir", Owner: 3, Mode: 2, LockDelayMs: 1, Waits: true}),
		release(&storepb.Release{Path: "/ls/ny1/file", Owner: 1}), closeOwner(1, 40, 41), giveUp(42), giveUp(3),
		batch([]*storepb.Condition{{Path: "/ls/ny1/dir"}}, create(&storepb.Create{Path: "/ls/ny1/y", Type: 2})), closeSession(1),
	} {
		m.Session, m.Number = 1, uint64(50+i)
		m.Guard = &storepb.Guard{Path: "/ls/ny1/file", Mode: 2, Generation: 2}
		p.Commands = append(p.Commands, mutation(m))
	}
	return p
}
