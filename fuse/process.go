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

// A process is one that locked: its id, and when it was started, since ids are given again. The zero
// process is unknown, and not the same as any.
type process struct {
	pid     uint32
	started string // in clock ticks after boot
}

func processNow(pid uint32) process {
	text, _ := os.ReadFile(procFile(pid, "stat"))
	// After the name, in brackets, which can hold anything.
	_, after, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
	const started = 19
	fields := strings.Fields(string(after))
	if pid == 0 || len(fields) <= started {
		return process{}
	}
	return process{pid, fields[started]}
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

// descriptorsMax bounds the descriptors of a process that are looked at.
const descriptorsMax = 4096

// hasOpen reports whether the process of a thread has a file of that inode number of a mount of lockfs
// open, by an open with those flags and at its beginning, as far as can be seen; where it cannot be
// seen it may. No file is asked: that would be a request to this mount.
func hasOpen(thread uint32, ino uint64, flags uint32) bool {
	folder := procFile(thread, "fdinfo")
	names, err := os.ReadDir(folder)
	if err != nil || len(names) > descriptorsMax {
		return true
	}
	for _, name := range names {
		text, _ := os.ReadFile(folder + "/" + name.Name()) // one that is closed meanwhile is not open
		d := descriptorOf(string(text))
		if d.ino == strconv.FormatUint(ino, 10) && d.pos == "0" && d.flags&keptFlags == flags&keptFlags && ours(thread, d.mount) {
			return true
		}
	}
	return false
}

// keptFlags are those of an open that its file keeps. (O_APPEND can be changed, which a shell that
// moves a descriptor to its place does not.)
const keptFlags = unix.O_ACCMODE | unix.O_APPEND | unix.O_SYNC

// descriptor is what /proc tells of one.
type descriptor struct {
	pos, mount, ino string
	flags           uint32
}

func descriptorOf(info string) (d descriptor) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "pos":
			d.pos = value
		case "mnt_id":
			d.mount = value
		case "ino":
			d.ino = value
		case "flags":
			flags, _ := strconv.ParseUint(value, 8, 32)
			d.flags = uint32(flags)
		}
	}
	return d
}

// ours reports whether a mount, by its number where the thread is, is one of lockfs.
func ours(thread uint32, mount string) bool {
	text, _ := os.ReadFile(procFile(thread, "mountinfo"))
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, mount+" ") {
			return strings.Contains(line, " - fuse.lockfs ")
		}
	}
	return false
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
