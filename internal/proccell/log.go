package proccell

import (
	"bytes"
	"context"
	"fmt"
	"sync"
)

// logBytes is how much of what a process said is kept at least: its latest.
const logBytes = 1 << 20

// Log collects what processes say. It is an io.Writer for any number of them.
type Log struct {
	mu struct {
		sync.Mutex
		kept    []byte
		dropped int           // bytes before kept
		changed chan struct{} // closed at the next write; nil while nobody waits
	}
}

// Write adds to the log. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.kept = append(l.mu.kept, p...)
	if len(l.mu.kept) > 2*logBytes {
		over := len(l.mu.kept) - logBytes
		l.mu.dropped += over
		l.mu.kept = append([]byte(nil), l.mu.kept[over:]...)
	}
	if l.mu.changed != nil {
		close(l.mu.changed)
		l.mu.changed = nil
	}
	return len(p), nil
}

// String returns what is kept.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.mu.kept)
}

// Tail returns the latest of it, for people.
func (l *Log) Tail() string {
	kept := l.String()
	return kept[max(0, len(kept)-2000):]
}

// Mark is the place where the next write will start.
func (l *Log) Mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.dropped + len(l.mu.kept)
}

// Await waits until text stands somewhere after mark.
func (l *Log) Await(ctx context.Context, text string, mark int) error {
	return l.await(ctx, mark, fmt.Sprintf("%q", text), func(said []byte) bool { return bytes.Contains(said, []byte(text)) })
}

// Line waits until a whole line that starts with start stands after mark, and returns the rest of
// the first one.
func (l *Log) Line(ctx context.Context, start string, mark int) (rest string, err error) {
	err = l.await(ctx, mark, fmt.Sprintf("a line with %q", start), func(said []byte) (found bool) {
		for line := range bytes.Lines(said) {
			after, starts := bytes.CutPrefix(line, []byte(start))
			if after, whole := bytes.CutSuffix(after, []byte("\n")); starts && whole {
				rest = string(after)
				return true
			}
		}
		return false
	})
	return rest, err
}

// await waits until what was said after mark satisfies found, which is asked again after each write.
func (l *Log) await(ctx context.Context, mark int, what string, found func(said []byte) bool) error {
	for {
		changed, said := l.look(mark, found)
		if said {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if _, said := l.look(mark, found); said { // said last, at the end of whoever ended ctx
				return nil
			}
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
}

func (l *Log) look(mark int, found func([]byte) bool) (<-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.changed == nil {
		l.mu.changed = make(chan struct{})
	}
	from := min(max(0, mark-l.mu.dropped), len(l.mu.kept))
	return l.mu.changed, found(l.mu.kept[from:])
}
