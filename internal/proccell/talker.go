package proccell

import (
	"context"
	"fmt"
	"io"
	"os/exec"
)

// Talker is a program that is told lines on its standard input, and answers with lines.
type Talker struct {
	*Process
	input io.WriteCloser
}

// Talk starts cmd, which must have no input and no outputs of its own.
func Talk(name string, cmd *exec.Cmd) (*Talker, error) {
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	process, err := Launch(name, cmd, nil)
	if err != nil {
		return nil, err
	}
	return &Talker{process, input}, nil
}

// Say tells the program a line.
func (t *Talker) Say(line string) error {
	if _, err := fmt.Fprintln(t.input, line); err != nil {
		return fmt.Errorf("%s: %w; it said %q", t.Name, err, t.Log.Tail())
	}
	return nil
}

// Hear waits until the program has said a line that starts with start, after mark, and returns the
// rest of the line.
func (t *Talker) Hear(ctx context.Context, start string, mark int) (rest string, err error) {
	ctx, cancel := t.untilEnd(ctx)
	defer cancel()
	if rest, err = t.Log.Line(ctx, start, mark); err != nil {
		err = fmt.Errorf("%s: %w; it said %q", t.Name, err, t.Log.Tail())
	}
	return rest, err
}

// Ask tells the program a line, and hears the answer that starts with start.
func (t *Talker) Ask(ctx context.Context, line, start string) (rest string, err error) {
	mark := t.Log.Mark()
	if err := t.Say(line); err != nil {
		return "", err
	}
	return t.Hear(ctx, start, mark)
}
