#!/bin/sh
# Builds the test servers that are Go programs and prints the directory that holds them.
# Everything lands outside the tree, in a directory named by the hash of go.sum: a second call does nothing.
set -eu
cd "$(dirname "$0")"
key=$(python3 -c 'import hashlib, pathlib; print(hashlib.sha256(pathlib.Path("go.sum").read_bytes()).hexdigest()[:16])')
target="${XDG_CACHE_HOME:-$HOME/.cache}/elastic-tpu/$key"
if [ ! -x "$target/fake-gcs-server" ]; then
    command -v go >/dev/null || { echo "tests/tools/build.sh: needs Go (https://go.dev/dl)" >&2; exit 1; }
    mkdir -p "$target"
    # Built under another name and renamed: a build that was cut short is never taken for a server.
    partial="$target/.fake-gcs-server.$$"
    trap 'rm -f "$partial"' EXIT
    CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags='-s -w' -o "$partial" github.com/fsouza/fake-gcs-server
    mv "$partial" "$target/fake-gcs-server"
fi
echo "$target"
