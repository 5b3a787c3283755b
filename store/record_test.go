package store

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lockfs"
	"lockfs/store/storepb"
)

// fullRecords is one of each kind, with every field set.
func fullRecords() []recorder {
	var h hasher
	acl := &lockfs.ACLNames{Read: "/ls/ny1/r", Write: "/ls/ny1/w", ChangeACL: "/ls/ny1/c"}
	root := &node{path: "/ls/ny1", kind: lockfs.Dir, instance: 1, checksum: new(node).sum(), acl: acl, mtime: 8,
		mode: lockfs.Exclusive, ownerSession: 9, contentGeneration: 3, lockGeneration: 4, aclGeneration: 5,
		holders: []holder{{session: 9, owner: 2, since: 3, delayMS: 4, note: "pid 5"}}}
	file := &node{path: "/ls/ny1/f", kind: lockfs.File, instance: 2, acl: acl, content: []byte("contents")}
	file.checksum = file.sum()
	ses := &session{id: 9, identity: "ann", host: "h1", created: 5, caches: true, done: []span{{1, 4}, {6, 6}},
		results: []saved{h.result(&storepb.Result{Number: 4, Kind: 3, Detail: "x"})}}
	return []recorder{
		&cell{name: testCell, clusterID: 1, epoch: 2, leaseMS: 3, graceMS: 4, level: 1,
			limits: lockfs.Limits{FileBytes: 1, Nodes: 2, Bytes: 3, Children: 4}, lastInstance: 6, lastSession: 7,
			contentFloor: 8, lockFloor: 9, aclFloor: 10, nodes: 2, bytes: 8, time: 11},
		&delay{path: "/ls/ny1/f", marks: []mark{{lockfs.Shared, 5, 6}}},
		root, file, ses,
	}
}

// A field that is forgotten on its way to the file or back from it would be lost with the first
// restart, and only there.
func TestNoFieldIsForgotten(t *testing.T) {
	set := map[protoreflect.FullName]bool{}
	l := newLoader(testCell, ours)
	for _, r := range fullRecords() {
		m := r.record()
		each(m.ProtoReflect(), func(m protoreflect.Message) {
			for fields, i := m.Descriptor().Fields(), 0; i < fields.Len(); i++ {
				name := fields.Get(i).FullName()
				set[name] = set[name] || m.Has(fields.Get(i))
			}
		})
		if _, err := l.add(marshal(nil, m)); err != nil {
			t.Fatal(err)
		}
	}
	for name, was := range set {
		if parent := name.Parent().Name(); !was && parent != "Result" && parent != "Stat" {
			t.Errorf("%s is not written", name)
		}
	}
	i := 0
	l.state.records(func(r recorder) bool {
		if want := fullRecords()[i].record(); !proto.Equal(r.record(), want) {
			t.Errorf("written %v\nread    %v", want, r.record())
		}
		i++
		return true
	})
	if i != len(fullRecords()) {
		t.Errorf("%d records of %d", i, len(fullRecords()))
	}
}

// Whatever differs in a record has to show in the running hash.
func TestHashCoversEveryField(t *testing.T) {
	var h hasher
	seen := map[uint64]string{}
	note := func(what string, hash uint64) {
		if other, twice := seen[hash]; twice {
			t.Errorf("%s hashes as %s", what, other)
		}
		seen[hash] = what
	}
	base := fullRecords()
	note("file", h.node(base[3].(*node)))
	note("cell", h.cell(base[0].(*cell)))
	note("marks", h.delay(base[1].(*delay)))
	note("file with other contents", func() uint64 {
		n := *base[3].(*node)
		n.setContent([]byte("other"))
		return h.node(&n)
	}())
	for what, change := range map[string]func(s *session){
		"session":              func(*session) {},
		"session of other id":  func(s *session) { s.id++ },
		"session of bob":       func(s *session) { s.identity = "bob" },
		"session elsewhere":    func(s *session) { s.host = "h2" },
		"session of later":     func(s *session) { s.created++ },
		"session, no caches":   func(s *session) { s.caches = false },
		"session, more done":   func(s *session) { s.done = []span{{1, 4}, {6, 7}} },
		"session, no results":  func(s *session) { s.results = nil },
		"session, results":     func(s *session) { s.results = append(s.results, s.results[0]) },
		"session, other kinds": func(s *session) { s.results = []saved{h.result(&storepb.Result{Number: 4, Kind: 2})} },
		// The words are the same, only where the ranges end and the results begin is not.
		"session, moved": func(s *session) {
			s.results, s.done = nil, append(s.done, span{s.results[0].print, s.results[0].print})
		},
	} {
		s := *base[4].(*session)
		change(&s)
		s.header = h.sum(sessionKey, s.head())
		note(what, h.session(&s))
	}
	note("cell a moment later", func() uint64 {
		c := *base[0].(*cell)
		c.time++
		return h.cell(&c)
	}())
}

func (n *node) sum() uint64 {
	c := node{}
	c.setContent(n.content)
	return c.checksum
}
