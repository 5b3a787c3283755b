package lockfs

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a path, in bytes.
const (
	MaxName = 255  // one component
	MaxPath = 1024 // the whole path
)

// Root is the folder of all cells.
const Root = "/ls"

// Path is the clean absolute name of a node, /ls/<cell> or below. The zero Path names nothing.
// Only ParsePath, CellRoot and Child make one, so a Path in hand needs no further check.
type Path string

// ParsePath checks a name that came from outside. It fails with ErrBadName, and says what is
// wrong, unless name is /ls/<cell>[/component…], each component 1 to 255 bytes of valid UTF-8
// without control characters, neither "." nor "..", at most 1,024 bytes in all.
func ParsePath(name string) (Path, error) {
	if name == Root || !strings.HasPrefix(name, Root+"/") {
		return "", badName(name, "a path starts with "+Root+"/<cell>")
	}
	if len(name) > MaxPath {
		return "", badName(name[:64]+"…", fmt.Sprintf("a path has at most %d bytes, this one %d", MaxPath, len(name)))
	}
	for component := range strings.SplitSeq(name[len(Root)+1:], "/") {
		if err := CheckName(component); err != nil {
			return "", err
		}
	}
	return Path(name), nil
}

// CheckName returns ErrBadName, with the reason, unless name can be one component of a path.
func CheckName(name string) error {
	switch {
	case name == "":
		return badName(name, "a component is empty")
	case name == "." || name == "..":
		return badName(name, "a component is . or ..")
	case len(name) > MaxName:
		return &Error{Op: "name", Kind: ErrNameTooLong,
			Detail: fmt.Sprintf("a component has at most %d bytes, this one %d", MaxName, len(name))}
	case strings.Contains(name, "/"):
		return badName(name, "a component contains /")
	case !utf8.ValidString(name):
		return badName(name, "not valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return badName(name, "a control character in a name")
	}
	return nil
}

func badName(name, why string) error {
	return &Error{Op: "name", Kind: ErrBadName, Detail: fmt.Sprintf("%q: %s", name, why)}
}

// CellRoot returns the root of a cell, or an error as CheckName's. Every cell has its name in
// lower-case letters, digits, "-" and "_"; "local" is kept for the mount's own link.
func CellRoot(cell string) (Path, error) {
	if err := CheckName(cell); err != nil {
		return "", err
	}
	if cell == "local" || strings.Trim(cell, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || len(cell) > 64 {
		return "", badName(cell, `a cell's name is at most 64 of a-z, 0-9, "-" and "_", and not "local"`)
	}
	return Path(Root + "/" + cell), nil
}

// CheckReplicaName returns ErrBadName unless name can be a replica's: what can stand in a list of
// members and in a log line.
func CheckReplicaName(name string) error {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return badName(name, `a replica's name is 1 to 64 of a-z, 0-9, "-", "_" and "."`)
	}
	return nil
}

// Cell returns the name of the cell that the path lies in.
func (p Path) Cell() string {
	cell, _, _ := strings.Cut(strings.TrimPrefix(string(p), Root+"/"), "/")
	return cell
}

// IsCellRoot reports whether p is /ls/<cell> itself.
func (p Path) IsCellRoot() bool {
	return strings.Count(string(p), "/") == 2
}

// Parent returns the directory that holds p; a cell's root has none, which is "".
func (p Path) Parent() Path {
	if p.IsCellRoot() {
		return ""
	}
	return p[:strings.LastIndexByte(string(p), '/')]
}

// Base returns the last component.
func (p Path) Base() string {
	return string(p[strings.LastIndexByte(string(p), '/')+1:])
}

// Child returns the path of name in the directory p, or an error as CheckName's, or ErrNameTooLong
// where the whole would be.
func (p Path) Child(name string) (Path, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	if len(p)+1+len(name) > MaxPath {
		return "", &Error{Op: "name", Path: p, Kind: ErrNameTooLong,
			Detail: fmt.Sprintf("a path has at most %d bytes", MaxPath)}
	}
	return p + Path("/"+name), nil
}
