package fuse

import "sync"

// makers are the threads that made the newest nodes, or wrote them anew.
//
// Mode and owner only mirror what the cell decides, so a program that changes them is told EPERM:
// who says chmod 600 must not believe that others cannot read. But the mode that open(2) and
// mkdir(2) give a new node is not kept either, and cp, install, tar and rsync say it again of what
// they have just made, or copied to. So the process that did may say what it likes, and nothing
// comes of it.
type makers struct {
	mu      sync.Mutex
	threads map[uint64]uint32 // by nodeid
	order   []uint64          // the nodes, the oldest first
}

// makersMax bounds them. Tar sets the modes of directories at its end.
const makersMax = 4096

func newMakers() *makers { return &makers{threads: make(map[uint64]uint32)} }

func (m *makers) add(id uint64, thread uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.threads[id]; !known {
		m.order = append(m.order, id)
	}
	m.threads[id] = thread
	if len(m.order) > makersMax {
		delete(m.threads, m.order[0])
		m.order = m.order[1:]
	}
}

// made reports whether a node was made, or written anew, by the process of a thread.
func (m *makers) made(id uint64, thread uint32) bool {
	m.mu.Lock()
	maker, known := m.threads[id]
	m.mu.Unlock()
	return known && sameProcess(maker, thread)
}
