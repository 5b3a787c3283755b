//go:build !race

package proccell

const raceEnabled = false
