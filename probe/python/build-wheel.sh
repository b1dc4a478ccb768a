#!/bin/sh
# Builds the wheel: the Python package, its native module and the `stallscope` binary.
# usage: build-wheel.sh [OUT]       (default: target/wheels; needs maturin 1.16 or later)
#        build-wheel.sh --binary    only the binary, to where the wheel takes it from
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
target=${CARGO_TARGET_DIR:-$root/target}
out=${1:-$target/wheels}
[ "$out" = --binary ] || command -v maturin >/dev/null || {
    echo "build-wheel.sh: no maturin here; get it with: pip install 'maturin>=1.16'" >&2
    exit 1
}
# The packages of stage.sh, so that a checkout which has built those has nothing to compile here.
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p stallscope -p stallscope-python -p slowfs
mkdir -p "$here/wheel-data/scripts"
install -s -m 755 "$target/release/stallscope" "$here/wheel-data/scripts/stallscope"
[ "$out" = --binary ] || maturin build --release --manifest-path "$here/Cargo.toml" --out "$out"
