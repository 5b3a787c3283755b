package fuse

import (
	"maps"
	"slices"
	"sync"
)

// openFiles are the open files of a mount, by handle and by node. No handle is given twice.
type openFiles struct {
	mu      sync.Mutex
	handles uint64 // given so far, to directories too
	files   map[uint64]*file
	nodes   map[uint64]map[*file]struct{} // by nodeid
	dirs    map[uint64]*dir
}

func newOpenFiles() *openFiles {
	return &openFiles{
		files: make(map[uint64]*file), nodes: make(map[uint64]map[*file]struct{}), dirs: make(map[uint64]*dir),
	}
}

func (o *openFiles) add(f *file) (handle uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handles++
	o.files[o.handles] = f
	id := f.nodeID()
	if o.nodes[id] == nil {
		o.nodes[id] = make(map[*file]struct{})
	}
	o.nodes[id][f] = struct{}{}
	return o.handles
}

// get returns the open file of a handle, nil where there is none.
func (o *openFiles) get(handle uint64) *file {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.files[handle]
}

// remove returns what it removed, nil where there is none.
func (o *openFiles) remove(handle uint64) *file {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.files[handle]
	if f == nil {
		return nil
	}
	delete(o.files, handle)
	id := f.nodeID()
	if delete(o.nodes[id], f); len(o.nodes[id]) == 0 {
		delete(o.nodes, id)
	}
	return f
}

// of returns the open files of a node, all those of the mount.
func (o *openFiles) of(id uint64) []*file {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.nodes[id]))
}

// named returns the open files that were opened under a name.
func (o *openFiles) named(at place) []*file {
	return slices.DeleteFunc(o.all(), func(f *file) bool { return f.cell != at.cell || f.path != at.path })
}

func (o *openFiles) all() []*file {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.files))
}

func (o *openFiles) addDir(d *dir) (handle uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handles++
	o.dirs[o.handles] = d
	return o.handles
}

func (o *openFiles) dir(handle uint64) *dir {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dirs[handle]
}

func (o *openFiles) anyDir() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.dirs) > 0
}

func (o *openFiles) removeDir(handle uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.dirs, handle)
}
