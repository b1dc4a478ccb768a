#!/usr/bin/env bash
# Trains a small network on a small JPEG data set that lies on slow storage, with stallscope watching.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
here=target/demo
# So slow that reading a batch takes about four times as long as a training step of two ordinary cores.
read_mb_s=4.5
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

# What was to be slow is not: the demo goes on, but nobody should take it for an example.
unlimited() {
    say "NOT REPRESENTATIVE: $1"
    say "the data set lies on ordinary storage, so there is little to wait for; do not judge by what follows"
}

data=$here/plain
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if reason=$("$python" truth/storage.py check 2>&1); then
    data=$here/data
    storage up
else
    unlimited "$reason"
fi
[ -e "$data/complete" ] || say "making the data set (2,320 JPEG files, once)"
"$python" demo/images.py "$data"
if [ "$data" = "$here/data" ]; then
    if reason=$(storage limit --read-mb-s $read_mb_s 2>&1); then
        say "the data set lies on a disk that reads $read_mb_s MiB/s"
    else
        unlimited "$reason"
    fi
fi
"$python" truth/storage.py forget --mount "$data"
forget &
forgetter=$!

say "training; the recording will be $here/demo.stall"
rm -f "$here"/demo.stall*
target/release/stallscope run --name demo -o "$here/demo.stall" -- \
    "$python" demo/train.py "$data" --checkpoint "$here/checkpoint.pt"
