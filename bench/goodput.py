"""What the rules for the interval make of a month of failures, simulated; and a short real job under SIGKILL.

*Goodput* is the useful part of the time: steps that count in the end, times their length. Rules are compared with the oracle,
the best fixed interval in hindsight, by grid search. Where the oracle would spend more on checkpoints than the budget
allows, the bar is the best interval that keeps the budget, and both are shown.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from table import ROOT, Row, markdown, summary, write

SIMULATED = ROOT / "target" / "release" / "examples" / "goodput"
OURS = ("stallscope", "stallscope, MTBF estimated")
RULES = [*OURS, "Young/Daly", "every 10 min", "every hour", "CheckFreq", "CheckFreq as coded", "PCcheck"]
BAR = 0.99

# The real job: rule's options for stallscope.Checkpointer. Fixed intervals are the oracle's grid.
GRID = [2, 5, 10, 20, 40, 80, 160]
REAL = {
    "stallscope": {"mtbf": "MTBF"},
    "Young/Daly": {"mtbf": "MTBF", "rule": "young-daly"},
    "CheckFreq": {"rule": "checkfreq"},
    "CheckFreq as coded": {"rule": "checkfreq-as-coded"},
    "PCcheck": {"rule": "pccheck"},
    **{f"every {steps} steps": {"every": steps} for steps in GRID},
}


def simulated(seeds):
    """(rows, body) of the simulation."""
    done = subprocess.run([SIMULATED, str(seeds)], check=True, capture_output=True, text=True)
    cases = {}
    for line in done.stdout.splitlines():
        result = json.loads(line)
        cases.setdefault((result["trace"], result["save"]), {}).setdefault(result["rule"], []).append(result)
    rows, body = [], []
    for (trace, save), rules in cases.items():
        case = f"30 days, {trace}, {save} saves"
        missing = [rule for rule in RULES if len(rules.get(rule, ())) != seeds]
        if missing:
            sys.exit(f"goodput: {case}: no figures of {', '.join(missing)}")
        for rule in RULES:
            mean = {
                "goodput": statistics.mean(result["goodput"] for result in rules[rule]),
                "overhead": statistics.mean(result["overhead"] for result in rules[rule]),
                "of": statistics.mean(result["goodput"] / result["oracle"]["goodput"] for result in rules[rule]),
                "within": statistics.mean(
                    result["goodput"] / result["oracle_within_budget"]["goodput"] for result in rules[rule]
                ),
            }
            budget = rules[rule][0]["budget"]
            allowed = statistics.mean(result["oracle"]["overhead"] for result in rules[rule]) <= budget
            ours = rule in OURS
            rows.append(Row(f"{case}, {rule}", "goodput", mean["goodput"] * 100, "%"))
            share, name = (mean["of"], "of the oracle's") if allowed else (mean["within"], "of the oracle's within the budget")
            bar = {"bar": f">= {BAR:.0%}", "holds": share >= BAR} if ours else {}
            rows.append(Row(f"{case}, {rule}", name, share * 100, "%", **bar))
            if ours:
                held = mean["overhead"] <= budget
                rows.append(Row(f"{case}, {rule}", "overhead", mean["overhead"] * 100, "%", f"<= {budget:.0%}", held))
            body.append(
                [f"{case}: {rule}", f"{mean['goodput']:.2%}", f"{mean['overhead']:.2%}", f"{mean['of']:.2%}", f"{mean['within']:.2%}"]
            )
    return rows, body


def life(rule, options, folder, steps, kill_after_s):
    """Runs the real job once: (steps done in this life, its last line or None, seconds it ran)."""
    rule = {name: options.mtbf if value == "MTBF" else value for name, value in rule.items()}
    case = json.dumps({"steps": steps, "overhead": options.budget, **rule})
    job = [sys.executable, Path(__file__).with_name("goodput_job.py"), folder, case]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "target" / "python")}
    process = subprocess.Popen(job, stdout=subprocess.PIPE, text=True, env=environment)
    start = process.stdout.readline()
    if not start:
        sys.exit(f"goodput: the job did not start; it was {job}")
    began = time.monotonic()
    try:
        # The rest fits into the pipe: the job says no more than one line.
        process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        process.kill()
    result = process.communicate()[0]
    return json.loads(result) if result.strip() else None, time.monotonic() - began


def real(options):
    """The same job and failures with every rule: useful seconds of the job over those that it took, starts not counted."""
    folder = ROOT / "target" / "bench" / "goodput"
    goodputs = {name: [] for name in REAL}
    overheads = {name: [] for name in REAL}
    mtbf_s = float(options.mtbf.rstrip("s"))
    for number in range(options.rounds):
        names = list(REAL)
        random.Random(number).shuffle(names)
        for name in names:
            failures = random.Random(1000 + number)
            shutil.rmtree(folder, ignore_errors=True)
            took_s, result = 0.0, None
            while result is None:
                until_s = failures.expovariate(1 / mtbf_s) if took_s < 10 * mtbf_s else None
                result, ran_s = life(REAL[name], options, folder, options.steps, until_s)
                took_s += ran_s
            goodputs[name].append(options.steps * result["step_s"] / took_s)
            overheads[name].append(result["spent"] / result["trained"])
        print(f"real, round {number + 1} of {options.rounds}: done", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    means = {name: statistics.mean(values) for name, values in goodputs.items()}
    oracle = max(means[f"every {steps} steps"] for steps in GRID)
    case = f"real, SIGKILL every {options.mtbf}"
    rows, body = [], []
    for name, goodput in means.items():
        # Too short and noisy for the bar, which the simulation is held to.
        rows.append(Row(f"{case}, {name}", "goodput", goodput * 100, "%"))
        rows.append(Row(f"{case}, {name}", "of the best fixed one's", goodput / oracle * 100, "%"))
        spent = statistics.mean(overheads[name])
        body.append([f"{case}: {name}", f"{goodput:.2%}", f"{spent:.2%}", f"{goodput / oracle:.2%}", ""])
    return rows, body


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of the simulation's traces")
    parser.add_argument("--rounds", type=int, default=1, help="of the real job; 0 leaves it out")
    parser.add_argument("--steps", type=int, default=400, help="of the real job")
    parser.add_argument("--mtbf", default="10s", help="of the real job")
    parser.add_argument("--budget", type=float, default=0.05, help="of the real job")
    options = parser.parse_args()
    if not SIMULATED.exists():
        sys.exit(f"goodput: {SIMULATED} is not there; run `make bench-goodput`")
    rows, body = simulated(options.seeds)
    if options.rounds:
        more = real(options)
        rows, body = rows + more[0], body + more[1]
    print(markdown(["failures and rule", "goodput", "overhead", "of the oracle's", "of the oracle's within the budget"], body))
    print()
    print(summary(rows))
    write("goodput", rows)


if __name__ == "__main__":
    main()
