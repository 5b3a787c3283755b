package store

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"lockfs/store/storepb"
)

// asideBytes is how much of a state is written to the file at once, so that neither memory nor the
// disk, which the log shares, has to take all of it in one piece.
const asideBytes = 4 << 20

// Restore puts a snapshot in place of all that the file holds, once the whole of it has been read and
// checked. If the process dies meanwhile, or there is an error, the file holds what it held before. It
// returns what ReadSnapshot would.
func (db *DB) Restore(r io.Reader, cell string) (*State, []byte, error) {
	state, meta, err := readSnapshot(r, cell, db.knows)
	if err == nil {
		err = db.replace(state, meta)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("restore a snapshot to store %s: %w", db.path, err)
	}
	return state, meta.Position, nil
}

// Replace puts the state, which Rebirth made, in place of all that the file holds, as Restore does,
// with position for the log. The state's next checkpoint continues from there.
func (db *DB) Replace(state *State, position []byte) error {
	if err := db.replace(state, state.meta(position)); err != nil {
		return fmt.Errorf("replace all of store %s: %w", db.path, err)
	}
	state.settle()
	return nil
}

// replace writes all records aside, beside those that count, and then has them change places.
func (db *DB) replace(state *State, meta *storepb.Meta) error {
	if err := db.bolt.Update(emptyAside); err != nil {
		return err
	}
	if err := db.writeAside(state.records); err != nil {
		return err
	}
	return db.bolt.Update(func(tx *bbolt.Tx) error {
		if err := deleteBucket(tx, recordsBucket); err != nil {
			return err
		}
		if err := tx.MoveBucket(recordsBucket, tx.Bucket(asideBucket), nil); err != nil {
			return err
		}
		if err := tx.DeleteBucket(asideBucket); err != nil {
			return err
		}
		return writeMeta(tx, meta)
	})
}

// emptyAside also drops what a replace left that came to no end.
func emptyAside(tx *bbolt.Tx) error {
	if err := deleteBucket(tx, asideBucket); err != nil {
		return err
	}
	aside, err := tx.CreateBucket(asideBucket)
	if err != nil {
		return err
	}
	_, err = aside.CreateBucket(recordsBucket)
	return err
}

func deleteBucket(tx *bbolt.Tx, name []byte) error {
	if err := tx.DeleteBucket(name); !errors.Is(err, bbolterrors.ErrBucketNotFound) {
		return err
	}
	return nil
}

// writeAside writes the records, which come in key order, in transactions of asideBytes.
func (db *DB) writeAside(records iter.Seq[recorder]) error {
	var piece []keyValue
	size := 0
	for r := range records {
		m := r.record()
		piece = append(piece, keyValue{[]byte(keyOf(m)), seal(m)})
		if size += len(piece[len(piece)-1].value); size < asideBytes {
			continue
		}
		if err := db.putAside(piece); err != nil {
			return err
		}
		piece, size = nil, 0
	}
	return db.putAside(piece)
}

type keyValue struct{ key, value []byte }

func (db *DB) putAside(piece []keyValue) error {
	return db.bolt.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(asideBucket).Bucket(recordsBucket)
		b.FillPercent = 0.9 // nothing comes in between
		for _, kv := range piece {
			if err := b.Put(kv.key, kv.value); err != nil {
				return err
			}
		}
		return nil
	})
}
