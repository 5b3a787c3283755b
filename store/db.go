package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"

	"lockfs/store/storepb"
)

// The format stands in the package comment.
var (
	metaBucket    = []byte("meta")
	recordsBucket = []byte("records")
	asideBucket   = []byte("aside")
	formatKey     = []byte("format")
	metaKey       = []byte("meta")
)

const dbFormat = "lockfs store 1"

const (
	// lockTimeout is how long OpenDB waits for another process to let go of the file, which one
	// that is ending does within moments.
	lockTimeout = time.Second
	// initialMap is the address space kept for the file. While a snapshot is read the file cannot
	// be mapped anew, so a checkpoint that makes it grow past this waits for the snapshot's end.
	initialMap = 1 << (30 + 4*(^uint(0)>>63)) // 16 GiB; 1 GiB where addresses have 32 bits
)

// A DB keeps the checkpoints of one state in a bbolt file. Save and Snapshot may run at the same
// time.
type DB struct {
	path  string
	bolt  *bbolt.DB
	knows knowledge
}

// OpenDB opens the file, or makes it. It fails if another process has it open, if it is not a
// lockfs store or one of another format, and with ErrCorrupt if it is damaged.
func OpenDB(path string) (*DB, error) {
	bolt, err := openChecked(path)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return &DB{path, bolt, ours}, nil
}

func openChecked(path string) (*bbolt.DB, error) {
	if err := probe(path); err != nil {
		return nil, err
	}
	bolt, err := openBolt(path, &bbolt.Options{
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: initialMap})
	if err != nil {
		return nil, err
	}
	if err := bolt.View(checkFormat); err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	return bolt, nil
}

// probe checks the pages of a file that is there, before bbolt goes over them. It has the file open
// as a reader meanwhile, so that nobody writes to it.
func probe(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case info.Size() == 0:
		return nil
	}
	bolt, err := openBolt(path, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer bolt.Close()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return err
	}
	return checkPages(file, info.Size(), bolt.Info().PageSize)
}

func openBolt(path string, options *bbolt.Options) (*bbolt.DB, error) {
	options.Timeout = lockTimeout
	bolt, err := bbolt.Open(path, 0o600, options)
	var pathErr *os.PathError
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, errors.New("another process has it open")
	case err != nil && !errors.As(err, &pathErr):
		return nil, corrupt("it is not a bbolt file, or its first pages are not whole: %v", err)
	}
	return bolt, err
}

// checkFormat passes a file that is new or ours.
func checkFormat(tx *bbolt.Tx) error {
	if name, _ := tx.Cursor().First(); name == nil {
		return nil
	}
	b, records := tx.Bucket(metaBucket), tx.Bucket(recordsBucket)
	switch {
	case b == nil && records == nil && tx.Bucket(asideBucket) != nil:
		return nil // its first records were never all there
	case records == nil && (b == nil || b.Get(formatKey) == nil):
		return errors.New("it is not a lockfs store: some other program made it")
	case b == nil:
		return corrupt("it has nothing but records")
	}
	format, err := unseal(formatKey, b.Get(formatKey))
	if err == nil && string(format) != dbFormat {
		err = fmt.Errorf("its format is %q, this version knows %q", format, dbFormat)
	}
	return err
}

// Close closes the file, once no snapshot is open any more.
func (db *DB) Close() error {
	if err := db.bolt.Close(); err != nil {
		return fmt.Errorf("close store %s: %w", db.path, err)
	}
	return nil
}

// Load returns the state of the last checkpoint and the log's position in it; of a file without one
// a new state and nil. It checks every record and the running hash over all.
func (db *DB) Load(cell string) (*State, []byte, error) {
	var state *State
	var position []byte
	err := db.bolt.View(func(tx *bbolt.Tx) (err error) {
		state, position, err = load(tx, cell, db.knows)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("load store %s: %w", db.path, err)
	}
	return state, position, nil
}

func load(tx *bbolt.Tx, cell string, knows knowledge) (*State, []byte, error) {
	meta, err := readMeta(tx)
	if err != nil {
		return nil, nil, err
	}
	if meta == nil {
		state := New(cell)
		state.knows = knows
		return state, nil, nil
	}
	if err := checkMeta(meta, cell); err != nil {
		return nil, nil, err
	}
	l := newLoader(cell, knows)
	err = tx.Bucket(recordsBucket).ForEach(func(k, v []byte) error {
		b, err := unseal(k, v)
		if err != nil {
			return err
		}
		if key, err := l.add(b); err != nil {
			return err
		} else if key != string(k) {
			return corrupt("record %q under the key %q", key, k)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	state, err := l.finish(meta)
	return state, meta.Position, err
}

// readMeta returns nil of a file without a checkpoint.
func readMeta(tx *bbolt.Tx) (*storepb.Meta, error) {
	b := tx.Bucket(metaBucket)
	if b == nil {
		return nil, nil
	}
	if tx.Bucket(recordsBucket) == nil {
		return nil, corrupt("it has no records")
	}
	value, err := unseal(metaKey, b.Get(metaKey))
	if err != nil {
		return nil, err
	}
	meta := &storepb.Meta{}
	if err := proto.Unmarshal(value, meta); err != nil {
		return nil, corrupt("its meta: %v", err)
	}
	return meta, nil
}

// seal returns the message as the value of a key: a checksum and its bytes.
func seal(m proto.Message) []byte { return sealed(marshal(make([]byte, 8, 256), m)) }

// sealed puts the checksum of all that follows into the first 8 bytes.
func sealed(b []byte) []byte {
	binary.BigEndian.PutUint64(b, xxhash.Sum64(b[8:]))
	return b
}

func unseal(key, value []byte) ([]byte, error) {
	if len(value) < 8 || xxhash.Sum64(value[8:]) != binary.BigEndian.Uint64(value) {
		return nil, corrupt("the record %q does not match its checksum", key)
	}
	return value[8:], nil
}

// Save makes a checkpoint durable, in one transaction. After an error the file holds the checkpoint
// before, and no later one can be saved: the replica has to stop.
func (db *DB) Save(c *Checkpoint) error {
	err := db.bolt.Update(func(tx *bbolt.Tx) error {
		old, err := readMeta(tx)
		if err != nil {
			return err
		}
		if at := (version{old.GetApplied(), old.GetHash()}); at != c.base {
			return fmt.Errorf("it is at entry %d, the checkpoint continues entry %d: one was lost", at.applied, c.base.applied)
		}
		b, err := tx.CreateBucketIfNotExists(recordsBucket)
		if err != nil {
			return err
		}
		// In order of the keys bbolt need not look for a place for each.
		slices.SortFunc(c.changes, func(a, b change) int { return cmp.Compare(a.key, b.key) })
		for _, change := range c.changes {
			if err := change.save(b); err != nil {
				return err
			}
		}
		return writeMeta(tx, c.meta)
	})
	if err != nil {
		return fmt.Errorf("save entry %d to store %s: %w", c.meta.Applied, db.path, err)
	}
	return nil
}

func (c change) save(b *bbolt.Bucket) error {
	if c.record == nil {
		return b.Delete([]byte(c.key))
	}
	return b.Put([]byte(c.key), seal(c.record.record()))
}

func writeMeta(tx *bbolt.Tx, meta *storepb.Meta) error {
	b, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return err
	}
	if err := b.Put(formatKey, sealed(append(make([]byte, 8), dbFormat...))); err != nil {
		return err
	}
	return b.Put(metaKey, seal(meta))
}

// A Snapshot is the last checkpoint, which stays as it is while later ones are saved. It has to be
// closed.
type Snapshot struct {
	tx   *bbolt.Tx
	meta *storepb.Meta
}

// Snapshot opens the last checkpoint for reading. It fails if there is none yet.
func (db *DB) Snapshot() (*Snapshot, error) {
	s, err := db.snapshot()
	if err != nil {
		return nil, fmt.Errorf("snapshot of store %s: %w", db.path, err)
	}
	return s, nil
}

func (db *DB) snapshot() (*Snapshot, error) {
	tx, err := db.bolt.Begin(false)
	if err != nil {
		return nil, err
	}
	meta, err := readMeta(tx)
	if err == nil && meta == nil {
		err = errors.New("there is no checkpoint yet")
	}
	if err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return &Snapshot{tx, meta}, nil
}

// Applied returns the index of the last entry in the snapshot.
func (s *Snapshot) Applied() uint64 { return s.meta.Applied }

// Position returns the position that was saved with the checkpoint.
func (s *Snapshot) Position() []byte { return s.meta.Position }

// WriteTo writes the snapshot as State.WriteSnapshot does. It checks each record, so that damage of
// this replica's file does not travel.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := &frameWriter{w: w}
	out.head(s.meta)
	err := s.tx.Bucket(recordsBucket).ForEach(func(k, v []byte) error {
		b, err := unseal(k, v)
		if err != nil {
			return err
		}
		out.frame(recordTag, b)
		return out.err
	})
	if err == nil {
		out.end(s.meta)
		err = out.err
	}
	if err != nil {
		return out.n, fmt.Errorf("write snapshot of entry %d: %w", s.meta.Applied, err)
	}
	return out.n, nil
}

// Close ends the reading.
func (s *Snapshot) Close() error { return s.tx.Rollback() }
