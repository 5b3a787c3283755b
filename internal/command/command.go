// Package command is what the programs under cmd have in common: the voice in which they speak of
// errors, and the flags that say how connections are secured.
//
// A program says one sentence to standard error, prefixed with its name, and ends with exit code 2
// where its arguments make no sense, else 1.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
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
// once and by Report, and makes errors of flags and arguments errors of usage. Help goes to
// standard output.
func Run(ctx context.Context, root *cobra.Command, args []string) error {
	root.SetArgs(args)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	checkArguments(root)
	return root.ExecuteContext(ctx)
}

// checkArguments makes what cobra says about a wrong number of arguments, or about a command that
// does not exist, an error of usage.
func checkArguments(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
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
