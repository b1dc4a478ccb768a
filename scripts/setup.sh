#!/usr/bin/env bash
# Gets what a purpose needs and is not there yet; quick when all is. Usage: scripts/setup.sh demo|test|bench|decode
# Never fails for what only narrows what can be done: it says so in a sentence and goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-demo}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Installs Debian packages where that is possible; else names them. One call fails as a whole for one unknown name.
packages() {
    local missing=()
    for name in "$@"; do
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if ! have apt-get; then
        say "this is not a Debian or Ubuntu; without the packages ${missing[*]} (or their like) some things stay off"
    elif [ "$(id -u)" != 0 ]; then
        say "as root, \`apt-get install ${missing[*]}\` would turn on what stays off without them"
    else
        say "installing ${missing[*]}"
        local log=target/setup/apt.log
        mkdir -p target/setup
        { refresh && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
            >"$log" 2>&1 </dev/null || say "apt-get could not install ${missing[*]} (see $log); what needs them stays off"
    fi
}

# Package by package, so that a release that lacks one still gets the others.
optional() {
    for name in "$@"; do packages "$name"; done
}

refreshed=
refresh() {
    [ -n "$refreshed" ] || apt-get update
    refreshed=yes
}

suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Names a Python that the requirements can be put beside.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

# A Python with torch in .venv, remade only when the list of requirements or its Python changed.
environment() {
    local stamp=.venv/.requirements python
    suits .venv/bin/python && cmp -s scripts/requirements.txt "$stamp" && return 0
    python=$(find_python)
    [ -n "$python" ] || optional python3-venv
    [ -n "$python" ] || python=$(find_python)
    # Ubuntu 22.04 has one beside its own 3.10.
    [ -n "$python" ] || optional python3.11-venv
    [ -n "$python" ] || python=$(find_python)
    if [ -z "$python" ]; then
        say "${PYTHON:-python3} is no Python of 3.11 or later with venv; install one, or name it in PYTHON"
        exit 1
    fi
    say "putting torch and its kin into .venv with $python (about 3 GB, once)"
    suits .venv/bin/python || "$python" -m venv --clear .venv
    scripts/progress.sh setup .venv/bin/python -m pip install --requirement scripts/requirements.txt
    cp scripts/requirements.txt "$stamp"
}

# The frameworks that are tried beside torch, in .venv too; whatever they ask for, torch and its kin stay what they are.
frameworks() {
    local stamp=.venv/.requirements-test log=target/setup/frameworks.log
    local lists=(scripts/requirements.txt scripts/requirements-test.txt)
    cat "${lists[@]}" | cmp -s - "$stamp" && return 0
    say "putting Lightning, Transformers, Accelerate, torchdata, moto and the schemas of Kubernetes into .venv (about 290 MB, once)"
    mkdir -p target/setup
    if .venv/bin/python -m pip install --quiet --requirement "${lists[1]}" --constraint "${lists[0]}" >"$log" 2>&1 </dev/null
    then
        cat "${lists[@]}" >"$stamp"
    else
        say "they cannot be had (see $log); the tests of what is missing are skipped"
    fi
}

# Prometheus for the test that has it scrape; unpacked beside the build, because one that is installed is a service.
prometheus() {
    local dir=target/prometheus log=target/setup/prometheus.log
    have promtool || [ -x "$dir/usr/bin/promtool" ] && return 0
    if ! have apt-get; then
        say "Prometheus is not there; with prometheus and promtool in PATH their test runs"
        return 0
    fi
    say "unpacking Debian's prometheus into $dir"
    mkdir -p "$dir" target/setup
    { [ "$(id -u)" != 0 ] || refresh; (cd "$dir" && apt-get download prometheus && dpkg -x prometheus_*.deb .); } \
        >"$log" 2>&1 </dev/null || say "Debian's prometheus cannot be had (see $log); its test is skipped"
}

# Whether C can be compiled and linked: SQLite is built along, and Rust links with cc.
compiles() { echo '#include <stdio.h>' | cc -x c -fsyntax-only - 2>/dev/null && have ld; }

# libjpeg-turbo is built along by CMake, its instructions for x86 by NASM.
decoder_tools() {
    local tools=(cmake) missing=() tool
    [ "$(uname -m)" != x86_64 ] || tools+=(nasm)
    for tool in "${tools[@]}"; do have "$tool" || packages "$tool"; done
    for tool in "${tools[@]}"; do have "$tool" || missing+=("$tool"); done
    [ ${#missing[@]} -eq 0 ] && return 0
    say "there is no ${missing[*]}, which builds libjpeg-turbo; install the package${missing[1]:+s} ${missing[*]}"
    exit 1
}

toolchain() {
    compiles || packages gcc libc6-dev
    if ! compiles; then
        say "there is no C compiler with its headers; install gcc and libc6-dev (or their like)"
        exit 1
    fi
    decoder_tools
    have cargo && return 0
    say "cargo is not there; install Rust (rustup.rs) of the version named in Cargo.toml"
    exit 1
}

# A disk that fills up in the midst of it fails somewhere else, in words of somebody else's. $1: GB that all of it takes.
need_disk() {
    local free taken
    free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
    taken=$({ du -sk .venv target 2>/dev/null || true; } | awk '{sum += $1} END {print int(sum / 1048576)}')
    [ "$free" -ge $(($1 - taken)) ] || say "$free GB are free on this disk, and $purpose takes about $(($1 - taken)) more; free some, or it may fail for that"
}

case $purpose in
demo)
    need_disk 9
    toolchain
    optional e2fsprogs mount fuse3
    environment
    ;;
test)
    need_disk 22
    toolchain
    optional ccache g++ e2fsprogs mount fuse3 strace python3-torch python3-venv clang-19 llvm-19 libbpf-dev groff-base zsh fish chromium
    prometheus
    environment
    frameworks
    ;;
bench)
    need_disk 12
    toolchain
    optional e2fsprogs mount fuse3 strace bpftrace htop fio redis-server memcached
    environment
    .venv/bin/python -c 'import redis, hiredis, pymemcache' 2>/dev/null ||
        .venv/bin/python -m pip install --quiet --requirement scripts/requirements-bench.txt </dev/null
    # bpftrace looks for its tracepoints there.
    [ "$(id -u)" != 0 ] || [ -e /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing ||
        say "tracefs cannot be mounted on /sys/kernel/tracing; bpftrace needs it"
    ;;
decode)
    need_disk 11
    toolchain
    # What FFCV and Pillow-SIMD are compiled with.
    optional g++ python3-dev pkg-config libopencv-dev libturbojpeg0-dev libjpeg-dev zlib1g-dev
    environment
    ;;
*)
    say "unknown purpose '$purpose'; it is demo, test, bench or decode"
    exit 2
    ;;
esac
