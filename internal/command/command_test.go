package command

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program is a command with a flag, and subcommands with bounds of arguments.
func program() *cobra.Command {
	root := &cobra.Command{Use: "program", RunE: func(*cobra.Command, []string) error { return nil }}
	root.Flags().Int("size", 1, "how much")
	fail := func(cmd *cobra.Command, args []string) error { return errors.New("cannot " + strings.Join(args, " ")) }
	group := &cobra.Command{Use: "group", RunE: fail}
	group.AddCommand(&cobra.Command{Use: "member", Short: "Fail too.", Args: Arguments(1, 2), RunE: fail})
	root.AddCommand(group,
		&cobra.Command{Use: "fail NAME", Short: "Fail, always.", Args: Arguments(1, 1), RunE: fail},
		&cobra.Command{Use: "try [NAME]", Args: Arguments(0, 1), RunE: fail},
		&cobra.Command{Use: "pass", Short: "Fail, without a reason.", RunE: fail})
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
		{"walk", ExitUsage, `program: unknown command "walk"; see program --help`},
		{"walk away", ExitUsage, `program: unknown command "walk away"; see program --help`},
		{"group walk", ExitUsage, `program: unknown command "walk"; see program group --help`},
		{"fail", ExitUsage, "program: fail takes 1 argument, not 0; see program fail --help"},
		{"fail here", ExitFailed, "program: cannot here"},
		{"try this that", ExitUsage, "program: try takes at most 1 argument, not 2; see program try --help"},
		{"group member a b c", ExitUsage, "program: group member takes 1 to 2 arguments, not 3; see program group member --help"},
		{"pass it", ExitUsage, "program: pass takes no arguments"},
		{"help", 0, ""},
		{"help fail", 0, ""},
		{"help walk", ExitUsage, `program: unknown command "walk"; see program --help`},
		{"help group walk", ExitUsage, `program: unknown command "group walk"; see program --help`},
		{"--version", 0, ""},
	} {
		var stderr strings.Builder
		root := program()
		root.SetOut(io.Discard)
		err := Run(t.Context(), root, strings.Fields(test.args))
		code := Report("program", err, &stderr)
		if says := strings.TrimSuffix(stderr.String(), "\n"); code != test.code || says != test.says {
			t.Errorf("%q: exit code %d saying %q; want %d saying %q", test.args, code, says, test.code, test.says)
		}
	}
}

func TestOutput(t *testing.T) {
	for args, want := range map[string]string{
		"help fail":    "Fail, always.",
		"fail --help":  "program fail NAME [flags]",
		"help":         "group ",
		"--version":    "program version ",
		"help --help ": "Show what a command does.",
	} {
		var stdout strings.Builder
		root := program()
		root.SetOut(&stdout)
		if err := Run(t.Context(), root, strings.Fields(args)); err != nil || !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: %v; it said\n%s\nwant %q", args, err, stdout.String(), want)
		}
	}

	alone := &cobra.Command{Use: "alone", RunE: func(*cobra.Command, []string) error { return nil }}
	if err := Run(t.Context(), alone, []string{"x"}); err == nil || err.Error() != `it takes no arguments, and there is "x"` {
		t.Errorf("an argument too many: %v", err)
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
