package store

import (
	"errors"
	"fmt"
	"slices"

	"lockfs/store/storepb"
)

// ErrDiffers marks the errors of a replica whose records are not the ones that a majority has. It
// must not go on, and its records have to come from another replica.
var ErrDiffers = errors.New("the records are not those of the majority")

// A HashNote is the running hash that a state had at a CheckHash.
type HashNote struct {
	Index uint64 // of the entry with the command
	Hash  uint64
}

// hashNotesMax is how many notes a state keeps. The master asks for the notes of a CheckHash before
// it proposes the next, so that a few would do; the rest is for a replica that lags.
const hashNotesMax = 64

// HashNotes returns the notes of the last 64 CheckHash commands that this state applied, newest
// last. They are not part of the records: a state that was loaded or restored has none.
func (s *State) HashNotes() []HashNote { return slices.Clone(s.notes) }

// noteHash notes the running hash. Of two in one entry the later counts, on every replica.
func (s *State) noteHash() *storepb.Result {
	if last := len(s.notes) - 1; last >= 0 && s.notes[last].Index == s.applied {
		s.notes = s.notes[:last]
	}
	if len(s.notes) == hashNotesMax {
		s.notes = slices.Delete(s.notes, 0, 1)
	}
	s.notes = append(s.notes, HashNote{s.applied, s.Hash()})
	return &storepb.Result{}
}

// checkHashes fails with ErrDiffers where the proposal says that a majority noted another hash than
// this state did.
func (s *State) checkHashes(p *storepb.Proposal) error {
	for _, c := range p.Commands {
		check := c.GetCheckHash()
		if check == nil || check.Index == 0 {
			continue
		}
		for _, note := range s.notes {
			if note.Index == check.Index && note.Hash != check.Hash {
				return fmt.Errorf("%w: at entry %d the hash was %016x here and %016x there",
					ErrDiffers, note.Index, note.Hash, check.Hash)
			}
		}
	}
	return nil
}
