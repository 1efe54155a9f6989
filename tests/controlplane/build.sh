#!/bin/sh
# Builds the Kubernetes control plane that tests start and prints the directory that holds it.
# Everything lands outside the tree, in a directory named by the hash of go.sum and of this script: a second call does
# nothing. Under jobset-config/ stands what that controller's release ships beside it: its CRD, role and webhooks.
set -eu
cd "$(dirname "$0")"
key=$(cat go.sum build.sh | python3 -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])')
target="${XDG_CACHE_HOME:-$HOME/.cache}/elastic-tpu/$key"
if [ ! -d "$target" ]; then
    command -v go >/dev/null || { echo "tests/controlplane/build.sh: needs Go (https://go.dev/dl)" >&2; exit 1; }
    # Built under another name and renamed: a build that was cut short is never taken for a control plane.
    partial="$target.$$"
    trap 'rm -rf "$partial"' EXIT
    trap 'exit 1' INT TERM HUP
    mkdir -p "$partial"
    version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
    minor=${version#v1.}
    stamp="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1"
    stamp="$stamp -X k8s.io/component-base/version.gitMinor=${minor%%.*}"
    echo "building Kubernetes $version, etcd, JobSet and kwok: about six minutes on two processors, once" >&2
    CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags="-s -w $stamp" -o "$partial/" tool
    cp -R "$(go list -m -f '{{.Dir}}' sigs.k8s.io/jobset)/config/components" "$partial/jobset-config"
    chmod -R u+w "$partial"
    [ -d "$target" ] || mv "$partial" "$target" # somebody else may have been faster
fi
echo "$target"
