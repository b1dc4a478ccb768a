#!/bin/sh
# Runs a build whose C is compiled once for all profiles and target folders, where there is ccache: cached.sh COMMAND…
# For builds alone: a compiler that a test starts as another user cannot write to the cache.
target=$(cd "$(dirname "$0")/.." && pwd)/target
# What lies under target is named from where the compiler runs, and so is the same for each of its folders.
export CCACHE_DIR="$target/ccache" CCACHE_BASEDIR="$target" CCACHE_NOHASHDIR=1
PATH=/usr/lib/ccache:$PATH exec "$@"
