package raft

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"lockfs/raft/raftrpc"
)

// segmentBytes is where the log goes on in a new file. The next one is allocated in advance, so an
// empty log takes two of them. The package wal has the size in a variable of the whole process.
const segmentBytes = 8 << 20

var setSegmentBytes = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// A walLog is a log in etcd's write-ahead log: a folder of segments, each named by its number and
// by the index of its first entry, each a sequence of records with a checksum that runs over all
// records from the first segment on.
//
// The kinds of record are: the owner, at the head of each segment; the running checksum, likewise;
// entries; hard states; and marks, which say that the machine has all up to an index durable
// elsewhere. Reading begins at a mark.
type walLog struct {
	tail
	dir string
	wal *wal.WAL
}

// OpenWAL opens the log in the folder dir, which holds nothing else, or makes one there. What a
// crash tore off at its end is cut away: no Append that returned is in that. Any other damage is
// refused, and so is a log of another cluster or member.
func OpenWAL(dir string, clusterID, id uint64, logger *slog.Logger) (Storage, error) {
	setSegmentBytes()
	lg := zap.New(slogCore{logger})
	owner := &raftrpc.LogOwner{ClusterId: clusterID, MemberId: id}
	var l *walLog
	err := errors.Join(refuseForeign(dir), removeLeftovers(dir))
	if err == nil && !wal.Exist(dir) {
		err = createWAL(lg, dir, owner)
	}
	if err == nil {
		l, err = openWAL(lg, dir, owner)
	}
	if err != nil {
		return nil, fmt.Errorf("open the log in %s: %w", dir, err)
	}
	return l, nil
}

// refuseForeign refuses a folder in which there are files but no log, because making one removes
// them all.
func refuseForeign(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(files) > 0 && !wal.Exist(dir) {
		return fmt.Errorf("the folder holds other files (%s) and no log", files[0].Name())
	}
	return err
}

// removeLeftovers removes what wal.Repair keeps of a segment whose torn end it cut away.
func removeLeftovers(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.broken"))
	for _, name := range old {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

func createWAL(lg *zap.Logger, dir string, owner *raftrpc.LogOwner) error {
	metadata, err := proto.MarshalOptions{Deterministic: true}.Marshal(owner)
	if err != nil {
		return err
	}
	w, err := wal.Create(lg, dir, metadata)
	if err != nil {
		return err
	}
	return w.Close()
}

func openWAL(lg *zap.Logger, dir string, owner *raftrpc.LogOwner) (*walLog, error) {
	found, err := surveyLocked(dir)
	if err != nil {
		return nil, err
	}
	if err := checkOwner(found.owner, owner); err != nil {
		return nil, err
	}
	if found.torn && !wal.Repair(lg, dir) {
		return nil, errors.New("cutting away its torn end failed")
	}
	start, err := found.start()
	if err != nil {
		return nil, err
	}
	w, err := wal.Open(lg, dir, start)
	if err != nil {
		return nil, err
	}
	l, err := readWAL(w, dir, start)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return l, removeLeftovers(dir)
}

// surveyLocked looks through the log while no other process can have it open.
func surveyLocked(dir string) (*survey, error) {
	names, err := segments(dir)
	if err != nil {
		return nil, err
	}
	last, err := fileutil.TryLockFile(filepath.Join(dir, names[len(names)-1]), os.O_RDWR, fileutil.PrivateFileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, errors.New("another process has it open")
	}
	if err != nil {
		return nil, err
	}
	found, err := surveySegments(dir, names)
	return found, errors.Join(err, last.Close())
}

func checkOwner(metadata []byte, want *raftrpc.LogOwner) error {
	if metadata == nil {
		return fmt.Errorf("%w: it does not say whose it is", ErrDamaged)
	}
	have := new(raftrpc.LogOwner)
	if err := proto.Unmarshal(metadata, have); err != nil {
		return fmt.Errorf("read whose log it is: %w", err)
	}
	if !proto.Equal(have, want) {
		return fmt.Errorf("it belongs to member %d of cluster %x, and this is member %d of cluster %x",
			have.MemberId, have.ClusterId, want.MemberId, want.ClusterId)
	}
	return nil
}

// readWAL reads the log from start on, after which it can be written.
func readWAL(w *wal.WAL, dir string, start *walpb.Snapshot) (*walLog, error) {
	_, state, entries, err := w.ReadAll()
	if err != nil {
		return nil, err
	}
	t, err := newTail(&raftpb.SnapshotMetadata{
		Index: new(start.GetIndex()), Term: new(start.GetTerm()), ConfState: start.GetConfState(),
	})
	if err != nil {
		return nil, err
	}
	if err := t.append(state, entries); err != nil {
		return nil, err
	}
	// A new segment begins with the hard state, but the package does not remember the one that it
	// has just read. Writing it once more makes it.
	if err := w.Save(state, nil); err != nil {
		return nil, err
	}
	return &walLog{tail: t, dir: dir, wal: w}, nil
}

func (l *walLog) Append(state *raftpb.HardState, entries []*raftpb.Entry) error {
	if err := l.wal.Save(state, entries); err != nil {
		return fmt.Errorf("write to the log in %s: %w", l.dir, err)
	}
	return l.append(state, entries)
}

func (l *walLog) Mark(at *raftpb.SnapshotMetadata) error {
	kind, err := l.kindOf(at)
	if err != nil || kind == markOld {
		return err
	}
	mark := &walpb.Snapshot{Index: at.Index, Term: at.Term, ConfState: at.ConfState}
	if err := l.wal.SaveSnapshot(mark); err != nil {
		return fmt.Errorf("write a mark to the log in %s: %w", l.dir, err)
	}
	return l.mark(at)
}

// Compact removes whole segments. What stays of the others is dropped from memory only.
func (l *walLog) Compact(index uint64) error {
	if err := l.compact(index); err != nil {
		return err
	}
	if err := l.removeBefore(index + 1); err != nil {
		return fmt.Errorf("remove old segments of the log in %s: %w", l.dir, err)
	}
	return nil
}

// removeBefore removes the segments before the one that holds entry first, the oldest first, so
// that a crash leaves no hole.
func (l *walLog) removeBefore(first uint64) error {
	names, err := segments(l.dir)
	if err != nil {
		return err
	}
	keep := len(names) - 1
	for i, name := range names {
		begins, err := firstOf(name)
		if err != nil {
			return err
		}
		if begins >= first {
			keep = i - 1
			break
		}
	}
	if keep <= 0 {
		return nil
	}
	if err := l.wal.ReleaseLockTo(first); err != nil {
		return err
	}
	for _, name := range names[:keep] {
		if err := os.Remove(filepath.Join(l.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (l *walLog) Close() error { return l.wal.Close() }

// segments returns the names of the segments in dir in their order.
func segments(dir string) ([]string, error) {
	names, err := fileutil.ReadDir(dir, fileutil.WithExt(".wal"))
	if err != nil {
		return nil, err
	}
	return names, nil
}

// firstOf returns the index of the first entry of a segment, from its name.
func firstOf(name string) (uint64, error) {
	var number, first uint64
	if _, err := fmt.Sscanf(name, "%016x-%016x.wal", &number, &first); err != nil {
		return 0, fmt.Errorf("%s is no name of a segment", name)
	}
	return first, nil
}

func (l *walLog) Spool() (Spool, error) {
	f, err := os.CreateTemp(filepath.Dir(l.dir), "snapshot-*.tmp")
	if err != nil {
		return nil, err
	}
	// The file has no name any more, so that it goes with the process.
	return &fileSpool{file: f}, os.Remove(f.Name())
}

// A fileSpool writes to the disk as it goes: left to the kernel, gigabytes would be written at
// the next sync of the log, which would take as long as that.
type fileSpool struct {
	file    *os.File
	read    int64
	unsaved int
}

const spoolSyncBytes = 4 << 20

func (s *fileSpool) Write(p []byte) (int, error) {
	n, err := s.file.Write(p)
	s.unsaved += n
	if err == nil && s.unsaved >= spoolSyncBytes {
		s.unsaved = 0
		err = fileutil.Fdatasync(s.file)
	}
	return n, err
}

func (s *fileSpool) Read(p []byte) (int, error) {
	n, err := s.file.ReadAt(p, s.read)
	s.read += int64(n)
	return n, err
}

func (s *fileSpool) Close() error { return s.file.Close() }
