#!/usr/bin/env bash
# Trains a small network on a small JPEG data set that lies on slow storage, with stallscope watching.
# CACHE=1: the same job twice, without and with a cache under its own loader: no line of it changes.
# ACT=1: the storage is far away instead (each read takes a time), and the job saves too often; stallscope does something about both.
# CKPT=1: another job instead, which is killed at random moments and goes on from its checkpoints.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
here=target/demo
say() { printf 'demo: %s\n' "$*" >&2; }
# Before and after, while nothing of ours runs: figures of a machine that others use meanwhile are no example.
busy() {
    local reason
    reason=$("$python" demo/busy.py)
    [ -z "$reason" ] || say "NOT REPRESENTATIVE: $reason"
}

if [ -n "${CKPT:-}" ]; then
    busy
    code=0
    "$python" demo/killed.py || code=$?
    busy
    exit "$code"
fi
# So slow that reading a batch takes about four times as long as a training step of two ordinary cores.
read_mb_s=4.5
# Far away: many reads can be under way at once, so that more of them help. An image takes about three reads, so that a
# batch of two workers takes about nine times as long as a training step of two ordinary cores.
latency_ms=12
act=${ACT:-}
mkdir -p "$here"
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

# A file system of our own, which needs no root. $1: why that; $2: what it is like; the rest: how slow it is to be.
# Without root the kernel's evidence is missing as well, but for a collector that root runs.
pace() {
    local slow=$here/slow why=$1 what=$2
    shift 2
    if ! command -v fusermount3 >/dev/null; then
        unlimited "$why; with \`apt-get install fuse3\` a paced FUSE takes its place"
    elif ! { [ -r /dev/fuse ] && [ -w /dev/fuse ]; }; then
        unlimited "$why; a paced FUSE in its stead needs a /dev/fuse that you may read and write"
    else
        # What a killed demo left.
        fusermount3 -uzq "$slow" 2>/dev/null || true
        mkdir -p "$slow"
        # In a session of its own: Ctrl-C is for the training, which still reads; tidy() ends this one.
        setsid target/release/slowfs "$data" "$slow" "$@" &
        pacer=$!
        until mountpoint -q "$slow"; do
            kill -0 $pacer 2>/dev/null || { pacer=; unlimited "$why; and the paced FUSE could not be mounted"; return; }
            sleep 0.1
        done
        data=$slow
        say "$why"
        say "so the data set lies on a paced FUSE, $what"
        [ "$(id -u)" = 0 ] || say "the kernel's evidence is missing unless root runs \`stallscope collect\`"
    fi
}

data=$here/plain
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -z "$act" ] && reason=$("$python" truth/storage.py check 2>&1); then
    disk=$here/data data=$here/data
    storage up
fi
say "3 of 4: the data set, 2,320 JPEG files that are made once"
"$python" demo/images.py "$data"
if [ -n "$act" ]; then
    pace "what ACT=1 is about is storage that is far away" \
        "each read of which takes $latency_ms ms, however many are under way" --mib-per-s 400 --latency-ms $latency_ms
elif [ -n "$disk" ] && reason=$(storage limit --read-mb-s $read_mb_s 2>&1); then
    say "the data set lies on a disk that reads $read_mb_s MiB/s"
else
    pace "$reason" "which reads $read_mb_s MiB/s" --mib-per-s $read_mb_s
fi
# The paced FUSE forgets by itself, at every opening.
if [ -z "$pacer" ]; then
    "$python" truth/storage.py forget --mount "$data"
    forget &
    forgetter=$!
fi

stallscope=target/release/stallscope
busy
if [ -n "$act" ]; then
    say "4 of 4: training for some five minutes, with a checkpoint each second and two workers"
    say "a controller tries more workers, a cache and rarer checkpoints within 4 GiB, and keeps what it can prove"
    say "watch it from another terminal: $stallscope top demo, then 4 for the knobs, 5 for the audit"
    rm -rf "$here"/act.stall* "$here"/checkpoint
    "$stallscope" run --name demo -o "$here/act.stall" --tune act --memory 4GiB -- \
        "$python" demo/train.py "$data" --epochs 8 --minutes 5 --checkpoint "$here/checkpoint.pt" --save-every 1s --table-mb 200
    rm -rf "$here"/checkpoint
    busy
    say "what the controller did, and why:"
    "$stallscope" audit "$here/act.stall"
    "$python" demo/waits.py "$here/act.stall"
    say "the run again, with its knobs and audit: $stallscope top $here/act.stall"
    exit
fi
if [ -n "${CACHE:-}" ]; then
    say "4 of 4: training three epochs, and then again with \`run --cache 256MiB\`; the script is the same"
    say "watch it from another terminal: $stallscope top plain, then $stallscope top cached"
    rm -rf "$here"/plain.* "$here"/cached.*
    "$stallscope" run --name plain -o "$here/plain.stall" -- \
        "$python" demo/train.py "$data" --epochs 3 --account "$here/plain.json" --checkpoint "$here/checkpoint.pt" 2>/dev/null
    busy
    "$stallscope" run --name cached -o "$here/cached.stall" --cache 256MiB -- \
        "$python" demo/train.py "$data" --epochs 3 --account "$here/cached.json" --checkpoint "$here/checkpoint.pt"
    busy
    "$stallscope" report "$here/cached.stall" --format json >"$here/cached.report.json"
    "$python" demo/cached.py "$here/plain.json" "$here/cached.json" "$here/cached.report.json"
    say "what changed, cause by cause: $stallscope diff $here/plain.stall $here/cached.stall"
    exit
fi
say "4 of 4: training, for less than a minute; the recording will be $here/demo.stall"
say "watch it from another terminal: $stallscope top demo"
rm -rf "$here"/demo.stall* "$here"/demo.html "$here"/tables
"$stallscope" run --name demo -o "$here/demo.stall" -- \
    "$python" demo/train.py "$data" --checkpoint "$here/checkpoint.pt"
busy
"$stallscope" report "$here/demo.stall" -o "$here/demo.html" 2>/dev/null
"$stallscope" report "$here/demo.stall" --format parquet -o "$here/tables" 2>/dev/null
say "the run again, step by step: $stallscope top $here/demo.stall"
say "as a page to send round: $here/demo.html; as tables for data frames: $here/tables"
