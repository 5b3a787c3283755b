package raft

import (
	"context"
	"fmt"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// A brokenInvariant is what raft panics with: it met what cannot be.
type brokenInvariant string

// catchBrokenInvariant, deferred, makes an error of such a panic.
func catchBrokenInvariant(err *error) {
	switch p := recover().(type) {
	case nil:
	case brokenInvariant:
		*err = fmt.Errorf("raft met what cannot be: %s", string(p))
	case string: // raft says some without its logger
		*err = fmt.Errorf("raft met what cannot be: %s", p)
	default:
		panic(p)
	}
}

// An etcdLogger lets raft log. What it calls news (each vote, each change of role) is
// detail here: the replica itself tells who leads.
type etcdLogger struct{ to *slog.Logger }

func (l etcdLogger) log(level slog.Level, text string) {
	l.to.Log(context.Background(), level, text)
}

func (l etcdLogger) logf(level slog.Level, format string, v []any) {
	if l.to.Enabled(context.Background(), level) {
		l.log(level, fmt.Sprintf(format, v...))
	}
}

func (l etcdLogger) Debug(...any)                   {}
func (l etcdLogger) Debugf(string, ...any)          {}
func (l etcdLogger) Info(v ...any)                  { l.log(slog.LevelDebug, fmt.Sprint(v...)) }
func (l etcdLogger) Infof(format string, v ...any)  { l.logf(slog.LevelDebug, format, v) }
func (l etcdLogger) Warning(v ...any)               { l.log(slog.LevelWarn, fmt.Sprint(v...)) }
func (l etcdLogger) Warningf(f string, v ...any)    { l.logf(slog.LevelWarn, f, v) }
func (l etcdLogger) Error(v ...any)                 { l.log(slog.LevelError, fmt.Sprint(v...)) }
func (l etcdLogger) Errorf(format string, v ...any) { l.logf(slog.LevelError, format, v) }
func (l etcdLogger) Fatal(v ...any)                 { l.Panic(v...) }
func (l etcdLogger) Fatalf(format string, v ...any) { l.Panicf(format, v...) }
func (l etcdLogger) Panic(v ...any)                 { panic(brokenInvariant(fmt.Sprint(v...))) }
func (l etcdLogger) Panicf(format string, v ...any) {
	panic(brokenInvariant(fmt.Sprintf(format, v...)))
}

// A slogCore lets the write-ahead log warn, above all of a slow disk.
type slogCore struct{ to *slog.Logger }

func (c slogCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.to.With(attributes(fields)...)}
}

func (c slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	c.to.Log(context.Background(), level, "log: "+e.Message, attributes(fields)...)
	return nil
}

func (c slogCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	var attributes []any
	for _, f := range fields {
		f.AddTo(encoder)
		attributes = append(attributes, slog.Any(f.Key, encoder.Fields[f.Key]))
	}
	return attributes
}
