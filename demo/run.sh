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

disk= forgetter= pacer=
tidy() {
    trap '' INT TERM
    for child in $forgetter $pacer; do { kill "$child" && wait "$child"; } 2>/dev/null || true; done
    [ -z "$disk" ] || storage down
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

# The second choice, which needs no root: the same rate through a file system of our own. $1: why not the first.
# Without root the kernel's evidence is missing as well, but for a collector that root runs.
pace() {
    local slow=$here/slow
    if ! command -v fusermount3 >/dev/null; then
        unlimited "$1; with \`apt-get install fuse3\` a paced FUSE takes its place"
    elif ! { [ -r /dev/fuse ] && [ -w /dev/fuse ]; }; then
        unlimited "$1; a paced FUSE in its stead needs a /dev/fuse that you may read and write"
    elif ! cargo build --release -q -p slowfs; then
        unlimited "$1; and the paced FUSE could not be built"
    else
        # What a killed demo left.
        fusermount3 -uzq "$slow" 2>/dev/null || true
        mkdir -p "$slow"
        # In a session of its own: Ctrl-C is for the training, which still reads; tidy() ends this one.
        setsid target/release/slowfs "$data" "$slow" --mib-per-s $read_mb_s &
        pacer=$!
        until mountpoint -q "$slow"; do
            kill -0 $pacer 2>/dev/null || { pacer=; unlimited "$1; and the paced FUSE could not be mounted"; return; }
            sleep 0.1
        done
        data=$slow
        say "$1"
        say "so the data set lies on a paced FUSE instead, which reads $read_mb_s MiB/s"
        [ "$(id -u)" = 0 ] || say "the kernel's evidence is missing unless root runs \`stallscope collect\`"
    fi
}

data=$here/plain
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if reason=$("$python" truth/storage.py check 2>&1); then
    disk=$here/data data=$here/data
    storage up
fi
[ -e "$data/complete" ] || say "making the data set (2,320 JPEG files, once)"
"$python" demo/images.py "$data"
if [ -n "$disk" ] && reason=$(storage limit --read-mb-s $read_mb_s 2>&1); then
    say "the data set lies on a disk that reads $read_mb_s MiB/s"
else
    pace "$reason"
fi
# The paced FUSE forgets by itself, at every opening.
if [ -z "$pacer" ]; then
    "$python" truth/storage.py forget --mount "$data"
    forget &
    forgetter=$!
fi

stallscope=target/release/stallscope
say "training; the recording will be $here/demo.stall"
say "watch it from another terminal: $stallscope top demo"
rm -rf "$here"/demo.stall* "$here"/demo.html "$here"/tables
"$stallscope" run --name demo -o "$here/demo.stall" -- \
    "$python" demo/train.py "$data" --checkpoint "$here/checkpoint.pt"
"$stallscope" report "$here/demo.stall" -o "$here/demo.html" 2>/dev/null
"$stallscope" report "$here/demo.stall" --format parquet -o "$here/tables" 2>/dev/null
say "the run again, step by step: $stallscope top $here/demo.stall"
say "as a page to send round: $here/demo.html; as tables for data frames: $here/tables"
