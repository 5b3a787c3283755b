// Package command is what the programs under cmd have in common: the voice in which they speak of
// errors, and the flags that say how connections are secured.
//
// A program says one sentence to standard error, prefixed with its name, and ends with exit code 2
// where its arguments make no sense, else 1.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes. A program that did what it was asked ends with 0.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// usage is an error in how a program was called.
type usage struct{ err error }

func (u usage) Error() string { return u.err.Error() }
func (u usage) Unwrap() error { return u.err }

// Usage returns an error that ends the program with ExitUsage.
func Usage(format string, args ...any) error {
	return usage{fmt.Errorf(format, args...)}
}

// Run runs a command with the given arguments. It makes cobra silent, so that errors are reported
// once and by Report, makes errors of flags and arguments errors of usage, and adds --version. Help
// goes to standard output.
func Run(ctx context.Context, root *cobra.Command, args []string) error {
	root.SetArgs(args)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.Version = version()
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	if root.HasSubCommands() {
		root.SetHelpCommand(help())
	}
	checkArguments(root)
	return root.ExecuteContext(ctx)
}

// version is that of the module, which the go command takes from the repository, and the compiler's.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return cmp.Or(info.Main.Version, "(devel)") + " " + info.GoVersion
}

// help takes the place of cobra's, which does not fail where there is no such command.
func help() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show what a command does.", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknown(cmd.Root(), args)
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// Arguments returns a check, for a cobra.Command's Args, that says in words what is wrong with the
// number of arguments where it is not from least to most.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if n := len(args); n >= least && n <= most {
			return nil
		}
		_, name, _ := strings.Cut(cmd.CommandPath(), " ")
		return Usage("%s takes %s, not %d; see %s --help", name, count(least, most), len(args), cmd.CommandPath())
	}
}

func count(least, most int) string {
	noun := "arguments"
	if most == 1 {
		noun = "argument"
	}
	switch least {
	case most:
		return fmt.Sprintf("%d %s", most, noun)
	case 0:
		return fmt.Sprintf("at most %d %s", most, noun)
	}
	return fmt.Sprintf("%d to %d %s", least, most, noun)
}

// noArguments is what a command without a check of its own is held to.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		return unknown(cmd, args)
	case !cmd.HasParent():
		return Usage("it takes no arguments, and there is %q", args[0])
	}
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return Usage("%s takes no arguments", name)
}

func unknown(of *cobra.Command, args []string) error {
	return Usage("unknown command %q; see %s --help", strings.Join(args, " "), of.CommandPath())
}

// checkArguments makes what cobra says about a wrong number of arguments an error of usage.
func checkArguments(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = noArguments
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage{errors.New(strings.TrimSpace(err.Error()))}
		}
		return nil
	}
	for _, child := range cmd.Commands() {
		checkArguments(child)
	}
}

// Report says to stderr why the program called name failed, and returns its exit code.
func Report(name string, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if errors.As(err, &usage{}) {
		return ExitUsage
	}
	return ExitFailed
}
