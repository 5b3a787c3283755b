package store

import (
	"cmp"
	"maps"
	"slices"
	"unicode/utf8"

	"lockfs"
	"lockfs/store/storepb"
)

// Bounds of what a session record holds, since all of it is copied when a number is done.
const (
	// MaxResults is how many results a session may leave unconfirmed. A mutation that would pass
	// it fails with ErrLimit, and its number stays open.
	MaxResults = 16384
	// maxResultBytes bounds the same results in bytes, once they are marshalled: those of batches are
	// as long as the batch.
	maxResultBytes = 16 << 20
	// maxSpans bounds the numbers that stay open while later ones are done.
	maxSpans = 16384
	// MaxNote bounds, in bytes, what is kept for people to read: notes, hosts, identities.
	MaxNote = 1024
)

func (s *State) createSession(c *storepb.CreateSession) (*storepb.Result, error) {
	if err := checkNotes(c.Identity, c.Host); err != nil {
		return nil, err
	}
	s.cell.lastSession++
	ses := &session{id: s.cell.lastSession, identity: c.Identity, host: c.Host,
		created: s.cell.time, caches: c.Caches}
	ses.header = s.hasher.sum(sessionKey, ses.head())
	s.setSession(ses.id, ses)
	return &storepb.Result{Session: ses.id}, nil
}

func checkNotes(notes ...string) error {
	for _, note := range notes {
		if len(note) > MaxNote || !utf8.ValidString(note) {
			return failed(lockfs.ErrInvalid, "a note, host or identity that is no text of at most %d bytes", MaxNote)
		}
	}
	return nil
}

func (s *State) expireSession(id uint64) (*storepb.Result, error) {
	if s.sessions[id] == nil {
		return nil, lockfs.ErrSession
	}
	s.endSession(id, func(uint64) bool { return true })
	return &storepb.Result{}, nil
}

func (s *State) closeSession(id uint64, c *storepb.CloseSession) (*storepb.Result, error) {
	s.endSession(id, func(owner uint64) bool { return slices.Contains(c.ExpiredOwners, owner) })
	return &storepb.Result{}, nil
}

// endSession frees the session's locks, as by expiry those of the owners that expired names, and
// ends it. Its ephemeral nodes are orphans from then on.
func (s *State) endSession(id uint64, expired func(owner uint64) bool) {
	for _, owner := range slices.Sorted(maps.Keys(s.held[id])) {
		for _, p := range slices.Sorted(maps.Keys(s.held[id][owner])) {
			if expired(owner) {
				s.expireLock(s.nodes[p], id, owner)
			} else {
				s.freeLock(s.nodes[p], id, owner)
			}
		}
	}
	s.setSession(id, nil)
}

// Done says how a number of a session ended: with a result, whose kind is ErrGivenUp if it was given
// up; nil if the client has confirmed that it knows. It returns false for a number that is open, and
// for a session that is not there.
func (s *State) Done(session, number uint64) (*storepb.Result, bool) {
	ses := s.sessions[session]
	if ses == nil || !contains(ses.done, number) {
		return nil, false
	}
	if i, found := ses.find(number); found {
		return ses.results[i].result, true
	}
	return nil, true
}

// find returns where the result of number is, or would be.
func (s *session) find(number uint64) (int, bool) {
	return slices.BinarySearchFunc(s.results, number, func(r saved, number uint64) int {
		return cmp.Compare(r.result.Number, number)
	})
}

// admit refuses mutations that have no number, or no room in the session record.
func admit(ses *session, m *storepb.Mutation) error {
	if m.Number == 0 {
		return failed(lockfs.ErrInvalid, "a mutation without a number")
	}
	if m.GetCloseSession() != nil {
		return nil
	}
	room := 1 + len(m.GetCloseOwner().GetNumbers())
	if m.GetGiveUp() != nil {
		room++
	}
	if len(ses.results)+room > MaxResults {
		return failed(lockfs.ErrLimit, "%d results of the session are not confirmed", len(ses.results))
	}
	if ses.resultBytes() > maxResultBytes {
		return failed(lockfs.ErrLimit, "%d bytes of results of the session are not confirmed", ses.resultBytes())
	}
	if len(ses.done)+room > maxSpans {
		return failed(lockfs.ErrLimit, "numbers before this one that are still open, in %d places", len(ses.done))
	}
	return nil
}

func (s *session) resultBytes() (sum int) {
	for _, r := range s.results {
		sum += r.size
	}
	return sum
}

// finish makes the result's number done, unless its session has just ended.
func (s *State) finish(session uint64, result *storepb.Result) {
	old := s.sessions[session]
	if old == nil {
		return
	}
	next := *old
	next.done = add(old.done, span{result.Number, result.Number})
	i, _ := old.find(result.Number)
	next.results = slices.Insert(slices.Clone(old.results), i, s.hasher.result(result))
	s.setSession(session, &next)
}

// confirm drops the results that the client has seen before it sent a mutation of that number. All
// numbers that it has seen an end of are done, though the end was not in the log: the master refuses
// much of itself, and a late copy must find its number closed. Left open, they would be as many
// gaps, and at last too many.
//
// Of more than confirmedMax ranges the rest is not looked at, and the client will confirm it again.
func (s *State) confirm(session, number uint64, confirmed []*storepb.Range) {
	old := s.sessions[session]
	next := *old
	var seen []span
	for _, r := range confirmed[:min(len(confirmed), confirmedMax)] {
		next.results = without(next.results, r.First, r.Last)
		if before := (span{max(r.First, 1), min(r.Last, number-1)}); number > 0 && before.first <= before.last && !covers(next.done, before) {
			seen = append(seen, before)
		}
	}
	if done := merge(next.done, seen); len(seen) > 0 && len(done) <= maxSpans {
		next.done = done
	}
	if len(next.results) < len(old.results) || !slices.Equal(next.done, old.done) {
		s.setSession(session, &next)
	}
}

// confirmedMax bounds what one mutation costs. Clients confirm some dozens of ranges at once.
const confirmedMax = 1024

// without returns the results but those numbered first to last, and never changes its argument.
// What clients confirm is mostly the front, which needs no copy.
func without(results []saved, first, last uint64) []saved {
	at := func(number uint64) int {
		i, _ := (&session{results: results}).find(number)
		return i
	}
	from, to := at(first), len(results)
	if last+1 != 0 {
		to = at(last + 1)
	}
	switch {
	case from >= to:
		return results
	case from == 0:
		return results[to:]
	}
	return slices.Concat(results[:from], results[to:])
}

// giveUp makes sure that target is never applied any more, or says how it ended.
func (s *State) giveUp(session, number, target uint64) (*storepb.Result, error) {
	if target == 0 || target == number {
		return nil, failed(lockfs.ErrInvalid, "number %d cannot be given up", target)
	}
	how, done := s.Done(session, target)
	switch {
	case !done:
		s.abandon(session, target)
		return &storepb.Result{}, nil
	case how == nil:
		return nil, failed(lockfs.ErrInvalid, "number %d is confirmed", target)
	case how.Kind == uint32(lockfs.ErrGivenUp):
		return &storepb.Result{}, nil
	case how.GivenUp != nil:
		// Or a client could build a tower of results in results.
		return nil, failed(lockfs.ErrInvalid, "number %d was itself a giving up", target)
	}
	return &storepb.Result{GivenUp: how}, nil
}

// abandon makes a number done whose mutation was not, and never will be.
func (s *State) abandon(session, number uint64) {
	s.finish(session, &storepb.Result{Number: number, Kind: uint32(lockfs.ErrGivenUp)})
}
