#!/usr/bin/env bash
# Takes the README's pictures from the demo's recording: the terminal's job view, and the top of the HTML report.
set -euo pipefail
cd "$(dirname "$0")/.."
recording=target/demo/demo.stall
work=target/pictures
for tool in tmux aha chromium; do
    command -v "$tool" >/dev/null || { echo "pictures: $tool is missing; \`apt-get install $tool\`" >&2; exit 1; }
done
[ -e "$recording" ] || { echo "pictures: there is no $recording; run \`make demo\` first" >&2; exit 1; }
mkdir -p "$work" docs/pictures

# $1: page, $2: picture, $3: width,height
shoot() {
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=1.5 \
        --user-data-dir="$work/chromium" --window-size="$3" --screenshot="$2" "file://$PWD/$1" >"$work/chromium.log" 2>&1
}

session=stallscope-pictures
tmux kill-session -t $session 2>/dev/null || true
tmux new-session -d -s $session -x 110 -y 38 "COLORTERM=truecolor target/release/stallscope top $recording"
sleep 3
tmux send-keys -t $session G
sleep 1
{
    echo '<meta charset="utf-8"><style>body{margin:16px;background:#14161a;color:#d8dce3}' \
        'pre{font:14px/1.22 "DejaVu Sans Mono",monospace;margin:0}</style>'
    # Where this checkout lies is nobody's business.
    tmux capture-pane -e -p -t $session | sed "s#$PWD#~#g" | aha --no-header --black | sed '1s/^/<pre>/;$s/$/<\/pre>/'
} >"$work/top.html"
tmux send-keys -t $session q
shoot "$work/top.html" docs/pictures/top.png 980,700
target/release/stallscope report "$recording" --redact --format html -o "$work/report.html" 2>/dev/null
shoot "$work/report.html" docs/pictures/report.png 1100,1350
ls -l docs/pictures
