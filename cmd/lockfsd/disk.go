package main

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"lockfs/master"
)

// roomBytes is what must be free for a master, and for a replica that had stepped aside to come
// back: some segments of the log, and a checkpoint.
const roomBytes = 24 << 20

// roomTime is how often a replica that stepped aside looks whether there is room again.
const roomTime = time.Second

// diskOf returns how the file system of a folder is. Where the system does not tell, it is full.
func diskOf(folder string) master.Disk {
	var s unix.Statfs_t
	if err := unix.Statfs(folder, &s); err != nil {
		return master.Disk{Low: true}
	}
	d := master.Disk{Free: int64(s.Bavail) * s.Bsize, Total: int64(s.Blocks) * s.Bsize}
	d.Low = d.Free < roomBytes
	return d
}

// tailBytes is how much of the log is kept for stragglers: on a disk of less than half a gigabyte so
// little that the log alone does not fill it.
func tailBytes(disk master.Disk) uint64 {
	return uint64(min(max(disk.Total/16, 1<<20), 32<<20))
}

// awaitRoom waits until there is room in the folder. It reports whether that came before ctx ended.
func awaitRoom(ctx context.Context, folder string, log *slog.Logger) bool {
	look := time.NewTicker(roomTime)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
		if disk := diskOf(folder); !disk.Low {
			log.Info("there is room again: this replica comes back", "free", disk.Free)
			return true
		}
	}
}
