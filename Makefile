# make alone does what CI does.
all: test

# The commands, in bin/.
build:
	go build -o bin/ ./cmd/...

# A cell of three replicas and two mounts, played before one's eyes. As root, for the mounts.
demo: build
	go run ./internal/demo -bin bin

# Everything, with the race detector. -count=1: a pass of last week says nothing about real
# processes. The packages that mount real file systems run one at a time, after the others: on a
# small machine two of them at once would wait for each other's processor and call it a hang.
mounting = lockfs/e2e lockfs/fuse lockfs/cmd/lockfs-mount lockfs/internal/demo
test: check
	go test -race -count=1 -timeout 10m $$(go list ./... | grep -v -x $(addprefix -e ,$(mounting)))
	go test -race -count=1 -timeout 10m -p 1 $(mounting)

# What a machine can see without running anything.
check:
	@files=$$(gofmt -l .) && test -z "$$files" || { echo "not gofmt'ed: $$files"; exit 1; }
	go vet ./...
	go run ./internal/protogen -check

# The long forms of the tests that have a short one: hours of kills, waiters and random histories.
soak:
	LOCKFS_SOAK=1 go test -race -count=1 -timeout 6h -p 1 ./...
	go test -count=1 -timeout 2h ./internal/simcell -seeds 200
	go test -count=1 -timeout 2h ./store ./raft ./master -seeds 500

# The code of the .proto files, after a change of one.
generate:
	go run ./internal/protogen

clean:
	rm -rf bin

.PHONY: all build demo test check soak generate clean
