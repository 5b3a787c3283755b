package store

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"io"
)

// Bbolt trusts its pages, which have no checksums: on those that make no sense it panics, also in
// goroutines of its own, or reads where the file has no bytes, and either ends the process. So the
// pages of a file are checked by this walk before bbolt goes over them. It reads the format of
// bbolt's version 2, whose integers are in the byte order of the machine:
//
//	page     its number 8, flags 2, count of elements 2, count of pages that it overflows into 4, elements
//	branch   offset of the key from here 4, its size 4, number of the page below 8
//	leaf     flags 4, offset of the key from here 4, sizes of key and value 4 and 4; the value follows the key
//	bucket   a leaf's value: number of its root page 8 (0: the page itself follows), sequence 8
//	meta     magic 4, version 4, page size 4, flags 4, root bucket 16, freelist 8, count of pages 8,
//	         transaction 8, FNV-1a of these 8
const (
	pageHeadSize   = 16
	elementSize    = 16
	bucketHeadSize = 16
	metaSize       = 64

	branchFlag = 0x01
	leafFlag   = 0x02
	bucketFlag = 0x01 // of a leaf's element
	freeFlag   = 0x10 // a list of free pages

	noFreelist = ^uint64(0) // the list is not in the file

	boltMagic   = 0xED0CDAED
	boltVersion = 2
)

var order = binary.NativeEndian

// A walk goes over all pages of a bbolt file that its last transaction can reach.
type walk struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64 // count, of which all reachable ones are below
	seen     []bool // by page number
}

// checkPages fails with ErrCorrupt unless every page that can be reached is whole, is reached once,
// and has its keys where bbolt looks for them.
func checkPages(file io.ReaderAt, fileSize int64, pageSize int) error {
	w := &walk{file: file, pageSize: uint64(pageSize)}
	root, free, err := w.readMeta()
	if err != nil {
		return err
	}
	if most := uint64(fileSize) / w.pageSize; w.pages > most {
		return corrupt("the file has %d pages of %d", most, w.pages)
	}
	w.seen = make([]bool, w.pages)
	if err := w.freelist(free); err != nil {
		return err
	}
	return w.tree(root, nil, nil)
}

// freelist checks the list of free pages. It is in a file as bbolt makes it, and never again after
// our first transaction.
func (w *walk) freelist(number uint64) error {
	if number == noFreelist {
		return nil
	}
	page, err := w.page(number)
	if err != nil {
		return err
	}
	count, list := uint64(order.Uint16(page[10:])), page[pageHeadSize:]
	if count == 0xFFFF { // does not fit into its place
		count, list = order.Uint64(list), list[8:]
	}
	if order.Uint16(page[8:]) != freeFlag || count > uint64(len(list))/8 {
		return corrupt("page %d is not the list of free pages", number)
	}
	for i := range count {
		if free := order.Uint64(list[8*i:]); free < 2 || free >= w.pages {
			return corrupt("page %d is free, of %d", free, w.pages)
		}
	}
	return nil
}

// readMeta returns the root page and that of the list of free pages by the newer of the two meta pages that are whole, as bbolt does.
func (w *walk) readMeta() (root, free uint64, err error) {
	var newest uint64
	for page := range uint64(2) {
		b := make([]byte, pageHeadSize+metaSize)
		if _, err := w.file.ReadAt(b, int64(page*w.pageSize)); err != nil && err != io.EOF {
			return 0, 0, err
		}
		m := b[pageHeadSize:]
		sum := fnv.New64a()
		sum.Write(m[:56])
		whole := order.Uint32(m) == boltMagic && order.Uint32(m[4:]) == boltVersion && order.Uint64(m[56:]) == sum.Sum64()
		if transaction := order.Uint64(m[48:]); whole && (w.pages == 0 || transaction > newest) {
			newest, root, free, w.pages = transaction, order.Uint64(m[16:]), order.Uint64(m[32:]), order.Uint64(m[40:])
		}
	}
	if w.pages == 0 {
		return 0, 0, corrupt("neither of its meta pages is whole")
	}
	return root, free, nil
}

// tree checks the page and all below it. Keys are at or above least, and below most unless that is
// nil.
func (w *walk) tree(number uint64, least, most []byte) error {
	page, err := w.page(number)
	if err != nil {
		return err
	}
	return w.elements(page, number, least, most)
}

// page reads a page with what it overflows into, none of which was read before.
func (w *walk) page(number uint64) ([]byte, error) {
	if number < 2 || number >= w.pages {
		return nil, corrupt("page %d of %d", number, w.pages)
	}
	var head [pageHeadSize]byte
	if _, err := w.file.ReadAt(head[:], int64(number*w.pageSize)); err != nil {
		return nil, err
	}
	more := uint64(order.Uint32(head[12:]))
	if order.Uint64(head[:]) != number || more >= w.pages-number {
		return nil, corrupt("page %d is not itself", number)
	}
	for i := number; i <= number+more; i++ {
		if w.seen[i] {
			return nil, corrupt("page %d is reached twice", i)
		}
		w.seen[i] = true
	}
	page := make([]byte, (1+more)*w.pageSize)
	if _, err := w.file.ReadAt(page, int64(number*w.pageSize)); err != nil {
		return nil, err
	}
	return page, nil
}

// elements checks a page that has been read; number is for messages.
func (w *walk) elements(page []byte, number uint64, least, most []byte) error {
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != branchFlag && flags != leafFlag || flags == branchFlag && count == 0 {
		return corrupt("page %d is neither branch nor leaf", number)
	}
	if len(page) < pageHeadSize+count*elementSize {
		return corrupt("page %d has more elements than room", number)
	}
	for i := range count {
		key, ok := keyAt(page, flags, i)
		next, nextOK := most, true
		if i+1 < count {
			next, nextOK = keyAt(page, flags, i+1)
		}
		if !ok || !nextOK || bytes.Compare(key, least) < 0 || next != nil && bytes.Compare(key, next) >= 0 {
			return corrupt("page %d has its keys out of order", number)
		}
		if err := w.below(page, flags, i, key, next); err != nil {
			return err
		}
	}
	return nil
}

// keyAt returns the key of an element, not nil, if all of the element lies in the page.
func keyAt(page []byte, flags uint16, i int) (key []byte, ok bool) {
	at := uint64(pageHeadSize + i*elementSize)
	e := page[at:]
	offset, keySize, valueSize := order.Uint32(e), order.Uint32(e[4:]), uint32(0)
	if flags == leafFlag {
		offset, keySize, valueSize = order.Uint32(e[4:]), order.Uint32(e[8:]), order.Uint32(e[12:])
	}
	from := at + uint64(offset)
	to := from + uint64(keySize)
	if offset < elementSize || keySize == 0 || to+uint64(valueSize) > uint64(len(page)) {
		return nil, false
	}
	return page[from:to], true
}

// below goes on into what an element refers to, a page or a bucket.
func (w *walk) below(page []byte, flags uint16, i int, key, next []byte) error {
	e := page[pageHeadSize+i*elementSize:]
	if flags == branchFlag {
		return w.tree(order.Uint64(e[8:]), key, next)
	}
	switch order.Uint32(e) {
	case 0:
		return nil
	case bucketFlag:
		value := e[order.Uint32(e[4:])+order.Uint32(e[8:]):][:order.Uint32(e[12:])]
		return w.bucket(value)
	}
	return corrupt("a value of no kind")
}

func (w *walk) bucket(value []byte) error {
	if len(value) < bucketHeadSize {
		return corrupt("a bucket of %d bytes", len(value))
	}
	if root := order.Uint64(value); root != 0 {
		return w.tree(root, nil, nil)
	}
	inline := value[bucketHeadSize:]
	if len(inline) < pageHeadSize || order.Uint16(inline[8:]) != leafFlag {
		return corrupt("a bucket that is no page")
	}
	return w.elements(inline, 0, nil, nil)
}
