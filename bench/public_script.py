"""`make bench-script SCRIPT=path/to/imagenet/main.py`: a public training script, unmodified, tuned and untouched in pairs.

The script is the ImageNet example of pytorch/examples, from wherever you have it; nothing in it is changed. It trains a
small network on a data set whose every read takes a time, as on a far file system, once as it is and once under
`stallscope run --tune act`, in turns. Its own lines of progress, one a step, are timed as they come.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from math import comb
from pathlib import Path
from statistics import median

from control_real import FAST_MIB_S, PYTHON, STALLSCOPE, WORK, BenchFailed, Scenario, audit_of, images, storage
from table import Row, markdown, summary, write

STEP = re.compile(r"^Epoch: \[\d+\]\[ *\d+/\d+\]")


def train(script: Path, data: Path, args, tuned: bool) -> tuple[list[float], list[dict]]:
    """When each step's line came, s; and the audit."""
    recording = WORK / "script.stall"
    recording.unlink(missing_ok=True)
    command = [STALLSCOPE, "run", "--name", "bench-script", "-o", recording]
    command += ["--tune", "act"] if tuned else []
    command += ["--", PYTHON, "-u", script.resolve(), "-a", args.arch, "-b", str(args.batch_size), "-j", str(args.workers)]
    command += ["-p", "1", "--epochs", str(args.epochs), "--seed", "0", data.resolve()]
    times = []
    with subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=WORK,
        # The loader's workers need the other cores.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as job:
        for line in job.stdout:
            if STEP.match(line):
                times.append(time.monotonic())
    if job.returncode != 0 or len(times) < 40:
        raise BenchFailed(f"{script} ended with {job.returncode} after {len(times)} steps; does it run by itself?")
    return times, audit_of(recording)


def half(times: list[float]) -> float:
    """Median step of the second half, s."""
    late = times[len(times) // 2 :]
    return median(after - before for before, after in zip(late, late[1:]))


def sign_test(better: int, pairs: int) -> float:
    """How likely so many or more of the pairs were better by chance alone."""
    return sum(comb(pairs, k) for k in range(better, pairs + 1)) / 2**pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--arch", default="shufflenet_v2_x0_5")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--latency-ms", type=int, default=100)
    args = parser.parse_args()
    scenario = Scenario("script", "", [], latency_ms=args.latency_ms, mib_per_s=FAST_MIB_S)
    lines, whole, late = [], [], []
    with storage(scenario, images()) as data:
        for pair in range(args.pairs):
            took, step, audit = {}, {}, []
            for tuned in (False, True) if pair % 2 == 0 else (True, False):
                times, result = train(args.script, data.parent, args, tuned)
                took[tuned], step[tuned] = times[-1] - times[0], half(times)
                audit = result if tuned else audit
            whole.append(took[False] / took[True] - 1)
            late.append(step[False] / step[True] - 1)
            kept = [f"{event['knob']} {event['from']} -> {event['to']}" for event in audit if event["act"] == "keep"]
            lines.append([f"pair {pair + 1}", f"{took[False]:.1f}", f"{took[True]:.1f}", f"{whole[-1]:+.1%}",
                          f"{1000 * step[False]:.0f}", f"{1000 * step[True]:.0f}", ", ".join(kept) or "none"])
            print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    chance = sign_test(sum(gain > 0 for gain in whole), len(whole))
    rows = [
        Row("public script", "gain over the whole run", 100 * median(whole), "%", "above 0 in every pair", min(whole) > 0),
        Row("public script", "gain of the second half's median step", 100 * median(late), "%"),
        Row("public script", "chance of as many better pairs without any effect", chance, ""),
    ]
    print(markdown(["", "untouched, s", "tuned, s", "gain", "step untouched, ms", "tuned, ms", "kept"], lines))
    print(summary(rows))
    write("script", rows)


if __name__ == "__main__":
    try:
        main()
    except BenchFailed as error:
        sys.exit(f"bench-script: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
