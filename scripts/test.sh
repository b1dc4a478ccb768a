#!/usr/bin/env bash
# Runs every suite and ends with how many tests there were and how many were skipped. Fails if one failed.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=target/test
rm -rf "$logs" && mkdir -p "$logs"
failed=()
rust_failed='TRY|FAIL|SIGABRT|SIGSEGV|TIMEOUT'

# The optimised program is tested, which the suites share, with checks that it is delivered without: a panic in a training process
# would be the job's error.
export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
make --no-print-directory build || exit

suite() { # NAME COMMAND…
    printf '\n== %s\n' "$1"
    "${@:2}" </dev/null 2>&1 | tee "$logs/$1.txt" || failed+=("$1")
}

# A Rust test that cannot run here passes and prints a line that begins with "SKIPPED: "; that is counted too.
if command -v cargo-nextest >/dev/null; then
    printf '\n== rust\n'
    scripts/cached.sh cargo nextest run --workspace --release --no-run >"$logs/rust-build.txt" 2>&1 </dev/null
    cargo nextest run --workspace --release --no-fail-fast --status-level fail --final-status-level fail \
        --success-output final --no-output-indent --color never >"$logs/rust.txt" 2>&1 </dev/null || failed+=(rust)
    grep -E "^ *(Summary|FLAKY|$rust_failed|error|SKIPPED: )" "$logs/rust.txt" | sort -u
else
    suite rust cargo test --workspace --release --no-fail-fast --quiet -- --nocapture
fi
# What shares memory with a job, in every interleaving.
suite loom env RUSTFLAGS="--cfg loom" cargo test -p stallscope-ring -p stallscope-cache -p stallscope-checkpoint --lib --release --quiet --target-dir target/loom -- turn:: spsc:: pool::slots:: copy::model::
# What reads bytes from elsewhere, for some seconds each; `make fuzz` takes its time.
suite fuzz scripts/cached.sh scripts/fuzz.sh 5
# As with Rust (.config/nextest.toml): what fails once is named as flaky, what fails twice has failed.
again=()
.venv/bin/python -c 'import pytest_rerunfailures' 2>/dev/null && again=(--reruns 1)
for tests in probe/python/tests truth/tests demo/tests contrib/tests tests/chaos; do
    # A test that hangs is ended and named; the slowest one takes two minutes on two cores.
    [ -d "$tests" ] || continue
    # Those of the shim start their jobs in folders of their own, and one more at a time than two cores can run, as some wait
    # for disks, sockets and each other; truth jobs want the machine for themselves.
    beside=()
    [ "$tests" = probe/python/tests ] && beside=(-n 3 --dist loadfile)
    suite "${tests//\//-}" .venv/bin/python -m pytest -q -rsfER --timeout 480 --durations 15 "${again[@]}" "${beside[@]}" "$tests"
done

# nextest: "Summary … 12 passed, 1 skipped"; cargo test: "test result: ok. 5 passed; … 1 ignored"; pytest: "4 passed, 2 skipped in 3s".
grep -q '^ *Summary' "$logs/rust.txt" && rust='^ *Summary' || rust='^test result:'
sum() {
    { grep -hE "$rust" "$logs/rust.txt"; grep -hE '^(=+ )?[0-9]+ (passed|failed|skipped|error).* in ' "$logs"/*-tests.txt "$logs"/tests-chaos.txt; } |
        grep -oE "[0-9]+ $1" | awk '{total += $1} END {print total + 0}'
}
passed=$(sum passed)
skipped=$(($(sum '(skipped|ignored)') + $(cat "$logs"/*.txt | grep -c '^ *SKIPPED: ')))
grep -hE '^RERUN ' "$logs"/*.txt | sed 's/^RERUN/FLAKY/' | sort -u
if [ ${#failed[@]} -gt 0 ]; then
    # Near the end, where a long log is read first.
    printf '\nFailed, and what was printed:\n'
    grep -hE "^ *($rust_failed) " "$logs/rust.txt" | sort -u
    grep -hE -A 2 "^ *thread '.*panicked at" "$logs/rust.txt" | cut -c1-400 | tail -n 40
    grep -hE '^(FAILED|ERROR) ' "$logs"/*.txt | cut -c1-400
    # Neither names what failed in a line of its own.
    for name in loom fuzz; do
        [[ " ${failed[*]} " != *" $name "* ]] || tail -n 60 "$logs/$name.txt" | cut -c1-400
    done
fi
printf '\n%s tests passed, %s skipped' "$passed" "$skipped"
if [ ${#failed[@]} -gt 0 ]; then
    printf '; failed: %s (see %s)\n' "${failed[*]}" "$logs"
    exit 1
fi
printf '\n'
