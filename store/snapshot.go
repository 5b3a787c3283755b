package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"lockfs/store/storepb"
)

// The format stands in the package comment.
const (
	snapshotMagic  = "lockfs snapshot\n"
	snapshotFormat = 1

	headTag   = 'H'
	recordTag = 'R'
	endTag    = 'E'

	frameHeadSize = 1 + 4 + 8 // tag, length, checksum
	maxFrame      = 1 << 30
)

// WriteSnapshot writes the whole state, with position for the log. Equal states give equal bytes.
func (s *State) WriteSnapshot(w io.Writer, position []byte) error {
	out := &frameWriter{w: w}
	meta := s.meta(position)
	out.head(meta)
	var b []byte
	s.records(func(r recorder) bool {
		b = marshal(b[:0], r.record())
		out.frame(recordTag, b)
		return out.err == nil
	})
	out.end(meta)
	return out.err
}

// ReadSnapshot reads what WriteSnapshot or Snapshot.WriteTo wrote, up to the end of the stream, and
// returns the state and the position. Damage of a single bit is found, and is an ErrCorrupt.
func ReadSnapshot(r io.Reader, cell string) (*State, []byte, error) {
	state, meta, err := readSnapshot(r, cell, ours)
	if err != nil {
		return nil, nil, fmt.Errorf("read snapshot of the cell %s: %w", cell, err)
	}
	return state, meta.Position, nil
}

// readSnapshot reads a snapshot of the cell, or of any where that is "".
func readSnapshot(r io.Reader, cell string, knows knowledge) (*State, *storepb.Meta, error) {
	in := &frameReader{r: bufio.NewReader(r)}
	meta, err := in.head()
	if err != nil {
		return nil, nil, err
	}
	if err := checkMeta(meta, cell); err != nil {
		return nil, nil, err
	}
	l := newLoader(meta.Cell, knows)
	for {
		tag, payload, err := in.frame()
		switch {
		case err != nil:
			return nil, nil, err
		case tag == endTag:
			return in.end(l, meta, payload)
		case tag != recordTag:
			return nil, nil, corrupt("part %q among the records", tag)
		}
		if _, err := l.add(payload); err != nil {
			return nil, nil, err
		}
	}
}

// A frameWriter writes the parts of a snapshot. After the first error it writes nothing more.
type frameWriter struct {
	w   io.Writer
	n   int64
	err error
}

func (f *frameWriter) write(b []byte) {
	if f.err == nil {
		n, err := f.w.Write(b)
		f.n, f.err = f.n+int64(n), err
	}
}

func (f *frameWriter) head(meta *storepb.Meta) {
	f.write(binary.BigEndian.AppendUint32([]byte(snapshotMagic), snapshotFormat))
	f.frame(headTag, marshal(nil, &storepb.Meta{
		Cell: meta.Cell, ClusterId: meta.ClusterId, Applied: meta.Applied, Position: meta.Position}))
}

func (f *frameWriter) end(meta *storepb.Meta) {
	f.frame(endTag, marshal(nil, &storepb.Meta{Records: meta.Records, Hash: meta.Hash}))
}

func (f *frameWriter) frame(tag byte, payload []byte) {
	head := binary.BigEndian.AppendUint32([]byte{tag}, uint32(len(payload)))
	f.write(binary.BigEndian.AppendUint64(head, frameSum(tag, payload)))
	f.write(payload)
}

func frameSum(tag byte, payload []byte) uint64 {
	d := xxhash.New()
	d.Write([]byte{tag})
	d.Write(payload)
	return d.Sum64()
}

// A frameReader reads what a frameWriter wrote.
type frameReader struct {
	r   *bufio.Reader
	buf bytes.Buffer
}

func (f *frameReader) head() (*storepb.Meta, error) {
	var b [len(snapshotMagic) + 4]byte
	if _, err := io.ReadFull(f.r, b[:]); err != nil {
		return nil, cutShort(err)
	}
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, corrupt("it does not begin as a snapshot does")
	}
	if format := binary.BigEndian.Uint32(b[len(snapshotMagic):]); format != snapshotFormat {
		return nil, fmt.Errorf("it is of format %d, this version knows format %d", format, snapshotFormat)
	}
	tag, payload, err := f.frame()
	if err != nil {
		return nil, err
	}
	meta := &storepb.Meta{}
	if err := proto.Unmarshal(payload, meta); tag != headTag || err != nil {
		return nil, corrupt("part %q where the head should be", tag)
	}
	return meta, nil
}

// end checks that all is there and nothing comes after it.
func (f *frameReader) end(l *loader, meta *storepb.Meta, payload []byte) (*State, *storepb.Meta, error) {
	end := &storepb.Meta{}
	if err := proto.Unmarshal(payload, end); err != nil {
		return nil, nil, corrupt("its end: %v", err)
	}
	switch _, err := f.r.ReadByte(); {
	case err == nil:
		return nil, nil, corrupt("bytes after its end")
	case err != io.EOF:
		return nil, nil, err
	}
	meta.Records, meta.Hash = end.Records, end.Hash
	state, err := l.finish(meta)
	return state, meta, err
}

// frame returns the next part. Its payload is valid until the next call.
func (f *frameReader) frame() (tag byte, payload []byte, err error) {
	var b [frameHeadSize]byte
	if _, err := io.ReadFull(f.r, b[:]); err != nil {
		return 0, nil, cutShort(err)
	}
	length := binary.BigEndian.Uint32(b[1:])
	if length > maxFrame {
		return 0, nil, corrupt("a part of %d bytes", length)
	}
	// The buffer grows as bytes arrive: a wrong length does not make it huge.
	f.buf.Reset()
	if _, err := io.CopyN(&f.buf, f.r, int64(length)); err != nil {
		return 0, nil, cutShort(err)
	}
	if frameSum(b[0], f.buf.Bytes()) != binary.BigEndian.Uint64(b[5:]) {
		return 0, nil, corrupt("a part that does not match its checksum")
	}
	return b[0], f.buf.Bytes(), nil
}

// cutShort tells a stream that ends too early from one that could not be read.
func cutShort(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("it ends before its end")
	}
	return err
}
