#!/bin/sh
# Builds the program and lays the package out under target/python, where a binary in target/PROFILE looks for it.
# usage: stage.sh [release|debug]
set -eu
profile=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $profile in
    release) flags=--release ;;
    debug) flags= ;;
    *) echo "stage.sh: the profile is release or debug, not $profile" >&2; exit 2 ;;
esac
# In one call, and with the demo's slow file system: built apart, each would have what they share compiled anew for the
# features that it alone asks for.
cargo build --manifest-path "$root/Cargo.toml" $flags -p stallscope -p stallscope-python -p slowfs
staged=$target/python/stallscope

# File by file, and only what changed: a job that runs from there must never find half of it.
place() {
    cmp -s "$1" "$2" && return
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.$$"
    mv "$2.$$" "$2"
}
(cd "$here/stallscope" && find . -name '*.py') | while read -r file; do
    place "$here/stallscope/$file" "$staged/$file"
done
place "$target/$profile/lib_native.so" "$staged/_native.abi3.so"
# Of a folder in PYTHONPATH no .pth is read: there they lie for tests to copy.
for file in stallscope.pth _stallscope_start.py; do
    place "$here/start/$file" "$target/python/$file"
done
(cd "$staged" && find . -name '*.py') | while read -r file; do
    [ -e "$here/stallscope/$file" ] || rm -f "$staged/$file"
done
