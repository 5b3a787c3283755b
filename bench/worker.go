package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"lockfs/internal/proccell"
)

// Some of what is measured happens between processes, so this program is also its own workers,
// under these names.
var workers = map[string]func() error{
	"echo":   serveEchoes,
	"fuse":   serveFUSE,
	"player": servePlays,
}

const workerVariable = "LOCKFS_BENCH_WORKER"

// asWorker returns the worker that this process is to be, if it is to be one.
func asWorker() (worker func() error, ok bool) {
	worker, ok = workers[os.Getenv(workerVariable)]
	return worker, ok
}

// startWorker starts this program as a worker, in a folder.
func startWorker(name, dir string) (*proccell.Talker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Dir = dir
	// A player that waits for a lock is not to be interrupted by the runtime, which would have its
	// call given up and made again.
	cmd.Env = append(os.Environ(), workerVariable+"="+name, "GODEBUG=asyncpreemptoff=1")
	return proccell.Talk(name, cmd)
}

// said is how a worker's answers start.
const said = "worker: "

// answer tells who started this worker.
func answer(v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Printf("%s%s\n", said, data)
	}
	return err
}

// hear waits for a worker's answer after mark.
func hear(ctx context.Context, t *proccell.Talker, mark int, v any) error {
	data, err := t.Hear(ctx, said, mark)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(data), v)
}

// ask asks a worker something, and waits for its answer.
func ask(ctx context.Context, t *proccell.Talker, question, v any) error {
	line, err := json.Marshal(question)
	if err != nil {
		return err
	}
	mark := t.Log.Mark()
	if err := t.Say(string(line)); err != nil {
		return err
	}
	return hear(ctx, t, mark, v)
}
