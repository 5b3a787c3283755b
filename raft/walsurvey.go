package raft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A survey is what one pass over all segments of a log found, before it is opened for writing.
//
// It answers two questions that the package wal leaves to its caller. At which mark to begin, so
// that all entries after it are there. And whether the log may be opened at all: a crash leaves a
// torn end, which was never acknowledged and can go; but a log damaged elsewhere has lost entries
// that this member told others it has, and it must not vote as if nothing had happened.
type survey struct {
	first uint64 // by which the first segment is named
	owner []byte
	torn  bool // the last segment ends with part of a record

	state *raftpb.HardState
	marks []*walpb.Snapshot // those after which no entry is missing, the oldest first

	// The entries after base, by their terms. Their log may be known from the middle on only.
	known bool // base is
	base  uint64
	terms []uint64
}

// start returns the mark from which to read the log, the oldest, but, as the package wal wants it,
// not before the index that the first segment is named by. The mark of a snapshot that was just
// restored can be ahead of the commit index: Start sees to that.
func (s *survey) start() (*walpb.Snapshot, error) {
	for _, mark := range s.marks {
		if mark.GetIndex() >= s.first {
			return mark, nil
		}
	}
	return nil, fmt.Errorf("%w: it begins with entry %d, and there is no mark from which to read it", ErrDamaged, s.base+1)
}

// surveySegments reads the named segments of dir.
func surveySegments(dir string, names []string) (*survey, error) {
	first, err := firstOf(names[0])
	if err != nil {
		return nil, err
	}
	s := &survey{first: first, state: new(raftpb.HardState)}
	if first > 0 {
		// What is before the first segment was removed. A checkpoint can be marked in a segment
		// that begins after it: nothing is missing there.
		s.known, s.base = true, first-1
	}
	var checksum uint32
	for i, name := range names {
		if checksum, err = s.segment(filepath.Join(dir, name), checksum, i == len(names)-1); err != nil {
			return nil, damaged(name, err)
		}
	}
	if last := s.base + uint64(len(s.terms)); s.state.GetCommit() > last {
		return nil, fmt.Errorf("%w: it ends with entry %d, and %d was committed", ErrDamaged, last, s.state.GetCommit())
	}
	return s, nil
}

// damaged is what was wrong with a segment, unless it could not be read at all.
func damaged(segment string, err error) error {
	var unread *os.PathError
	if errors.As(err, &unread) {
		return err
	}
	return fmt.Errorf("%w in segment %s: %w", ErrDamaged, segment, err)
}

// segment reads one segment, before which the running checksum was before, and returns that after.
func (s *survey) segment(path string, before uint32, last bool) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	records := wal.NewDecoder(fileutil.NewFileReader(f))
	records.UpdateCRC(before)
	record := new(walpb.Record)
	for err = records.Decode(record); err == nil; err = records.Decode(record) {
		if err := s.record(record, records); err != nil {
			return 0, fmt.Errorf("at byte %d: %w", records.LastOffset(), err)
		}
	}
	if last && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		s.torn = !errors.Is(err, io.EOF)
		return 0, tornEnd(f, records.LastOffset())
	}
	// That nothing is missing at the end of another segment, the checksum at the head of the
	// next one shows.
	if errors.Is(err, io.EOF) {
		return records.LastCRC(), nil
	}
	return 0, fmt.Errorf("at byte %d: %w", records.LastOffset(), err)
}

func (s *survey) record(r *walpb.Record, records wal.Decoder) error {
	switch r.GetType() {
	case wal.CrcType:
		if sum := records.LastCRC(); sum != 0 && r.Validate(sum) != nil {
			return errors.New("records are missing before it")
		}
		records.UpdateCRC(r.GetCrc())
		return nil
	case wal.MetadataType:
		s.owner = r.GetData()
		return nil
	case wal.StateType:
		s.state = new(raftpb.HardState)
		return proto.Unmarshal(r.GetData(), s.state)
	case wal.EntryType:
		entry := new(raftpb.Entry)
		if err := proto.Unmarshal(r.GetData(), entry); err != nil {
			return err
		}
		return s.entry(entry.GetIndex(), entry.GetTerm())
	case wal.SnapshotType:
		mark := new(walpb.Snapshot)
		if err := proto.Unmarshal(r.GetData(), mark); err != nil {
			return err
		}
		s.mark(mark)
		return nil
	}
	return fmt.Errorf("a record of unknown type %d", r.GetType())
}

// entry puts an entry in its place, instead of whatever was there and after it.
func (s *survey) entry(index, term uint64) error {
	switch {
	case !s.known || index <= s.base:
		s.known, s.base, s.terms = true, index-1, nil
	case index > s.base+uint64(len(s.terms))+1:
		return fmt.Errorf("entries %d to %d are missing", s.base+uint64(len(s.terms))+1, index-1)
	}
	s.terms = append(s.terms[:index-s.base-1], term)
	return nil
}

// mark does to the survey what Storage.Mark did to the log.
func (s *survey) mark(m *walpb.Snapshot) {
	index := m.GetIndex()
	switch {
	case s.known && index < s.base:
		return // of entries that were removed
	case s.known && index == s.base:
		// nothing is known of the entry, and nothing is needed: reading begins after it
	case s.known && index <= s.base+uint64(len(s.terms)) && s.terms[index-s.base-1] == m.GetTerm():
	default:
		s.known, s.base, s.terms, s.marks = true, index, nil, nil
	}
	s.marks = append(s.marks, m)
}

// tornEnd looks at what follows the last good record, at offset, in the last segment. After a
// crash that is part of what was being written, and then zeros. The error says that it is more.
func tornEnd(f *os.File, offset int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	rest := make([]byte, info.Size()-offset)
	if _, err := f.ReadAt(rest, offset); err != nil {
		return err
	}
	written := len(bytes.TrimRight(rest, "\x00"))
	if written > frameBytes {
		// With something after them, the first eight bytes are whole: they never cross a sector.
		if head := binary.LittleEndian.Uint64(rest); head != 0 && !frame(head).wellFormed() {
			return fmt.Errorf("at byte %d: the length of a record is damaged", offset)
		}
	}
	if at, ok := findRecords(rest, written); ok {
		return fmt.Errorf("at byte %d: a record is damaged, and good ones follow it at byte %d", offset, offset+int64(at))
	}
	return nil
}

// A frame is what stands before a record: its length in the lower 56 bits, and in the highest
// byte how many bytes of padding follow, so that the next one begins at a multiple of 8.
type frame uint64

const (
	frameBytes     = 8
	recordBytesMax = 64 << 20 // far more than any record of ours has
)

func (f frame) lengths() (record, padding int) {
	record = int(f & (1<<56 - 1))
	if f>>63 == 1 {
		padding = int(f>>56) & 7
	}
	return record, padding
}

func (f frame) wellFormed() bool {
	record, padding := f.lengths()
	high := f >> 56
	return record > 0 && record <= recordBytesMax && (record+padding)%8 == 0 &&
		(high == 0 || high&^7 == 0x80 && padding > 0)
}

// findRecords looks for two good records one after the other that begin in the first limit bytes
// of b. The checksum of a record runs over all before it, so that of the second can be told from
// that of the first, even where those before are lost.
func findRecords(b []byte, limit int) (at int, ok bool) {
	for at = 0; at < limit; at += 8 {
		first, n := parseRecord(b[at:])
		if first == nil {
			continue
		}
		second, _ := parseRecord(b[at+n:])
		if second != nil && second.GetType() != wal.CrcType &&
			second.GetCrc() == crc32.Update(first.GetCrc(), castagnoli, second.GetData()) {
			return at, true
		}
	}
	return 0, false
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseRecord returns the record at the beginning of b with its size there, nil if there is none.
func parseRecord(b []byte) (*walpb.Record, int) {
	if len(b) < frameBytes {
		return nil, 0
	}
	head := frame(binary.LittleEndian.Uint64(b))
	record, padding := head.lengths()
	if !head.wellFormed() || frameBytes+record+padding > len(b) {
		return nil, 0
	}
	r := new(walpb.Record)
	if err := proto.Unmarshal(b[frameBytes:frameBytes+record], r); err != nil {
		return nil, 0
	}
	return r, frameBytes + record + padding
}
