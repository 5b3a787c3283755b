package main

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// bareFUSE is a file system that asks nobody and keeps nothing, mounted as lockfs-mount mounts, so
// that the kernel asks it the same: a folder cell in its root, with the files of the clients in it.
type bareFUSE struct{ gofuse.RawFileSystem }

// Node ids: the root's, the folder's, and that of the first file.
const (
	rootNode = iota + gofuse.FUSE_ROOT_ID
	cellNode
	firstFile
)

// bareCell is the folder's name.
const bareCell = "cell"

// serveFUSE is the worker that mounts it, on its folder, until it is told to stop.
func serveFUSE() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil { // nobody may be in a folder that he himself serves
		return err
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	server, err := gofuse.NewServer(bareFUSE{gofuse.NewDefaultRawFileSystem()}, dir, &gofuse.MountOptions{
		Name:               "bench",
		Options:            []string{"default_permissions"},
		EnableLocks:        true,
		ExtraCapabilities:  gofuse.CAP_ATOMIC_O_TRUNC,
		MaxWrite:           1 << 20,
		MaxBackground:      512,
		DisableReadDirPlus: true,
		DirectMountStrict:  true,
	})
	if err != nil {
		return err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve()
	}()
	if err := answer("mounted"); err != nil {
		return err
	}
	<-told
	err = server.Unmount()
	if err == nil {
		<-served
	}
	return err
}

func (bareFUSE) String() string { return "bench" }

func (bareFUSE) Lookup(_ <-chan struct{}, header *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	out.NodeId = cellNode
	if header.NodeId == cellNode {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "f"))
		if err != nil {
			return gofuse.ENOENT
		}
		out.NodeId = firstFile + uint64(number)
	}
	out.Attr = bareAttr(out.NodeId)
	return gofuse.OK
}

func bareAttr(id uint64) gofuse.Attr {
	if id < firstFile {
		return gofuse.Attr{Ino: id, Mode: syscall.S_IFDIR | 0o755, Nlink: 1}
	}
	return gofuse.Attr{Ino: id, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: uint64(len(contents))}
}

func (bareFUSE) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	out.Attr = bareAttr(in.NodeId)
	return gofuse.OK
}

func (bareFUSE) Open(_ <-chan struct{}, _ *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	out.OpenFlags = gofuse.FOPEN_DIRECT_IO
	return gofuse.OK
}

func (bareFUSE) Read(_ <-chan struct{}, in *gofuse.ReadIn, _ []byte) (gofuse.ReadResult, gofuse.Status) {
	return gofuse.ReadResultData(contents[min(in.Offset, uint64(len(contents))):]), gofuse.OK
}

func (bareFUSE) Writev(_ <-chan struct{}, in *gofuse.WriteIn, _ [][]byte) (uint32, gofuse.Status) {
	return in.Size, gofuse.OK
}

func (bareFUSE) Flush(<-chan struct{}, *gofuse.FlushIn) gofuse.Status { return gofuse.OK }
func (bareFUSE) SetLk(<-chan struct{}, *gofuse.LkIn) gofuse.Status    { return gofuse.OK }
func (bareFUSE) SetLkw(<-chan struct{}, *gofuse.LkIn) gofuse.Status   { return gofuse.OK }
