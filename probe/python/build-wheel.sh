#!/bin/sh
# Builds the wheel: the Python package, its native module and the `stallscope` binary.
# usage: build-wheel.sh [OUT]       (default: target/wheels; needs maturin 1.16 or later)
#        build-wheel.sh --binary    only what the wheel takes besides the package: the binary, and what runs at Python's start
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
# What runs at the start of each Python of the environment: in site-packages itself, where Python looks for it.
mkdir -p "$here/wheel-data/purelib"
install -m 644 "$here/start/stallscope.pth" "$here/start/_stallscope_start.py" "$here/wheel-data/purelib"
[ "$out" = --binary ] || maturin build --release --manifest-path "$here/Cargo.toml" --out "$out"
