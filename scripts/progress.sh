#!/usr/bin/env bash
# Runs a command that may take minutes: with its own progress on a terminal; elsewhere with its last line now and then,
# and all of its lines where it fails. usage: progress.sh NAME COMMAND…
set -uo pipefail
every_s=20
name=$1
shift
[ ! -t 2 ] || exec "$@" >&2
log=$(mktemp)
# Its sleep holds no pipe open that somebody reads to its end.
while sleep $every_s >/dev/null 2>&1; do
    printf '%s: after %d s: %s\n' "$name" "$SECONDS" "$(tail -n 1 "$log")" >&2
done &
ticker=$!
trap 'kill $ticker; rm -f "$log"' EXIT
"$@" >"$log" 2>&1 </dev/null
code=$?
[ $code = 0 ] || cat "$log" >&2
exit $code
