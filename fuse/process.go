package fuse

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// commandOf returns the name of a process or thread as ps shows it, or "". It serves people, and
// the one program that is told by its name (see OpenDir); never permission.
func commandOf(pid uint32) string {
	name, err := os.ReadFile(procFile(pid, "comm"))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(name))
}

// sameProcess reports whether two threads are of one process, as far as can be seen. Those of
// another pid namespace are all called 0.
func sameProcess(a, b uint32) bool {
	if a == b {
		return a != 0
	}
	one := processOf(a)
	return one != "" && one == processOf(b)
}

func processOf(thread uint32) string {
	text, _ := os.ReadFile(procFile(thread, "status"))
	_, after, _ := strings.Cut(string(text), "\nTgid:")
	id, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(id)
}

func procFile(pid uint32, name string) string {
	return "/proc/" + strconv.FormatUint(uint64(pid), 10) + "/" + name
}

// dying reports whether a signal is under way that will end the thread. A thread that cannot be
// looked at, of another pid namespace or gone, counts as dying: its wait then ends at once.
func dying(tid uint32) bool {
	text, err := os.ReadFile(procFile(tid, "status"))
	return err != nil || fatal(string(text))
}

// harmless are the signals that do not end a process that has made no arrangement for them.
var harmless = mask(unix.SIGCHLD) | mask(unix.SIGCONT) | mask(unix.SIGURG) | mask(unix.SIGWINCH) |
	mask(unix.SIGSTOP) | mask(unix.SIGTSTP) | mask(unix.SIGTTIN) | mask(unix.SIGTTOU)

func mask(sig unix.Signal) uint64 { return 1 << (sig - 1) }

// fatal reads the masks of /proc/<tid>/status: is there a pending signal that is neither blocked,
// ignored nor handled?
func fatal(status string) bool {
	masks := make(map[string]uint64)
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if strings.HasPrefix(name, "Sig") || name == "ShdPnd" {
			masks[name], _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	pending := masks["SigPnd"] | masks["ShdPnd"]
	return pending&^(masks["SigBlk"]|masks["SigIgn"]|masks["SigCgt"]|harmless) != 0
}
