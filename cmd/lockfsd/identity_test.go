package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var members = []string{"r1=127.0.0.1:1", "r2=127.0.0.1:2", "r3=127.0.0.1:3"}

func TestIDs(t *testing.T) {
	base := newIdentity("ny1", "r1", members)
	turned := newIdentity("ny1", "r1", []string{members[2], members[0], members[1]})
	if turned.Cluster != base.Cluster {
		t.Error("the order of --peers changes the cluster id")
	}
	for name, other := range map[string]identity{
		"another cell":   newIdentity("ny2", "r1", members),
		"another member": newIdentity("ny1", "r1", append([]string{"r4=127.0.0.1:4"}, members...)),
		"one fewer":      newIdentity("ny1", "r1", members[:2]),
		"a cell of one":  newIdentity("ny1", "r1", members[:1]),
	} {
		if other.Cluster == base.Cluster {
			t.Errorf("%s has the same cluster id", name)
		}
	}
	second := newIdentity("ny1", "r2", members)
	if second.Cluster != base.Cluster || second.Member == base.Member {
		t.Error("members of a cell need one cluster id and different member ids")
	}
	if again := newIdentity("ny2", "r1", members); again.Member == base.Member {
		t.Error("members of different cells have the same id")
	}
}

// TestClaim starts a replica on folders with a history and expects the one sentence that tells what
// is wrong with them.
func TestClaim(t *testing.T) {
	for _, test := range []struct {
		name    string
		before  func(t *testing.T, folder string)
		refused string // "" where the folder is accepted
	}{
		{"nothing there", func(*testing.T, string) {}, ""},
		{"empty", func(t *testing.T, folder string) { mkdir(t, folder) }, ""},
		{"its own", func(t *testing.T, folder string) { start(t, folder, "ny1", "r1", members) }, ""},
		{"its own, members in another order", func(t *testing.T, folder string) {
			start(t, folder, "ny1", "r1", []string{members[1], members[2], members[0]})
		}, ""},
		{"died while it began", func(t *testing.T, folder string) {
			mkdir(t, folder)
			write(t, folder, "identity.json.new", `{"for`)
			write(t, folder, "lock", "")
		}, ""},
		{"another cell", func(t *testing.T, folder string) { start(t, folder, "ny2", "r1", members) },
			"belongs to cell ny2, not ny1"},
		{"another replica", func(t *testing.T, folder string) { start(t, folder, "ny1", "r2", members) },
			"belongs to replica r2, not r1"},
		{"other members", func(t *testing.T, folder string) { start(t, folder, "ny1", "r1", members[:2]) },
			"belongs to a cell of the members r1=127.0.0.1:1,r2=127.0.0.1:2, not r1=127.0.0.1:1,r2=127.0.0.1:2,r3=127.0.0.1:3"},
		{"not a lockfsd's", func(t *testing.T, folder string) {
			mkdir(t, folder)
			write(t, folder, "diary.txt", "dear diary")
		}, "holds diary.txt and no identity.json"},
		{"a later format", func(t *testing.T, folder string) {
			mkdir(t, folder)
			write(t, folder, identityFile, `{"format": 9, "cell": "ny1", "replica": "r1"}`)
		}, "has format 9, this lockfsd knows format 1"},
		{"damaged", func(t *testing.T, folder string) {
			mkdir(t, folder)
			write(t, folder, identityFile, `{"format": 1, "ce`)
		}, "is damaged"},
		{"ids that do not follow", func(t *testing.T, folder string) {
			start(t, folder, "ny1", "r1", members)
			data, err := os.ReadFile(filepath.Join(folder, identityFile))
			if err != nil {
				t.Fatal(err)
			}
			write(t, folder, identityFile, strings.Replace(string(data), `"member": "`, `"member": "1", "was": "`, 1))
		}, "does not agree with itself"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "data")
			test.before(t, folder)
			release, err := claimFor(folder, "ny1", "r1", members)
			if err == nil {
				release()
			}
			switch {
			case test.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), "\n")):
				t.Errorf("%v, want a sentence with %q", err, test.refused)
			}
		})
	}
}

func TestClaimExcludesOthers(t *testing.T) {
	folder := t.TempDir()
	release, err := claimFor(folder, "ny1", "r1", members)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimFor(folder, "ny1", "r1", members); err == nil || !strings.Contains(err.Error(), "in use by another lockfsd") {
		t.Errorf("second claim: %v", err)
	}
	release()
	start(t, folder, "ny1", "r1", members)
}

// claimFor claims a folder for a replica whose fellows are not there yet.
func claimFor(folder, cell, replica string, peers []string) (release func(), err error) {
	o := &options{cell: cell, name: replica, data: folder, peers: peers, peersGiven: true}
	_, release, err = claim(folder, o.compare, func() (identity, error) { return newIdentity(cell, replica, peers), nil })
	return release, err
}

func start(t *testing.T, folder, cell, replica string, peers []string) {
	t.Helper()
	release, err := claimFor(folder, cell, replica, peers)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

// TestIncarnation expects the number of a folder to last as long as the log in it.
func TestIncarnation(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	drawn := func() uint64 {
		t.Helper()
		start(t, folder, "ny1", "r1", members)
		data, err := os.ReadFile(filepath.Join(folder, identityFile))
		if err != nil {
			t.Fatal(err)
		}
		var who identity
		if err := json.Unmarshal(data, &who); err != nil || who.Incarnation == 0 {
			t.Fatalf("%v; %s", err, data)
		}
		return who.Incarnation
	}
	first := drawn()
	mkdir(t, filepath.Join(folder, walFolder))
	begun := drawn()
	if again := drawn(); again != begun {
		t.Errorf("%x at one start, %x at the next", begun, again)
	}
	if err := os.Remove(filepath.Join(folder, walFolder)); err != nil {
		t.Fatal(err)
	}
	if lost := drawn(); lost == begun || lost == first {
		t.Error("a folder that lost its log has the number of one with it")
	}
}

func mkdir(t *testing.T, folder string) {
	t.Helper()
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, folder, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
