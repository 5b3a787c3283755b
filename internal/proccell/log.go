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

// Mark is the place where the next write will start.
func (l *Log) Mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.dropped + len(l.mu.kept)
}

// Await waits until text stands somewhere after mark.
func (l *Log) Await(ctx context.Context, text string, mark int) error {
	for {
		changed, found := l.look(text, mark)
		if found {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %q: %w", text, context.Cause(ctx))
		}
	}
}

func (l *Log) look(text string, mark int) (changed <-chan struct{}, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.changed == nil {
		l.mu.changed = make(chan struct{})
	}
	from := min(max(0, mark-l.mu.dropped), len(l.mu.kept))
	return l.mu.changed, bytes.Contains(l.mu.kept[from:], []byte(text))
}
