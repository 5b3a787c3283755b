package fuse

import (
	"sync"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lockfs"
)

// A node of a cell never moves (directories cannot be renamed, and a file that is gets a new
// instance), so cell and instance stand for its path as long as it lives. The kernel's number for
// a node is made of both, and what the kernel learnt once is never another node's.
const (
	mountRoot  = gofuse.FUSE_ROOT_ID // the folder of the cells
	localLink  = 2                   // the symbolic link "local" in it
	cellShift  = 48
	maxCells   = 1 << 15
	ownInodes  = 0xffff << cellShift // inode numbers of what is the mount's and no node of a cell
	firstOfOwn = 16                  // of the roots of cells
)

// node is what a nodeid stands for. A cell's root has instance 0: it is there as long as the cell.
type node struct {
	cell     *cell
	path     lockfs.Path
	instance uint64
}

func (n node) id() uint64 { return nodeID(n.cell, n.instance) }

func (n node) isRoot() bool { return n.instance == 0 }

func nodeID(c *cell, instance uint64) uint64 { return (c.number+1)<<cellShift | instance }

func (f *file) nodeID() uint64 { return nodeID(f.cell, f.instance) }

// inode is the number that programs see: the instance, in the first cell just that.
func inode(c *cell, instance uint64) uint64 { return c.number<<cellShift | instance }

// pathOf returns the path of the node with an inode number, for people.
func (fs *fileSystem) pathOf(ino uint64) lockfs.Path {
	if own := ino &^ ownInodes; ino&ownInodes == ownInodes {
		if own >= firstOfOwn && own < firstOfOwn+uint64(len(fs.cells)) {
			return fs.cells[own-firstOfOwn].root
		}
		return lockfs.Root
	}
	n, _ := fs.nodes.get(ino + 1<<cellShift) // see nodeID
	return n.path
}

// nodeTable knows the nodes that the kernel knows, and how often it was told of each.
type nodeTable struct {
	cells []*cell
	mu    struct {
		sync.Mutex
		known map[uint64]*knownNode
	}
}

type knownNode struct {
	node
	lookups uint64
}

func newNodeTable(cells []*cell) *nodeTable {
	t := &nodeTable{cells: cells}
	t.mu.known = make(map[uint64]*knownNode)
	return t
}

// remember counts that the kernel is told of n.
func (t *nodeTable) remember(n node) {
	if n.isRoot() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.mu.known[n.id()]
	if !ok {
		k = &knownNode{node: n}
		t.mu.known[n.id()] = k
	}
	k.lookups++
}

// forget counts that the kernel has dropped n as often as it says.
func (t *nodeTable) forget(id, lookups uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.mu.known[id]
	if !ok {
		return
	}
	if k.lookups -= min(lookups, k.lookups); k.lookups == 0 {
		delete(t.mu.known, id)
	}
}

// get returns the node of an id; false for the mount's own two, and for one that the kernel was
// never told of.
func (t *nodeTable) get(id uint64) (node, bool) {
	number, instance := id>>cellShift, id&(1<<cellShift-1)
	if number == 0 || number > uint64(len(t.cells)) {
		return node{}, false
	}
	if c := t.cells[number-1]; instance == 0 {
		return node{cell: c, path: c.root}, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if k, ok := t.mu.known[id]; ok {
		return k.node, true
	}
	return node{}, false
}
