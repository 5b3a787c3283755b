// Package master is one replica of a cell as its clients see it: it joins the replicated log
// (raft) to the replicated records (store), and while this replica leads it is the master, which
// alone serves clients.
//
// What only the master keeps stands in machine: lease deadlines, who waits for which lock, the
// deadlines of lock-delays, and which calls are under way. All of it can be told again to a new
// master, by clients who repeat their calls and by the records; that is why none of it is in the
// log. machine is plain: calls, applied proposals and the time go in, proposals and replies come
// out, and nothing in it blocks, so a test can drive it by hand.
//
// Around it, Replica guards machine and state with one mutex, which is never held across a wait:
// proposing is handing over, and a reply goes into the queue of its stream. Whatever must be true
// at the moment of its answer (reads, renewals, a lock that is refused) is answered only after a
// quorum has confirmed, later than it arrived, that this replica still leads; all that arrived
// since the last confirmation share the next.
//
// # A mastership
//
// The first entry of a new master sets the epoch, which is its Raft term. When that is applied so
// is everything before it; from then on the master is in office. Every session then has the
// longest lease from now, every lock-delay starts again in full, ephemeral nodes of ended
// sessions are deleted, and clients say who holds and who waits by repeating their calls. A
// replica that ceases to lead forgets all this and ends its clients' streams.
//
// The package knows nothing of FUSE and of the files that raft and store keep.
package master
