package store

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkKnown fails on a message that holds, at any depth, what this version does not know: a field
// more, or a oneof that is set to another kind. Whoever skipped such a command would have another
// state from then on than those who did not; whoever dropped such a field would write the record
// back without it.
func checkKnown(m protoreflect.Message) error {
	if !m.IsValid() {
		return fmt.Errorf("%s is missing", m.Descriptor().Name())
	}
	if len(m.GetUnknown()) > 0 {
		return fmt.Errorf("%s has a field or a kind that this version does not know", m.Descriptor().Name())
	}
	for oneofs, i := m.Descriptor().Oneofs(), 0; i < oneofs.Len(); i++ {
		if m.WhichOneof(oneofs.Get(i)) == nil {
			return fmt.Errorf("%s is of no kind that this version knows", m.Descriptor().Name())
		}
	}
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() != nil {
			err = checkField(field, value)
		}
		return err == nil
	})
	return err
}

func checkField(field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	for m := range messagesIn(field, value) {
		if err := checkKnown(m); err != nil {
			return err
		}
	}
	return nil
}

// messagesIn yields the messages that a field of messages holds: one, or those of a list.
func messagesIn(field protoreflect.FieldDescriptor, value protoreflect.Value) iter.Seq[protoreflect.Message] {
	return func(yield func(protoreflect.Message) bool) {
		if !field.IsList() {
			yield(value.Message())
			return
		}
		for list, i := value.List(), 0; i < list.Len(); i++ {
			if !yield(list.Get(i).Message()) {
				return
			}
		}
	}
}
