package fuse

import "testing"

func TestNodeTable(t *testing.T) {
	cells := []*cell{{name: "ny1", root: "/ls/ny1", number: 0}, {name: "sf1", root: "/ls/sf1", number: 1}}
	table := newNodeTable(cells)
	same := node{cell: cells[0], path: "/ls/ny1/x", instance: 7}
	other := node{cell: cells[1], path: "/ls/sf1/y", instance: 7}
	for _, n := range []node{same, same, other} {
		table.remember(n)
	}
	want := func(id uint64, n node, known bool) {
		t.Helper()
		if got, ok := table.get(id); ok != known || got != n {
			t.Errorf("node %#x: %+v, %v; want %+v, %v", id, got, ok, n, known)
		}
	}
	want(same.id(), same, true)
	want(other.id(), other, true)
	table.forget(same.id(), 1)
	want(same.id(), same, true)
	table.forget(same.id(), 1)
	want(same.id(), node{}, false)
	want(other.id(), other, true)
	table.forget(same.id(), 1)
	for _, c := range cells { // a cell's root is never forgotten
		root := node{cell: c, path: c.root}
		table.remember(root)
		table.forget(root.id(), 1)
		want(root.id(), root, true)
	}
	want(mountRoot, node{}, false)
	want(localLink, node{}, false)
	want(nodeID(&cell{number: 2}, 0), node{}, false)
	if inode(cells[0], 7) != 7 || inode(cells[1], 7) == 7 || inode(cells[1], 7)&ownInodes == ownInodes {
		t.Errorf("inode numbers %#x and %#x", inode(cells[0], 7), inode(cells[1], 7))
	}
}
