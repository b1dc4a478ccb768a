#!/usr/bin/env bash
# Builds the fuzz targets and runs each for some seconds: fuzz.sh SECONDS [TARGET…]; with FEATURES=collector the kernel
# service and what reads /proc as well, and recordings are taken for a model of their job, too.
# An input that panics, takes 5 s or more than 256 MiB is kept in fuzz/found, which every later run begins with: it is to
# be committed with the mend. What widens coverage is kept in target/fuzz-corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET…]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(recording summary wire lane evidence pool checkpoint pack tables picture trace ${FEATURES:+service readers})
export CARGO_TARGET_DIR=$PWD/target
# With the packages of stage.sh: alone it would have what it shares with them compiled anew for fewer features.
cargo build --release --quiet -p stallscope -p stallscope-python -p slowfs -p madeup --example seeds
target/release/examples/seeds target/fuzz-seeds
triple=$(rustc -vV | sed -n 's/^host: //p')
# libFuzzer's counters; what cargo-fuzz sets, without a sanitizer, which needs a nightly compiler.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
# Not in one go with the seeds: a target directory of its own keeps either from building the other anew.
RUSTFLAGS=$(echo $coverage) CARGO_TARGET_DIR=$PWD/target/fuzz \
    cargo build --release --quiet --manifest-path fuzz/Cargo.toml --features "${FEATURES-}" --target "$triple"

failed=()
printf '| target | executions | executions/s | coverage, edges | inputs kept |\n|---|---:|---:|---:|---:|\n'
for target in "${targets[@]}"; do
    corpus=target/fuzz-corpus/$target log=target/fuzz-corpus/$target.txt
    mkdir -p "$corpus" "fuzz/found/$target" "target/fuzz-seeds/$target"
    fuzz() { "target/fuzz/$triple/release/$target" -timeout=5 -rss_limit_mb=256 "$@" </dev/null 2>&1; }
    if ! fuzz "$corpus" "target/fuzz-seeds/$target" "fuzz/found/$target" -artifact_prefix="fuzz/found/$target/" -seed=1 \
        -max_total_time="$seconds" -max_len=262144 -print_final_stats=1 >"$log"; then
        # The 5 s are by the clock, which goes on while the whole machine stands still; then the input takes less by itself.
        slow=$(grep -oE "fuzz/found/$target/timeout-[0-9a-f]+" "$log" | tail -1) || true
        if [ -n "$slow" ] && fuzz "$slow" >>"$log"; then
            echo "fuzz: $target: the machine stood still; $(basename "$slow") takes less than 5 s by itself" >&2
            rm "$slow"
        else
            failed+=("$target")
        fi
    fi
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -1 | grep -oE '[0-9]+' || true)
    printf '| %s | %s | %s | %s | %s |\n' "$target" "$(stat number_of_executed_units)" "$(stat average_exec_per_sec)" "$edges" "$(find "$corpus" -type f | wc -l)"
done
if [ ${#failed[@]} -gt 0 ]; then
    for target in "${failed[@]}"; do tail -n 40 "target/fuzz-corpus/$target.txt"; done
    echo "fuzz: failed: ${failed[*]}; the inputs are in fuzz/found" >&2
    exit 1
fi
