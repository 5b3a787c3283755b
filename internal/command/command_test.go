package command

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program is a command with a flag, a subcommand and a bound of arguments.
func program() *cobra.Command {
	root := &cobra.Command{Use: "program", RunE: func(*cobra.Command, []string) error { return nil }}
	root.Flags().Int("size", 1, "how much")
	root.AddCommand(&cobra.Command{
		Use: "fail NAME", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return errors.New("cannot " + args[0]) },
	})
	return root
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"", 0, ""},
		{"--size 3", 0, ""},
		{"--size big", ExitUsage, `program: invalid argument "big" for "--size" flag: strconv.ParseInt: parsing "big": invalid syntax`},
		{"--colour red", ExitUsage, "program: unknown flag: --colour"},
		{"walk", ExitUsage, `program: unknown command "walk" for "program"`},
		{"fail", ExitUsage, "program: accepts 1 arg(s), received 0"},
		{"fail here", ExitFailed, "program: cannot here"},
	} {
		var stderr strings.Builder
		err := Run(t.Context(), program(), strings.Fields(test.args))
		code := Report("program", err, &stderr)
		if says := strings.TrimSuffix(stderr.String(), "\n"); code != test.code || says != test.says {
			t.Errorf("%q: exit code %d saying %q; want %d saying %q", test.args, code, says, test.code, test.says)
		}
	}
}

func TestCheck(t *testing.T) {
	files := Security{Cert: "c", Key: "k", CA: "a"}
	plain := Security{Insecure: true}
	for _, test := range []struct {
		security  Security
		addresses []string
		ok        bool
	}{
		{plain, []string{"127.0.0.1:7420", "localhost:7420", "[::1]:7420", "127.9.9.9:1"}, true},
		{plain, []string{"127.0.0.1:7420", "10.0.0.1:7420"}, false},
		{plain, []string{"0.0.0.0:7420"}, false},
		{plain, []string{":7420"}, false},
		{plain, []string{"localhost.example.com:7420"}, false},
		{files, []string{"10.0.0.1:7420"}, true},
		{Security{}, nil, false},
		{Security{Insecure: true, CA: "a"}, nil, false},
		{Security{Cert: "c", Key: "k"}, nil, false},
	} {
		if err := test.security.Check(test.addresses...); (err == nil) != test.ok {
			t.Errorf("%+v on %q: %v, want ok %v", test.security, test.addresses, err, test.ok)
		}
	}
}

func TestParseCell(t *testing.T) {
	for _, test := range []struct {
		value     string
		name      string
		addresses []string
	}{
		{"ny1=a:1", "ny1", []string{"a:1"}},
		{"ny1=a:1,[::1]:2", "ny1", []string{"a:1", "[::1]:2"}},
		{"ny1", "", nil},
		{"ny1=", "", nil},
		{"ny1=a", "", nil},
		{"ny1=a:0", "", nil},
		{"ny1=a:99999", "", nil},
		{"ny1=a:1,", "", nil},
		{"NY1=a:1", "", nil},
		{"local=a:1", "", nil},
		{"=a:1", "", nil},
	} {
		name, addresses, err := ParseCell(test.value)
		if name != test.name || !slices.Equal(addresses, test.addresses) || (err == nil) != (test.name != "") {
			t.Errorf("ParseCell(%q) = %q, %q, %v", test.value, name, addresses, err)
		}
	}
}
