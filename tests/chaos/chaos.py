"""What `make chaos` runs: faults beside a real job, until so many processes of ours were killed; then the table.

usage: chaos.py [--kills N] [--steps N] [--seed N] [--beside N] [FAULT…]
"""

import argparse
import concurrent.futures
import os
import sys

from bed import Bed, untouched
from faults import FAULTS, NotHere


def strike(name, seed, steps, expected):
    """One run of the job under one fault. Raises `Broken` if something does not hold."""
    bed = Bed(name, seed, steps)
    try:
        FAULTS[name](bed)
        return bed.finish(expected)
    except NotHere as why:
        bed.outcome.notes.append(f"not tried: {why}")
        return bed.outcome
    except Exception as error:
        raise AssertionError(f"{name}, seed {seed}: {error}") from error
    finally:
        bed.close()


def table(outcomes):
    yield "| fault | runs | strikes | batches | recorded | counted as lost | longest run |"
    yield "|---|---:|---:|---:|---:|---|---:|"
    for name, function in FAULTS.items():
        of = [one for one in outcomes if one.fault == name]
        if not of:
            continue
        runs = [one for one in of if one.batches]
        if not runs:
            yield f"| {function.__doc__} | {', '.join(note for one in of for note in one.notes) or 'not tried'} | | | | | |"
            continue
        lost = {}
        for one in runs:
            for reason, count in one.lost.items():
                lost[reason] = lost.get(reason, 0) + count
        lost = ", ".join(f"{count:,} {reason}" for reason, count in sorted(lost.items())) or "none"
        batches, seen, strikes = (sum(getattr(one, what) for one in runs) for what in ("batches", "seen", "strikes"))
        longest = max(one.wall_s for one in runs)
        yield f"| {function.__doc__} | {len(runs)} | {strikes:,} | {batches:,} | {seen:,} | {lost} | {longest:.0f} s |"
    notes = sorted({f"{one.fault}: {note}" for one in outcomes if one.batches for note in one.notes})
    yield from (["", *notes] if notes else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5, help="of each of the other faults")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beside", type=int, default=max(2, (os.cpu_count() or 2)))
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    options = parser.parse_args()
    names = options.faults or list(FAULTS)
    expected = untouched(options.steps)
    outcomes, broken, seed = [], [], options.seed

    def collect(done):
        try:
            outcomes.append(done.result())
            one = outcomes[-1]
            print(f"chaos: {one.fault}: {one.strikes} strikes, the same result", file=sys.stderr)
        except AssertionError as error:
            broken.append(str(error))
            print(f"chaos: {error}", file=sys.stderr)

    with concurrent.futures.ThreadPoolExecutor(options.beside) as pool:
        begun = [
            pool.submit(strike, name, seed + at, options.steps, expected)
            for name in names
            if name != "killed"
            for at in range(options.runs)
        ]
        for done in concurrent.futures.as_completed(begun):
            collect(done)
        while "killed" in names and not broken and sum(one.strikes for one in outcomes if one.fault == "killed") < options.kills:
            seed += 1000
            batch = [pool.submit(strike, "killed", seed + at, options.steps, expected) for at in range(options.beside)]
            for done in concurrent.futures.as_completed(batch):
                collect(done)
    print("\n".join(table(outcomes)))
    sys.exit("\n".join(broken) or None)


if __name__ == "__main__":
    main()
