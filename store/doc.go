// Package store is the state of a lockfs cell: its tree of nodes with their locks, the sessions
// that hold them, and the marks that expired holders leave behind.
//
// A State changes only through Apply, one committed proposal at a time. Apply is a function: it
// looks at no clock and throws no dice, time comes in with the proposal, and what the master has to
// do about a change goes out as Effects. Replicas that applied the same entries have the same
// running hash and the same snapshot, byte for byte. The package knows nothing of Raft, of the
// network or of FUSE.
//
// # What a master relies on
//
// Each command is done whole or leaves nothing behind. A client's mutation has a number and is done
// once: a number that is finished, or was given up, answers the same from then on, until the client
// has confirmed that it knows. Only an Acquire that waits keeps its number open when it finds the
// lock taken; the master tries it again, or the client gives it up.
//
// No generation of a name ever goes back. A lock's grows when it goes from free to held and with
// every change of mode; a file's contents' with every write; a directory's, whose contents are its
// names, when it gains or loses one. A node that is made after another of its name was deleted
// starts above all generations of all nodes that were ever deleted.
//
// The lock of a node ends with it. When a session expires its locks are free at once, but the names
// are marked: grants that conflict with what was held wait until the master says, in an Acquire or
// with a ClearDelay, that the delay of all marks up to some log entry has passed.
//
// An ephemeral node whose session has ended is an orphan. Apply does not delete it of itself: the
// master does with DeleteOrphan, once it has told those who cache it. Below an ephemeral directory
// all nodes are ephemeral, for a permanent one would keep it for ever.
//
// # What replicas keep from each other
//
// A version knows commands and rules up to its Level. The cell has a level of its own, which only a
// RaiseLevel in the log changes; a command above it is refused on all replicas alike. A replica that
// does not know a command, or a level that the cell is raised to, stops, and so does not read the
// records of a cell above what it knows.
//
// A CheckHash in the log has every replica note its running hash there; a later one says what a
// majority noted, and who noted another stops with ErrDiffers.
//
// Rebirth makes the state of a new cell of a snapshot, in which nothing is valid any more that was
// ever drawn from the old cell.
//
// # Records, checkpoints, snapshots
//
// The state is a set of records: the one of the cell, and one for each node, session, and name with
// marks. A record has a key: 'c' for the cell, 'd' and a path for marks, 'n' and a path for a node,
// 's' and the id (8 bytes, big endian) for a session. A stored record is a storepb.Record, marshalled
// deterministically.
//
// The running hash is the sum, modulo 2^64, of a hash of each record, so that it can be kept up as
// records change. The hash is xxhash64 of the kind's letter and the marshalled Cell, Delay or Node,
// of a Node without its contents (their checksum is in it). Of a session it is taken over 64-bit
// words, little endian: the hash of the Session without done and results; the number of ranges in
// done; the first and last of each; the hash of 'r' and the marshalled Result of each of results.
//
// A DB is a bbolt file with two buckets. "records" holds the records under their keys, each value 8
// bytes of xxhash64 (big endian) over what follows, then the record. "meta" holds "format", the text
// "lockfs store 1", and "meta", a storepb.Meta, both with a checksum before them like a record's. All
// of a checkpoint is written in one transaction. A state that replaces all of it is written to a
// bucket "records" within a third one, "aside", which takes the place of the other when it is
// complete; what is in "aside" counts for nothing. A file that another program made, or a newer
// version, is refused.
//
// A snapshot is a stream of bytes; numbers are big endian:
//
//	16       "lockfs snapshot\n"
//	4        format, 1
//	parts    one head, then the records in key order, then one end, and nothing after it
//
// and a part is
//
//	1        'H' head: storepb.Meta of cell, cluster_id, applied, position
//	         'R' record: storepb.Record
//	         'E' end: storepb.Meta of records (their count) and hash (the running hash)
//	4        length of the payload
//	8        xxhash64 of the first byte and the payload
//	length   payload
package store
