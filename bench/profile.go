package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"lockfs/internal/proccell"
)

// profile measures the rows of the library's locks once more, for longer, and writes CPU profiles of
// each replica and of the client, which is this process.
func (s *stage) profile(ctx context.Context, rows []row, o options, out io.Writer) error {
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	seconds := max(1, int((10*o.time).Round(time.Second)/time.Second))
	for _, r := range rows {
		if r.where != "library" || r.what != "lock" {
			continue
		}
		f, err := s.profileRow(ctx, r, o.profile, seconds)
		if err != nil {
			return fmt.Errorf("profile %s: %w", r.name(), err)
		}
		fmt.Fprintf(out, "\nprofiles of %s in %s: %d s, %.0f a second\n", r.name(), o.profile, seconds, f.Rate)
	}
	return nil
}

func (s *stage) profileRow(ctx context.Context, r row, dir string, seconds int) (f figures, err error) {
	master, err := s.cell.Master(ctx)
	if err != nil {
		return figures{}, err
	}
	path := func(who string) string {
		return filepath.Join(dir, strings.ReplaceAll(r.name(), " ", "-")+"-"+who+".pprof")
	}
	var fetches sync.WaitGroup
	errs := make([]error, len(s.cell.Replicas))
	for i, replica := range s.cell.Replicas {
		who := "follower-" + replica.Name
		if replica == master {
			who = "master"
		}
		fetches.Go(func() { errs[i] = fetchProfile(ctx, replica, seconds, path(who)) })
	}
	err = profileSelf(path("client"), func() error {
		f, err = r.run(ctx, time.Duration(seconds)*time.Second)
		return err
	})
	fetches.Wait()
	return f, errors.Join(append(errs, err)...)
}

// profileSelf writes a CPU profile of this process while f runs.
func profileSelf(path string, f func() error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return errors.Join(err, file.Close())
	}
	err = f()
	pprof.StopCPUProfile()
	return errors.Join(err, file.Close())
}

// fetchProfile has a replica profile itself.
func fetchProfile(ctx context.Context, r *proccell.Replica, seconds int, path string) error {
	address := r.Args[slices.Index(r.Args, "--http")+1]
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", address, seconds), nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("profile of %s: %s: %s", r.Name, answer.Status, data)
	}
	return os.WriteFile(path, data, 0o644)
}
