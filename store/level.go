package store

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"lockfs"
	"lockfs/store/storepb"
)

// Level is the highest level of commands and rules that this version knows. What a version adds is
// of a new level and waits until the cell has it: the master raises the cell's level, one at a time,
// when all members know the next.
const Level = 1

// knowledge is what a version knows.
type knowledge struct {
	level uint32
	// since holds the levels of the fields and kinds of commands that level 1 does not have yet.
	since map[protoreflect.FullName]uint32
}

var ours = knowledge{level: Level}

// PretendLevel has the states that are loaded from this file or restored to it know another level
// than this version does. It is for tests of how versions live together.
func (db *DB) PretendLevel(level uint32) { db.knows.level = level }

// Knows returns the highest level that this replica can be raised to: Level.
func (s *State) Knows() uint32 { return s.knows.level }

// needs returns the level of a command: the highest of what is set in it, at any depth; 0 where all
// of it is as old as cells are.
func (k knowledge) needs(m protoreflect.Message) (level uint32) {
	if len(k.since) == 0 {
		return 0
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		level = max(level, k.since[field.FullName()])
		if field.Message() != nil {
			for part := range messagesIn(field, value) {
				level = max(level, k.needs(part))
			}
		}
		return true
	})
	return level
}

// checkLevel refuses a command whose level the cell does not have yet.
func (s *State) checkLevel(c *storepb.Command) error {
	if level := s.knows.needs(c.ProtoReflect()); level > s.cell.level {
		return failed(lockfs.ErrInvalid, "a command of level %d, the cell is at level %d", level, s.cell.level)
	}
	return nil
}

func (s *State) raiseLevel(level uint32) (*storepb.Result, error) {
	if level != s.cell.level+1 {
		return nil, failed(lockfs.ErrInvalid, "the cell is at level %d, which is not raised to %d", s.cell.level, level)
	}
	s.cell.level = level
	return &storepb.Result{}, nil
}

// checkRaises fails where the proposal raises the cell past what this replica knows.
func (s *State) checkRaises(p *storepb.Proposal) error {
	level := max(s.cell.level, 1) // which a seed starts with
	for _, c := range p.Commands {
		if r := c.GetRaiseLevel(); r != nil && r.Level == level+1 {
			level = r.Level
		}
	}
	return s.knows.check(level)
}

func (k knowledge) check(level uint32) error {
	if level > k.level {
		return fmt.Errorf("the cell is at level %d, this version knows levels up to %d", level, k.level)
	}
	return nil
}
