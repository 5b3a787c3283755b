package store

import (
	"fmt"

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
	if !field.IsList() {
		return checkKnown(value.Message())
	}
	for list, i := value.List(), 0; i < list.Len(); i++ {
		if err := checkKnown(list.Get(i).Message()); err != nil {
			return err
		}
	}
	return nil
}
