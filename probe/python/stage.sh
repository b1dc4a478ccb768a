#!/bin/sh
# Lays the package out under target/python, where a binary in target/PROFILE looks for it.
# usage: stage.sh [release|debug]
set -eu
profile=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
case $profile in
    release) flags=--release ;;
    debug) flags= ;;
    *) echo "stage.sh: the profile is release or debug, not $profile" >&2; exit 2 ;;
esac
cargo build --quiet --manifest-path "$here/Cargo.toml" $flags
staged=$target/python/stallscope
# Two at a time would lay out half of each.
exec 9>"$target/stage.lock"
flock 9
rm -rf "$staged.new"
mkdir -p "$staged.new"
(cd "$here/stallscope" && find . -name '*.py' -print) | while read -r file; do
    mkdir -p "$staged.new/$(dirname "$file")"
    cp "$here/stallscope/$file" "$staged.new/$file"
done
cp "$target/$profile/lib_native.so" "$staged.new/_native.abi3.so"
rm -rf "$staged"
mv "$staged.new" "$staged"
echo "$staged"
