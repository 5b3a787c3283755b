//go:build race

package proccell

const raceEnabled = true
