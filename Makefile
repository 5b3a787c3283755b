# make alone does what CI does.
all: test

# The commands, in bin/.
build:
	go build -o bin/ ./cmd/...

# A cell of three replicas and two mounts, played before one's eyes. As root, for the mounts.
demo: build
	go run ./internal/demo -bin bin

# What a cell does beside what the machine could, in about four minutes. As root, for the mounts.
# For parts of it, and for profiles: go run ./bench -h
bench: build
	go run ./bench -bin bin

# Everything, with the race detector. -count=1: a pass of last week says nothing about real
# processes.
#
# Packages that test in virtual time get one processor each. All timers of a testing/synctest bubble
# share one context of the race detector, which crashes (SIGSEGV, or a CHECK of ThreadSanitizer)
# when two goroutines at once start a timer that is due already, as each new connection of bufconn
# does; seen with Go 1.26. Races are found by the order of things, so one processor shows them too.
#
# Packages that mount real file systems run one at a time, after the others: on a small machine two
# of them would wait for each other's processor and call it a hang.
virtual = lockfs/client lockfs/internal/simcell lockfs/raft
mounting = lockfs/e2e lockfs/bench lockfs/fuse lockfs/cmd/lockfs-mount lockfs/internal/demo
but = $$(go list ./... | grep -v -x $(addprefix -e ,$(1)))
race = go test -race -count=1
test: check
	$(race) -timeout 10m -cpu 1 $(virtual)
	$(race) -timeout 10m $(call but,$(virtual) $(mounting))
	$(race) -timeout 10m -p 1 $(mounting)

# What a machine can see without running anything.
check:
	@files=$$(gofmt -l .) && test -z "$$files" || { echo "not gofmt'ed: $$files"; exit 1; }
	go vet ./...
	go run ./internal/protogen -check

# The long forms of the tests that have a short one: hours of kills, waiters and random histories.
soak:
	LOCKFS_SOAK=1 $(race) -timeout 6h -cpu 1 $(virtual)
	LOCKFS_SOAK=1 $(race) -timeout 6h -p 1 $(call but,$(virtual))
	go test -count=1 -timeout 2h ./internal/simcell -seeds 200
	go test -count=1 -timeout 2h ./store ./raft ./master -seeds 500

# The code of the .proto files, after a change of one.
generate:
	go run ./internal/protogen

clean:
	rm -rf bin

.PHONY: all build demo bench test check soak generate clean
