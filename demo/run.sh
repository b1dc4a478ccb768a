#!/usr/bin/env bash
# Trains a small network on a small JPEG data set that lies on slow storage, with stallscope watching.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
here=target/demo
mkdir -p "$here"
say() { printf 'demo: %s\n' "$*" >&2; }
storage() { "$python" truth/storage.py "$1" --image "$here/storage.img" --mount "$here/data" --size-mb 512 "${@:2}"; }

forgetter=
tidy() {
    trap '' INT TERM
    [ -z "$forgetter" ] || { kill "$forgetter" && wait "$forgetter"; } 2>/dev/null || true
    [ "$data" = "$here/plain" ] || storage down
}

# Drops cached pages for as long as the demo runs, as a machine does whose data set is larger than its memory.
forget() {
    while sleep 2; do "$python" truth/storage.py forget --mount "$data" || true; done
}

data=$here/plain
if reason=$("$python" truth/storage.py check 2>&1); then
    data=$here/data
    trap tidy EXIT
    storage up
else
    trap tidy EXIT
    say "$reason. The data set lies on ordinary storage instead, so there is little to wait for."
fi
[ -e "$data/complete" ] || say "making the data set (2,320 JPEG files, once)"
"$python" demo/images.py "$data"
if [ "$data" = "$here/data" ]; then
    storage limit --read-mb-s 3.5
    say "the data set lies on a disk that reads 3.5 MiB/s"
fi
"$python" truth/storage.py forget --mount "$data"
forget &
forgetter=$!

say "training; the recording will be $here/demo.stall"
rm -f "$here"/demo.stall*
target/release/stallscope run --name demo -o "$here/demo.stall" -- \
    "$python" demo/train.py "$data" --checkpoint "$here/checkpoint.pt"
