"""Whether checkpoints cost no more than their budget, by the clock of the job and whatever interferes.

The same steps run with checkpoints and without, in turns, beside a neighbour that reads or writes the same disk. What the
job takes longer is the overhead, blocked time and slow-down alike; it may not exceed the budget and one checkpoint. CheckFreq,
as published and as coded, runs in the same turns. The Checkpointer's own account is shown beside the clock's.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from checkpoint import reader, stop
from table import ROOT, Row, markdown, summary, write

RULES = {
    "without": {"plain": True},
    # Failures so frequent that the budget alone decides.
    "stallscope": {"mtbf": "10s"},
    "CheckFreq": {"rule": "checkfreq"},
    "CheckFreq as coded": {"rule": "checkfreq-as-coded"},
}


def writer(folder):
    """A neighbour that writes 1 GiB over and over, past the page cache."""
    alive = f"kill -0 {os.getpid()} 2>/dev/null"
    loop = f"while {alive}; do dd if=/dev/zero of={folder}/write bs=1M count=1024 oflag=direct status=none; done"
    return subprocess.Popen(["sh", "-c", loop], start_new_session=True)


NEIGHBOURS = {"quiet": None, "a reader beside it": reader, "a writer beside it": writer}


def run(rule, options, folder):
    """What the job told at its end."""
    shutil.rmtree(folder, ignore_errors=True)
    budget = {} if rule == "without" else {"overhead": options.budget}
    case = {"steps": options.steps, "multiplications": options.multiplications, **budget, **RULES[rule]}
    job = [sys.executable, Path(__file__).with_name("goodput_job.py"), folder, json.dumps(case)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "target" / "python")}
    done = subprocess.run(job, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def compare(name, options, folder):
    """By rule: the median overhead by the clock and by the account, and what one checkpoint costs of the time."""
    neighbour = NEIGHBOURS[name] and NEIGHBOURS[name](folder)
    told = {rule: [] for rule in RULES}
    try:
        for number in range(options.rounds):
            rules = list(RULES)
            for rule in rules[number % len(rules) :] + rules[: number % len(rules)]:
                told[rule].append(run(rule, options, folder / "checkpoints"))
    finally:
        if neighbour:
            stop(neighbour)
    measured = {}
    for rule in RULES:
        if rule == "without":
            continue
        pairs = list(zip(told["without"], told[rule]))
        measured[rule] = {
            "clock": statistics.median((ours["took_s"] - plain["took_s"]) / ours["took_s"] for plain, ours in pairs),
            "account": statistics.median(ours["spent"] / ours["trained"] for _, ours in pairs),
            "one": statistics.median(ours["save"] / ours["trained"] for _, ours in pairs),
        }
    # What two runs of the same differ by: nothing smaller can be told apart.
    plain = [one["took_s"] for one in told["without"]]
    noise = statistics.median(abs(one - statistics.median(plain)) for one in plain) / statistics.median(plain)
    return measured, noise


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=0.02)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--multiplications", type=int, default=20, help="of two 512 x 512 matrices, a step")
    options = parser.parse_args()
    folder = ROOT / "target" / "bench" / "budget"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows, body = [], []
    for name in NEIGHBOURS:
        measured, noise = compare(name, options, folder)
        for rule, figures in measured.items():
            case = f"budget of {options.budget:.0%}, {name}, {rule}"
            most = options.budget + figures["one"]
            bar = {}
            if rule == "stallscope":
                bar = {"bar": f"<= {most:.2%}, noise of {noise:.2%} apart", "holds": figures["clock"] <= most + noise}
            rows.append(Row(case, "overhead by the clock", figures["clock"] * 100, "%", **bar))
            rows.append(Row(case, "overhead by its account", figures["account"] * 100, "%"))
            body.append([case, *(f"{figures[one]:.2%}" for one in ("clock", "account", "one")), f"{noise:.2%}"])
        print(f"{name}: done", file=sys.stderr, flush=True)
    shutil.rmtree(folder)
    print(markdown(["job", "overhead by the clock", "by its account", "one checkpoint", "noise"], body))
    print()
    print(summary(rows))
    write("budget", rows)


if __name__ == "__main__":
    main()
