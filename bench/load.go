package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// figures are what one row was in one round. They cross from worker processes as JSON.
type figures struct {
	Count    int // operations measured
	P50, P99 time.Duration
	Rate     float64 // operations a second
}

func figuresOf(took []time.Duration, elapsed time.Duration) figures {
	slices.Sort(took)
	n := len(took)
	return figures{Count: n, P50: took[n/2], P99: took[n*99/100], Rate: float64(n) / elapsed.Seconds()}
}

// load has clients, counted from 0, call op again and again: a fifth of d to warm up, then d with
// every call timed, and one call each at least. It fails when ctx ends.
func load(ctx context.Context, clients int, d time.Duration, op func(client int) error) (figures, error) {
	begin := time.Now().Add(d / 5)
	end := begin.Add(d)
	took := make([][]time.Duration, clients)
	err := together(clients, func(client int) error {
		for {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			began := time.Now()
			if began.After(end) && len(took[client]) > 0 {
				return nil
			}
			if err := op(client); err != nil {
				return err
			}
			if began.After(begin) {
				took[client] = append(took[client], time.Since(began))
			}
		}
	})
	if err != nil {
		return figures{}, err
	}
	return figuresOf(slices.Concat(took...), time.Since(begin)), nil
}

// together calls f for each client at once, and waits for all.
func together(clients int, f func(client int) error) error {
	var all sync.WaitGroup
	errs := make([]error, clients)
	for client := range clients {
		all.Go(func() { errs[client] = f(client) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// passRound has clients pass one lock round for d, each once at least.
func passRound(clients int, d time.Duration, acquire, release func(client int) error) (figures, error) {
	b := baton{holder: nobody, last: nobody}
	began := time.Now()
	err := together(clients, func(client int) error {
		for first := true; first || time.Since(began) < d; first = false {
			if err := acquire(client); err != nil {
				return err
			}
			if err := b.taken(client, time.Now()); err != nil {
				return err
			}
			b.letGo(client)
			if err := release(client); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return figures{}, err
	}
	return figuresOf(b.took, time.Since(began)), nil
}

// baton is who has the lock that goes round. It has a mutex, although the lock should be enough.
type baton struct {
	mu       sync.Mutex
	holder   int
	last     int // who held before
	released time.Time
	took     []time.Duration // from one client to another
}

const nobody = -1

func (b *baton) taken(client int, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holder != nobody {
		return fmt.Errorf("clients %d and %d hold the lock at once", b.holder, client)
	}
	if b.last != nobody && b.last != client {
		b.took = append(b.took, now.Sub(b.released))
	}
	b.holder = client
	return nil
}

func (b *baton) letGo(client int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holder, b.last, b.released = nobody, client, time.Now()
}
