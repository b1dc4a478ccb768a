#!/usr/bin/env bash
# Compares both lock files with the advisories of RustSec. Needs cargo-deny, and the network for the database; where that can't
# be had it says so and fails nobody. With ADVISORIES=FOLDER, a clone of https://github.com/rustsec/advisory-db, it takes that.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'advisories: %s\n' "$*" >&2; }
config=$(mktemp -d)
trap 'rm -rf "$config"' EXIT
if [ -n "${ADVISORIES-}" ]; then
    # Where cargo-deny would have put it; the suffix is its own of that address.
    database=$config/advisory-db-3157b0e258782691
    git clone --quiet --shared "$(realpath "$ADVISORIES")" "$database"
    touch "$database/.git/FETCH_HEAD"
    say "as of $(git -C "$ADVISORIES" log -1 --format=%cs)"
    # Whether a crate was withdrawn is not in there, but in the registry's index.
    sed '/^\[advisories\]/,$d' deny.toml >"$config/deny.toml"
    printf '[advisories]\ndb-path = "%s"\nmaximum-db-staleness = "P10Y"\nunmaintained = "workspace"\nyanked = "allow"\n' "$config" >>"$config/deny.toml"
    offline=(--offline --config "$config/deny.toml")
elif timeout 60 cargo deny --log-level off fetch db >/dev/null 2>&1; then
    offline=(--config deny.toml)
else
    say "not checked: the database cannot be fetched here; ADVISORIES=FOLDER takes a clone of it"
    exit 0
fi
for manifest in Cargo.toml fuzz/Cargo.toml; do
    cargo deny --log-level error --manifest-path "$manifest" "${offline[@]}" check advisories
done
