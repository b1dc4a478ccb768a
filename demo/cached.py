"""Compares a run without and one with a cache: `cached.py PLAIN CACHED`, files that `train.py --account` wrote."""

import json
import sys
from pathlib import Path


def seconds(account: dict) -> str:
    each = ", ".join(f"{one:.1f}" for one in account["seconds"])
    return f"{sum(account['seconds']):.1f} s of training ({each} an epoch)"


def main():
    plain, cached = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    figures = cached["cache"]
    print(f"demo: untouched    {seconds(plain)}")
    print(f"demo: with cache=  {seconds(cached)}")
    if not figures:
        sys.exit("demo: there was no cache; the warning above says why")
    uses = figures["hits"] + figures["misses"]
    print(
        f"demo: {figures['hits'] / uses:.1%} of {uses:,} samples came from the pool, which keeps "
        f"{figures['kept_samples']:,} of them, {figures['kept_bytes'] / 1e6:.0f} MB"
    )
    same = plain["order"] == cached["order"]
    digests = " and ".join(account["order"][:12] for account in (plain, cached))
    print(f"demo: the order of samples, {digests}: {'the same' if same else 'NOT THE SAME'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
