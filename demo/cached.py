"""Compares a run without and one with `run --cache`: `cached.py PLAIN CACHED REPORT`.

PLAIN and CACHED are files that `train.py --account` wrote, REPORT is the second run's report as JSON.
"""

import json
import sys
from pathlib import Path


def seconds(account: dict) -> str:
    each = ", ".join(f"{one:.1f}" for one in account["seconds"])
    return f"{sum(account['seconds']):.1f} s of training ({each} an epoch)"


def main():
    plain, cached, report = (json.loads(Path(path).read_text()) for path in sys.argv[1:4])
    print(f"demo: untouched         {seconds(plain)}")
    print(f"demo: with run --cache  {seconds(cached)}")
    if not report["cache"]:
        sys.exit("demo: nothing was kept; the report above says why")
    figures = report["cache"][0]
    uses = figures["hits"] + figures["misses"]
    print(
        f"demo: {figures['hits'] / uses:.1%} of {uses:,} samples came from the pool, which keeps "
        f"{figures['kept_samples']:,} of them, {figures['kept_bytes'] / 1e6:.0f} MB"
    )
    same = True
    for what in ("order of samples", "losses"):
        digests = " and ".join(account[what][:12] for account in (plain, cached))
        same &= plain[what] == cached[what]
        print(f"demo: the {what}, {digests}: {'the same' if plain[what] == cached[what] else 'NOT THE SAME'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
