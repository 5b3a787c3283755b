package main

import (
	"net"
	"sync"
)

// callers is a listener that knows whom it has accepted, and can hang up on them.
type callers struct {
	net.Listener

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func (l *callers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &caller{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close()
	} else {
		l.open[c] = struct{}{}
	}
	return c, nil
}

// close hangs up on all, and on who comes later.
func (l *callers) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.open {
		conn.(*caller).Conn.Close()
	}
}

// caller is one of them.
type caller struct {
	net.Conn
	of *callers
}

func (c *caller) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
