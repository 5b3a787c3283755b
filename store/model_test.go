package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockfs"
	"lockfs/store/storepb"
)

// A model is the rules of the store written down once more, as plainly as they can be: maps that
// are copied whole before each command, and no index, no hash, no way back.
type model struct {
	nodes    map[string]mnode
	marks    map[string]map[lockfs.Mode]mmark
	sessions map[uint64]map[uint64]mresult // by number, what is done
	floors   gens
	instance uint64
	session  uint64
	gone     []NodeID // of the present command, also what a batch made and deleted
	lost     []Loss
}

type gens struct{ content, lock, acl uint64 }

type mnode struct {
	dir      bool
	content  string
	acl      string
	owner    uint64
	instance uint64
	gens
	mode    lockfs.Mode
	holders []mholder
}

type mholder struct {
	session, owner uint64
	delay          int64
}

type mmark struct {
	delay int64
	index uint64
}

// mresult is how a number ended.
type mresult struct {
	kind       lockfs.Kind
	generation uint64 // of the lock, of an acquire
	mode       lockfs.Mode
	instance   uint64
	given      *mresult
	confirmed  bool
}

const (
	modelFileBytes = 12
	modelNodes     = 9
	modelBytes     = 40
	modelChildren  = 4
)

func newModel() *model {
	m := &model{nodes: map[string]mnode{}, marks: map[string]map[lockfs.Mode]mmark{}, sessions: map[uint64]map[uint64]mresult{}}
	m.instance = 1
	m.nodes["/ls/ny1"] = mnode{dir: true, instance: 1, gens: gens{1, 1, 1}}
	return m
}

func (m *model) clone() *model {
	c := *m
	c.nodes = maps.Clone(m.nodes)
	for p, n := range c.nodes {
		n.holders = slices.Clone(n.holders)
		c.nodes[p] = n
	}
	c.marks = map[string]map[lockfs.Mode]mmark{}
	for p, marks := range m.marks {
		c.marks[p] = maps.Clone(marks)
	}
	c.sessions = map[uint64]map[uint64]mresult{}
	for id, done := range m.sessions {
		c.sessions[id] = maps.Clone(done)
	}
	c.lost, c.gone = nil, nil
	return &c
}

// apply returns what becomes of the model by a command in entry index, and the result.
func (m *model) apply(index uint64, command *storepb.Command) (*model, mresult) {
	next := m.clone()
	switch c := command.Command.(type) {
	case *storepb.Command_CreateSession:
		next.session++
		next.sessions[next.session] = map[uint64]mresult{}
		return next, mresult{}
	case *storepb.Command_ExpireSession:
		if m.sessions[c.ExpireSession.Session] == nil {
			return next, mresult{kind: lockfs.ErrSession}
		}
		next.end(index, c.ExpireSession.Session, func(uint64) bool { return true })
		return next, mresult{}
	case *storepb.Command_ClearDelay:
		maps.DeleteFunc(next.marks[c.ClearDelay.Path], func(_ lockfs.Mode, k mmark) bool { return k.index <= c.ClearDelay.Index })
		return next, mresult{}
	case *storepb.Command_DeleteOrphan:
		o := c.DeleteOrphan
		n, there := m.nodes[o.Path]
		switch {
		case !there || n.instance != o.Instance:
			return next, mresult{kind: lockfs.ErrStale}
		case n.owner == 0 || m.sessions[n.owner] != nil:
			return next, mresult{kind: lockfs.ErrInvalid}
		case len(m.below(o.Path)) > 0:
			return next, mresult{kind: lockfs.ErrNotEmpty}
		}
		next.drop(o.Path)
		return next, mresult{instance: n.instance}
	case *storepb.Command_RaiseLevel: // which is known to none, or not the next
		return next, mresult{kind: lockfs.ErrInvalid}
	case *storepb.Command_CheckHash:
		return next, mresult{}
	}
	return m.mutate(index, command.GetMutation())
}

func (m *model) mutate(index uint64, mu *storepb.Mutation) (*model, mresult) {
	before := m.clone()
	done := before.sessions[mu.Session]
	if done == nil {
		return before, mresult{kind: lockfs.ErrSession}
	}
	for _, r := range mu.Confirmed {
		for number, result := range done {
			if r.First <= number && number <= r.Last {
				result.confirmed = true
				done[number] = result
			}
		}
		for number := max(r.First, 1); number <= r.Last && number < mu.Number; number++ {
			if _, is := done[number]; !is { // its client has seen the master refuse it
				done[number] = mresult{confirmed: true}
			}
		}
	}
	if result, is := done[mu.Number]; is {
		if result.confirmed {
			return before, mresult{kind: lockfs.ErrInvalid}
		}
		return before, result
	}
	next := before.clone()
	result := next.attempt(index, mu.Session, mu)
	if result.kind != 0 {
		next = before
	}
	waits := mu.GetAcquire().GetWaits() && (result.kind == lockfs.ErrBusy || result.kind == lockfs.ErrLockDelay)
	if next.sessions[mu.Session] != nil && !waits {
		next.sessions[mu.Session][mu.Number] = result
	}
	return next, result
}

func fails(kind lockfs.Kind) mresult { return mresult{kind: kind} }

func (m *model) attempt(index, session uint64, mu *storepb.Mutation) mresult {
	if g := mu.Guard; g != nil {
		n := m.nodes[g.Path]
		writes := mu.GetCreate() != nil || mu.GetDelete() != nil || mu.GetEdit() != nil || mu.GetSetAcl() != nil ||
			mu.GetSetPermanence() != nil || mu.GetRename() != nil || mu.GetBatch() != nil
		if n.mode == lockfs.Free || n.mode != lockfs.Mode(g.Mode) || n.lock != g.Generation || n.mode == lockfs.Shared && writes {
			return fails(lockfs.ErrSequencer)
		}
	}
	switch op := mu.Op.(type) {
	case *storepb.Mutation_Create:
		return m.create(session, op.Create)
	case *storepb.Mutation_Delete:
		return m.remove(op.Delete)
	case *storepb.Mutation_Edit:
		return m.edit(op.Edit)
	case *storepb.Mutation_SetAcl:
		n, kind := m.at(op.SetAcl.Path, op.SetAcl.Instance)
		if kind == 0 && n.acl != op.SetAcl.Acl.Write {
			n.acl = op.SetAcl.Acl.Write
			n.gens.acl++
			m.nodes[op.SetAcl.Path] = n
		}
		return mresult{kind: kind, instance: n.instance}
	case *storepb.Mutation_SetPermanence:
		return m.setPermanence(session, op.SetPermanence)
	case *storepb.Mutation_Rename:
		return m.rename(op.Rename)
	case *storepb.Mutation_Acquire:
		return m.acquire(session, op.Acquire)
	case *storepb.Mutation_Release:
		return m.release(session, op.Release)
	case *storepb.Mutation_CloseOwner:
		for _, number := range op.CloseOwner.Numbers {
			if _, done := m.sessions[session][number]; !done {
				m.sessions[session][number] = fails(lockfs.ErrGivenUp)
			}
		}
		for p, n := range m.nodes {
			m.nodes[p] = n.without(session, op.CloseOwner.Owner)
		}
		return mresult{}
	case *storepb.Mutation_GiveUp:
		return m.giveUp(session, mu.Number, op.GiveUp.Number)
	case *storepb.Mutation_CloseSession:
		m.end(index, session, func(owner uint64) bool { return slices.Contains(op.CloseSession.ExpiredOwners, owner) })
		return mresult{}
	case *storepb.Mutation_Batch:
		for _, c := range op.Batch.Conditions {
			if n, there := m.nodes[c.Path]; c.Absent && there {
				return fails(lockfs.ErrExist)
			} else if _, kind := m.at(c.Path, c.Instance); !c.Absent && kind != 0 {
				return fails(kind)
			} else if c.ContentGeneration != 0 && n.gens.content != c.ContentGeneration && !c.Absent {
				return fails(lockfs.ErrChanged)
			}
		}
		for _, one := range op.Batch.Mutations {
			if r := m.attempt(index, session, one); r.kind != 0 {
				return r
			}
		}
		return mresult{}
	}
	panic("no such mutation")
}

func (m *model) at(p string, instance uint64) (mnode, lockfs.Kind) {
	n, there := m.nodes[p]
	switch {
	case instance != 0 && (!there || n.instance != instance):
		return mnode{}, lockfs.ErrStale
	case there:
		return n, 0
	}
	for above := parentOf(p); above != "/ls"; above = parentOf(above) {
		if n, there := m.nodes[above]; there && !n.dir {
			return mnode{}, lockfs.ErrNotDir
		}
	}
	return mnode{}, lockfs.ErrNotExist
}

func parentOf(p string) string { return p[:strings.LastIndexByte(p, '/')] }

func (m *model) below(p string) (children []string) {
	for q := range m.nodes {
		if parentOf(q) == p {
			children = append(children, q)
		}
	}
	return children
}

func (m *model) bytes() (sum int64) {
	for _, n := range m.nodes {
		sum += int64(len(n.content))
	}
	return sum
}

// add makes a node in a directory.
func (m *model) add(p string, n mnode) mresult {
	dir, kind := m.at(parentOf(p), 0)
	switch {
	case kind != 0:
		return fails(kind)
	case !dir.dir:
		return fails(lockfs.ErrNotDir)
	case len(n.content) > modelFileBytes:
		return fails(lockfs.ErrTooLarge)
	case len(m.nodes) >= modelNodes, m.bytes()+int64(len(n.content)) > modelBytes && n.content != "", len(m.below(parentOf(p))) >= modelChildren:
		return fails(lockfs.ErrNoSpace)
	case dir.owner != 0 && n.owner == 0:
		return fails(lockfs.ErrInvalid)
	}
	m.instance++
	n.instance = m.instance
	n.gens = gens{m.floors.content + 1, m.floors.lock + 1, m.floors.acl + 1}
	m.nodes[p] = n
	m.touch(parentOf(p))
	return mresult{instance: n.instance}
}

func (m *model) touch(p string) {
	dir := m.nodes[p]
	dir.gens.content++
	m.nodes[p] = dir
}

// drop deletes a node that has no children.
func (m *model) drop(p string) {
	n := m.nodes[p]
	for _, h := range n.holders {
		m.lost = append(m.lost, Loss{NodeID{lockfs.Path(p), n.instance}, h.session, h.owner})
	}
	m.gone = append(m.gone, NodeID{lockfs.Path(p), n.instance})
	m.floors = gens{max(m.floors.content, n.gens.content), max(m.floors.lock, n.gens.lock), max(m.floors.acl, n.gens.acl)}
	delete(m.nodes, p)
	m.touch(parentOf(p))
}

func (m *model) create(session uint64, c *storepb.Create) mresult {
	if n, there := m.nodes[c.Path]; there {
		switch {
		case c.Exclusive:
			return fails(lockfs.ErrExist)
		case n.dir && c.Type == 1:
			return fails(lockfs.ErrIsDir)
		case !n.dir && c.Type == 2:
			return fails(lockfs.ErrNotDir)
		}
		return mresult{instance: n.instance}
	}
	n := mnode{dir: c.Type == 2, content: string(c.Content), acl: m.nodes[parentOf(c.Path)].acl}
	if c.Ephemeral {
		n.owner = session
	}
	return m.add(c.Path, n)
}

func (m *model) remove(d *storepb.Delete) mresult {
	n, kind := m.at(d.Path, d.Instance)
	switch {
	case kind != 0:
		return fails(kind)
	case d.Type == 1 && n.dir:
		return fails(lockfs.ErrIsDir)
	case d.Type == 2 && !n.dir:
		return fails(lockfs.ErrNotDir)
	case d.Path == "/ls/ny1":
		return fails(lockfs.ErrInvalid)
	case len(m.below(d.Path)) > 0:
		return fails(lockfs.ErrNotEmpty)
	}
	m.drop(d.Path)
	return mresult{instance: n.instance}
}

func (m *model) edit(e *storepb.Edit) mresult {
	n, kind := m.at(e.Path, e.Instance)
	switch {
	case kind != 0:
		return fails(kind)
	case n.dir:
		return fails(lockfs.ErrIsDir)
	case e.IfGeneration != 0 && e.IfGeneration != n.gens.content:
		return fails(lockfs.ErrChanged)
	}
	was := len(n.content)
	for _, change := range e.Changes {
		switch c := change.Change.(type) {
		case *storepb.Change_Append:
			n.content += string(c.Append)
		case *storepb.Change_Truncate:
			n.content = (n.content + strings.Repeat("\x00", modelFileBytes+2))[:c.Truncate]
		case *storepb.Change_Extend:
			n.content += strings.Repeat("\x00", max(0, int(c.Extend)-len(n.content)))
		case *storepb.Change_WriteAt:
			if at, data := int(c.WriteAt.Offset), string(c.WriteAt.Data); data != "" {
				padded := n.content + strings.Repeat("\x00", max(0, at+len(data)-len(n.content)))
				n.content = padded[:at] + data + padded[at+len(data):]
			}
		}
		if len(n.content) > modelFileBytes {
			return fails(lockfs.ErrTooLarge)
		}
	}
	return m.write(e.Path, n, was)
}

func (m *model) write(p string, n mnode, was int) mresult {
	if len(n.content) > was && m.bytes()-int64(was)+int64(len(n.content)) > modelBytes {
		return fails(lockfs.ErrNoSpace)
	}
	n.gens.content++
	m.nodes[p] = n
	return mresult{instance: n.instance}
}

func (m *model) setPermanence(session uint64, p *storepb.SetPermanence) mresult {
	n, kind := m.at(p.Path, p.Instance)
	if kind != 0 {
		return fails(kind)
	}
	was := n.owner
	n.owner = 0
	if p.Ephemeral {
		n.owner = session
	}
	if was != n.owner {
		if p.Path == "/ls/ny1" || n.owner == 0 && m.nodes[parentOf(p.Path)].owner != 0 {
			return fails(lockfs.ErrInvalid)
		}
		for _, child := range m.below(p.Path) {
			if n.owner != 0 && m.nodes[child].owner == 0 {
				return fails(lockfs.ErrInvalid)
			}
		}
	}
	m.nodes[p.Path] = n
	return mresult{instance: n.instance}
}

func (m *model) rename(r *storepb.Rename) mresult {
	source, kind := m.at(r.From, r.FromInstance)
	if kind != 0 {
		return fails(kind)
	}
	target, there := m.nodes[r.To]
	switch {
	case r.ToInstance != 0 && target.instance != r.ToInstance:
		return fails(lockfs.ErrStale)
	case source.dir:
		return fails(lockfs.ErrIsDir)
	case there && r.NoReplace:
		return fails(lockfs.ErrExist)
	case there && target.dir:
		return fails(lockfs.ErrIsDir)
	case r.From == r.To:
		return mresult{instance: source.instance}
	case there:
		m.drop(r.From)
		was := len(target.content)
		target.content = source.content
		return m.write(r.To, target, was)
	}
	if dir, kind := m.at(parentOf(r.To), 0); kind != 0 {
		return fails(kind)
	} else if !dir.dir {
		return fails(lockfs.ErrNotDir)
	}
	m.drop(r.From)
	return m.add(r.To, mnode{content: source.content, acl: source.acl, owner: source.owner})
}

func (n mnode) without(session, owner uint64) mnode {
	n.holders = slices.DeleteFunc(slices.Clone(n.holders), func(h mholder) bool { return h.session == session && h.owner == owner })
	if len(n.holders) == 0 {
		n.mode = lockfs.Free
	}
	return n
}

func (m *model) acquire(session uint64, a *storepb.Acquire) mresult {
	n, kind := m.at(a.Path, a.Instance)
	if kind != 0 {
		return fails(kind)
	}
	mode, rest := lockfs.Mode(a.Mode), n.without(session, a.Owner)
	if len(rest.holders) < len(n.holders) && n.mode == mode {
		return mresult{generation: n.gens.lock, mode: mode, instance: n.instance}
	}
	if len(rest.holders) > 0 && (mode == lockfs.Exclusive || n.mode == lockfs.Exclusive) {
		return fails(lockfs.ErrBusy)
	}
	for marked := range m.marks[a.Path] {
		if mode == lockfs.Exclusive || marked == lockfs.Exclusive {
			return fails(lockfs.ErrLockDelay)
		}
	}
	if n.mode != mode {
		n.gens.lock++
	}
	n.mode = mode
	n.holders = append(rest.holders, mholder{session, a.Owner, a.LockDelayMs})
	m.nodes[a.Path] = n
	return mresult{generation: n.gens.lock, mode: mode, instance: n.instance}
}

func (m *model) release(session uint64, r *storepb.Release) mresult {
	n, kind := m.at(r.Path, r.Instance)
	if kind != 0 {
		return fails(kind)
	}
	rest := n.without(session, r.Owner)
	if len(rest.holders) == len(n.holders) {
		return fails(lockfs.ErrNotHeld)
	}
	m.nodes[r.Path] = rest
	return mresult{generation: n.gens.lock, instance: n.instance}
}

func (m *model) giveUp(session, number, target uint64) mresult {
	if target == 0 || target == number {
		return fails(lockfs.ErrInvalid)
	}
	result, done := m.sessions[session][target]
	switch {
	case !done:
		m.sessions[session][target] = fails(lockfs.ErrGivenUp)
		return mresult{}
	case result.confirmed, result.given != nil:
		return fails(lockfs.ErrInvalid)
	case result.kind == lockfs.ErrGivenUp:
		return mresult{}
	}
	return mresult{given: &result}
}

func (m *model) end(index, session uint64, expired func(owner uint64) bool) {
	for p, n := range m.nodes {
		for _, h := range n.holders {
			if h.session != session {
				continue
			}
			m.nodes[p] = m.nodes[p].without(session, h.owner)
			if !expired(h.owner) {
				continue
			}
			m.lost = append(m.lost, Loss{NodeID{lockfs.Path(p), n.instance}, session, h.owner})
			if h.delay > 0 {
				if m.marks[p] == nil {
					m.marks[p] = map[lockfs.Mode]mmark{}
				}
				m.marks[p][n.mode] = mmark{max(h.delay, m.marks[p][n.mode].delay), index}
			}
		}
	}
	delete(m.sessions, session)
}

func (m *model) orphans() (list []NodeID) {
	for p, n := range m.nodes {
		if n.owner != 0 && m.sessions[n.owner] == nil && len(m.below(p)) == 0 {
			list = append(list, NodeID{lockfs.Path(p), n.instance})
		}
	}
	slices.SortFunc(list, NodeID.compare)
	return list
}

// effects tells them by comparing the model before and after.
func (m *model) effects(next *model, index uint64) Effects {
	e := Effects{Deleted: next.gone, Lost: next.lost}
	for _, id := range next.gone {
		e.Changed = append(e.Changed, id.Path)
	}
	for p := range union(m.nodes, next.nodes) {
		a, before := m.nodes[p]
		b, after := next.nodes[p]
		if before != after || a.instance != b.instance || a.gens.content != b.gens.content ||
			a.gens.acl != b.gens.acl || a.owner != b.owner {
			e.Changed = append(e.Changed, lockfs.Path(p))
		}
		cleared := len(m.marks[p]) > 0 && fmt.Sprint(m.marks[p]) != fmt.Sprint(next.marks[p])
		if a.instance == b.instance && (cleared || a.gens.lock != b.gens.lock || !slices.Equal(a.holders, b.holders)) {
			e.Locks = append(e.Locks, lockfs.Path(p))
		}
	}
	for p, marks := range next.marks {
		for mode, k := range marks {
			if k.index == index {
				e.Delays = append(e.Delays, Delay{lockfs.Path(p), mode, millis(k.delay), index})
			}
		}
	}
	for id := range m.sessions {
		if next.sessions[id] == nil {
			e.Ended = append(e.Ended, id)
		}
	}
	was := m.orphans()
	for _, id := range next.orphans() {
		if !slices.Contains(was, id) {
			e.Orphans = append(e.Orphans, id)
		}
	}
	e.tidy()
	return e
}

func union[V any](a, b map[string]V) map[string]bool {
	all := map[string]bool{}
	for p := range a {
		all[p] = true
	}
	for p := range b {
		all[p] = true
	}
	return all
}

// String is everything in a model, or of a state, that the two must agree on.
func (m *model) String() string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[p]
		fmt.Fprintf(&b, "%s dir=%v %q acl=%s owner=%d #%d %v %v", p, n.dir, n.content, n.acl, n.owner, n.instance, n.gens, n.mode)
		for _, h := range n.holders {
			fmt.Fprintf(&b, " %d/%d/%d", h.session, h.owner, h.delay)
		}
		children := m.below(p)
		slices.Sort(children)
		fmt.Fprintf(&b, " %v\n", children)
	}
	for _, p := range slices.Sorted(maps.Keys(m.marks)) {
		for _, mode := range slices.Sorted(maps.Keys(m.marks[p])) {
			fmt.Fprintf(&b, "mark %s %v %d %d\n", p, mode, m.marks[p][mode].delay, m.marks[p][mode].index)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.sessions)) {
		fmt.Fprintf(&b, "session %d", id)
		for _, number := range slices.Sorted(maps.Keys(m.sessions[id])) {
			r := m.sessions[id][number]
			if r.confirmed {
				fmt.Fprintf(&b, " %d:confirmed", number)
			} else {
				fmt.Fprintf(&b, " %d:%d", number, r.kind)
			}
		}
		b.WriteByte('\n')
		for _, h := range m.heldBy(id) {
			fmt.Fprintf(&b, "  %v\n", h)
		}
	}
	fmt.Fprintf(&b, "orphans %v nodes=%d bytes=%d", m.orphans(), len(m.nodes), m.bytes())
	return b.String()
}

func (m *model) heldBy(session uint64) (list []Held) {
	for p, n := range m.nodes {
		for _, h := range n.holders {
			if h.session == session {
				list = append(list, Held{NodeID{lockfs.Path(p), n.instance}, h.owner, n.mode, n.gens.lock})
			}
		}
	}
	slices.SortFunc(list, func(a, b Held) int {
		return cmp.Or(a.Node.compare(b.Node), cmp.Compare(a.Owner, b.Owner))
	})
	return list
}
