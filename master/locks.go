package master

import (
	"slices"

	"lockfs"
	"lockfs/internal/clock"
	"lockfs/store"
	"lockfs/store/storepb"
)

// queue is who wants the lock of one node. It is there while somebody waits, or a proposal that
// may change the lock is under way.
type queue struct {
	node    store.NodeID
	waiters []*waiter // in order of their turn: conversions first, then by arrival

	changing int // proposals under way that may change the lock
	unsure   int // refusals to be confirmed
}

// waiter is an Acquire in a queue.
type waiter struct {
	call     *call
	queue    *queue
	session  uint64
	owner    uint64
	mode     lockfs.Mode
	since    clock.Instant
	converts bool // its owner holds the lock in another mode, and keeps it until it is granted
	proposed bool // its grant is under way
}

// queueOf returns the queue of a node, making it where there is none.
func (m *machine) queueOf(node store.NodeID) *queue {
	q, ok := m.queues[node.Path]
	if !ok || q.node != node {
		q = &queue{node: node}
		m.queues[node.Path] = q
	}
	return q
}

// tidy removes a queue that nobody needs.
func (m *machine) tidy(q *queue) {
	if len(q.waiters) == 0 && q.changing == 0 && q.unsure == 0 && m.queues[q.node.Path] == q {
		delete(m.queues, q.node.Path)
	}
}

// acquire grants a lock, or queues for it, or refuses.
func (m *machine) acquire(at moment, c *call, a *storepb.Acquire) {
	path := lockfs.Path(a.GetPath())
	st, err := m.state.Stat(path, a.GetInstance())
	if err != nil {
		m.end(c, refusal(c.mutation.GetNumber(), err))
		return
	}
	a.Instance = st.Instance // the one it will wait for
	w := &waiter{
		call: c, queue: m.queueOf(store.NodeID{Path: path, Instance: st.Instance}), since: at.now,
		session: c.mutation.GetSession(), owner: a.GetOwner(), mode: lockfs.Mode(a.GetMode()),
	}
	mode := m.heldMode(w)
	w.converts = mode != lockfs.Free && mode != w.mode
	switch {
	case mode == w.mode:
		m.try(at, w) // it has it already; the log says at which generation
	case !a.GetWaits():
		m.tryOrRefuse(at, w)
	case w.converts && w.mode == lockfs.Exclusive && w.queue.converting():
		m.end(c, refusal(c.mutation.GetNumber(), lockfs.ErrDeadlock))
		m.tidy(w.queue)
	default:
		m.enqueue(w)
		m.grant(at, w.queue)
		if !w.proposed {
			m.reply(c, nil)
		}
	}
}

// heldMode returns the mode in which a waiter's owner holds the lock now.
func (m *machine) heldMode(w *waiter) lockfs.Mode {
	lock, err := m.state.Lock(w.queue.node.Path, w.queue.node.Instance)
	if err != nil {
		return lockfs.Free
	}
	for _, h := range lock.Holders {
		if h.Session == w.session && h.Owner == w.owner {
			return lock.Mode
		}
	}
	return lockfs.Free
}

func (q *queue) converting() bool {
	return len(q.waiters) > 0 && q.waiters[0].converts && q.waiters[0].mode == lockfs.Exclusive
}

// try lets the log decide over an Acquire that does not wait.
func (m *machine) try(at moment, w *waiter) {
	m.propose(at, &pending{calls: []*call{w.call}, queues: []*queue{w.queue}}, mutation(w.call))
}

// tryOrRefuse decides over an Acquire that will not wait. To refuse is to say something of this
// moment, so the driver first confirms that this replica still leads, and then calls confirmed.
func (m *machine) tryOrRefuse(at moment, w *waiter) {
	if m.refused(w) == nil {
		m.try(at, w)
		return
	}
	m.unsure = append(m.unsure, w)
	w.queue.unsure++
}

// confirmed decides over an Acquire that did not look as if it could be granted.
func (m *machine) confirmed(at moment, w *waiter) {
	w.queue.unsure--
	if why := m.refused(w); why != nil {
		m.end(w.call, refusal(w.call.mutation.GetNumber(), why))
		m.tidy(w.queue)
		return
	}
	m.try(at, w)
}

// refused returns why an Acquire that does not wait cannot have the lock, as far as is known
// without the log. Nobody overtakes those who wait; and while a change of the lock is under way,
// an unlock perhaps that its caller sent a moment ago, only the log can tell.
func (m *machine) refused(w *waiter) error {
	if len(w.queue.waiters) > 0 && !w.converts {
		return lockfs.ErrBusy
	}
	if w.queue.changing > 0 {
		return nil
	}
	return m.blocked(w)
}

func (m *machine) blocked(w *waiter) error {
	return m.state.Blocked(w.queue.node.Path, w.queue.node.Instance, w.session, w.owner, w.mode)
}

// enqueue puts a waiter behind those who came before; a conversion comes before all who hold
// nothing, who may be waiting for it.
func (m *machine) enqueue(w *waiter) {
	q := w.queue
	at := len(q.waiters)
	if w.converts {
		at = 0
		for at < len(q.waiters) && (q.waiters[at].converts || q.waiters[at].proposed) {
			at++
		}
	}
	q.waiters = slices.Insert(q.waiters, at, w)
	w.call.waiter = w
	if m.waiting[w.session] == nil {
		m.waiting[w.session] = make(map[*waiter]bool)
	}
	m.waiting[w.session][w] = true
}

// dequeue removes a waiter from its queue.
func (m *machine) dequeue(w *waiter) {
	w.call.waiter = nil
	if i := slices.Index(w.queue.waiters, w); i >= 0 {
		w.queue.waiters = slices.Delete(w.queue.waiters, i, i+1)
	}
	delete(m.waiting[w.session], w)
	if len(m.waiting[w.session]) == 0 {
		delete(m.waiting, w.session)
	}
	m.tidy(w.queue)
}

// dismissQueue ends the waits for a node that is no more.
func (m *machine) dismissQueue(node store.NodeID) {
	q, ok := m.queues[node.Path]
	if !ok || q.node != node {
		return
	}
	for len(q.waiters) > 0 {
		c := q.waiters[0].call
		m.end(c, refusal(c.mutation.GetNumber(), lockfs.ErrStale))
	}
}

// grant proposes the lock to those whose turn it is, if they can have it as things stand. While a
// grant is under way nobody else is looked at.
func (m *machine) grant(at moment, q *queue) {
	if len(q.waiters) == 0 {
		m.tidy(q)
		return
	}
	if q.waiters[0].proposed {
		return
	}
	heirs := turn(q.waiters, func(w *waiter) bool { return m.blocked(w) == nil })
	if len(heirs) > 0 {
		m.proposeWith(at, nil, nil, []*queue{q}, heirs)
	}
}

// turn returns those at the head of a queue who can have the lock together: one, or shared ones
// in a row.
func turn(waiters []*waiter, free func(*waiter) bool) []*waiter {
	var heirs []*waiter
	for _, w := range waiters {
		if w.proposed || !free(w) || len(heirs) > 0 && w.mode == lockfs.Exclusive {
			break
		}
		heirs = append(heirs, w)
		if w.mode == lockfs.Exclusive {
			break
		}
	}
	return heirs
}

// proposeWith proposes a command, if there is one, and behind it, in the same entry, the grants
// to heirs. Of very many the rest have their turn when the first are settled.
func (m *machine) proposeWith(at moment, c *call, command *storepb.Command, queues []*queue, heirs []*waiter) {
	who := &pending{queues: queues}
	var commands []*storepb.Command
	if command != nil {
		who.calls, commands = append(who.calls, c), append(commands, command)
	}
	for _, w := range heirs[:min(len(heirs), commandsMax)] {
		w.proposed = true
		who.calls, commands = append(who.calls, w.call), append(commands, mutation(w.call))
	}
	m.propose(at, who, commands...)
}

// heirsOf returns who can have the lock of a node once the owner has let it go, as far as can be
// foreseen. Where it turns out otherwise they stay in the queue.
func (m *machine) heirsOf(q *queue, session, owner uint64) []*waiter {
	lock, err := m.state.Lock(q.node.Path, q.node.Instance)
	if err != nil || q.changing > 0 {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(lock.Holders), func(h store.Holder) bool {
		return h.Session == session && h.Owner == owner
	})
	if len(rest) == len(lock.Holders) {
		return nil
	}
	return turn(q.waiters, func(w *waiter) bool {
		alone := len(rest) == 1 && rest[0].Session == w.session && rest[0].Owner == w.owner
		return len(rest) == 0 && !w.converts || alone
	})
}

// release lets go of a lock and grants it to the next in the same entry.
func (m *machine) release(at moment, c *call, r *storepb.Release) {
	path := lockfs.Path(r.GetPath())
	st, err := m.state.Stat(path, r.GetInstance())
	if err != nil { // let the log say so: the node may be gone, and the lock with it
		m.propose(at, &pending{calls: []*call{c}}, mutation(c))
		return
	}
	q := m.queueOf(store.NodeID{Path: path, Instance: st.Instance})
	m.proposeWith(at, c, mutation(c), []*queue{q}, m.heirsOf(q, c.mutation.GetSession(), r.GetOwner()))
}

// closeOwner lets go of all that the owner holds and takes it out of all queues.
func (m *machine) closeOwner(at moment, c *call, o *storepb.CloseOwner) {
	session := c.mutation.GetSession()
	for _, w := range m.waitersOf(session) {
		if number := w.call.mutation.GetNumber(); w.owner == o.GetOwner() && !slices.Contains(o.GetNumbers(), number) {
			o.Numbers = append(o.Numbers, number)
		}
	}
	var queues []*queue
	var heirs []*waiter
	for _, h := range m.state.HeldBy(session) {
		if h.Owner != o.GetOwner() {
			continue
		}
		q := m.queueOf(h.Node)
		heirs = append(heirs, m.heirsOf(q, session, h.Owner)...)
		queues = append(queues, q)
	}
	for _, w := range m.waitersOf(session) {
		if w.owner == o.GetOwner() && !slices.Contains(queues, w.queue) {
			queues = append(queues, w.queue) // its place becomes free
		}
	}
	heirs = slices.DeleteFunc(heirs, func(w *waiter) bool { return w.session == session && w.owner == o.GetOwner() })
	m.proposeWith(at, c, mutation(c), queues, heirs)
}

// giveUp makes sure that a number is not done any more; its waiter's place becomes free.
func (m *machine) giveUp(at moment, c *call, g *storepb.GiveUp) {
	who := &pending{calls: []*call{c}}
	if open, ok := m.calls[callKey{c.mutation.GetSession(), g.GetNumber()}]; ok && open.waiter != nil {
		who.queues = []*queue{open.waiter.queue}
	}
	m.propose(at, who, mutation(c))
}

// settleWaiter takes the result of a grant, and reports whether the wait is over: where the lock
// went elsewhere first, or the turn was foreseen wrongly, it goes on.
func (m *machine) settleWaiter(w *waiter, result *storepb.Result) bool {
	w.proposed = false
	kind := lockfs.Kind(result.GetKind())
	return kind != lockfs.ErrBusy && kind != lockfs.ErrLockDelay
}

// ---- Lock-delays -----------------------------------------------------------------------------

type delayKey struct {
	path lockfs.Path
	mode lockfs.Mode
}

// startDelays lets lock-delays run from now. One that runs already is never made shorter.
func (m *machine) startDelays(at moment, delays []store.Delay) {
	for _, d := range delays {
		key := delayKey{d.Path, d.Mode}
		end := at.now.Add(d.LockDelay)
		if old, ok := m.delays.at(key); ok && old > end {
			end = old
		}
		m.delays.set(key, end)
	}
}

// endDelays has the marks removed whose delay has passed, and grants the locks that they kept.
func (m *machine) endDelays(at moment) {
	var paths []lockfs.Path
	for _, key := range m.delays.expired(at.now) {
		if !slices.Contains(paths, key.path) {
			paths = append(paths, key.path)
		}
	}
	for _, path := range paths {
		index, ok := m.passed(at, path)
		if !ok {
			continue // another mark of the name still runs, set before this one
		}
		command := &storepb.Command{Command: &storepb.Command_ClearDelay{
			ClearDelay: &storepb.ClearDelay{Path: string(path), Index: index}}}
		m.propose(at, &pending{calls: []*call{nil}}, command)
	}
}

// passed returns the highest index at or before which every mark of the name has had its delay.
func (m *machine) passed(at moment, path lockfs.Path) (index uint64, ok bool) {
	marks := m.state.DelaysOf(path)
	slices.SortFunc(marks, func(a, b store.Delay) int { return int(int64(a.Index) - int64(b.Index)) })
	for _, mark := range marks {
		end, known := m.delays.at(delayKey{path, mark.Mode})
		if !known || end > at.now {
			break
		}
		index, ok = mark.Index, true
	}
	return index, ok
}

// dropClearedDelays forgets the deadlines of marks that are gone from the records.
func (m *machine) dropClearedDelays(path lockfs.Path) {
	left := m.state.DelaysOf(path)
	for _, mode := range []lockfs.Mode{lockfs.Shared, lockfs.Exclusive} {
		if !slices.ContainsFunc(left, func(d store.Delay) bool { return d.Mode == mode }) {
			m.delays.remove(delayKey{path, mode})
		}
	}
}
