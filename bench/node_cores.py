"""`make bench-node-cores`: whether a lower priority of added workers spares the jobs beside them where cores are short. Needs root.

Two jobs read far storage, with one worker each as their script has it or with further ones as the service adds them; beside them
one job, or three, take a core each for their samples. All run at once, and those that are not asked about are stopped. So each
window of some seconds has another setting, in turns, and all windows of a round have the same minute of the machine.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from table import ROOT, Row, markdown, summary, write

WORK = ROOT / "target" / "bench" / "node-cores"
PYTHON = ROOT / ".venv" / "bin" / "python"
MOST_SLOWER = 0.01
# Priorities by which added workers are lower than all else.
LOWER_BY = (0, 5, 10, 19)
ADDED = 5


@dataclass(frozen=True)
class Setting:
    name: str
    # Whose workers: none of the two jobs', the script's, or also added ones.
    far: str
    lower_by: int = 0


ALONE = Setting("beside nobody", "none")
OWN = Setting("beside two as their script has them", "own")
SETTINGS = [ALONE, OWN, *(Setting(f"beside two with added workers, lower by {by}", "added", by) for by in LOWER_BY)]


def be_job(read_ms: float, cpu_ms: float, step_ms: float, workers: int, log: Path):
    """Trains for ever on samples that take so long to read and so much CPU."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, index):
            if read_ms:
                time.sleep(read_ms / 1000)
            until = time.thread_time() + cpu_ms / 1000
            while time.thread_time() < until:
                pass
            return torch.zeros(3, 64, 64)

    torch.set_num_threads(1)
    with log.open("w", buffering=1) as out:
        for batch in DataLoader(Samples(), 8, num_workers=workers):
            time.sleep(step_ms / 1000)
            out.write(json.dumps([time.monotonic(), len(batch)]) + "\n")


class Job:
    def __init__(self, name: str, read_ms: float, cpu_ms: float, workers: int):
        self.log = WORK / f"{name}.jsonl"
        self.log.unlink(missing_ok=True)
        words = [PYTHON, __file__, "job", read_ms, cpu_ms, 40, workers, self.log]
        self.process = subprocess.Popen([str(word) for word in words], start_new_session=True, stdin=subprocess.DEVNULL)
        self.workers = workers

    def wait_until_it_trains(self):
        while not self.log.exists() or not self.log.read_text():
            if self.process.poll() is not None:
                sys.exit("bench-node-cores: a job ended")
            time.sleep(0.1)

    def signal(self, number: int):
        os.killpg(self.process.pid, number)

    def lower_added(self, by: int):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children[1:]:
            for task in os.listdir(f"/proc/{pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(task), by)

    def rate(self, begin: float, end: float) -> float:
        steps = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sum(samples for at, samples in steps if begin <= at < end) / (end - begin)


def windows(busy: int, rounds: int, seconds: float, settle: float) -> dict[Setting, list[tuple[float, float]]]:
    """Samples a second of all busy jobs and of both others, in each window of a setting."""
    jobs = {
        "busy": [Job(f"busy-{number}", 0, 14, 1) for number in range(busy)],
        "own": [Job(f"own-{number}", 15, 2, 1) for number in range(2)],
        "added": [Job(f"added-{number}", 15, 2, 1 + ADDED) for number in range(2)],
    }
    everybody = [job for group in jobs.values() for job in group]
    found = {setting: [] for setting in SETTINGS}
    try:
        for job in everybody:
            job.wait_until_it_trains()
        for number in range(rounds):
            for setting in SETTINGS if number % 2 == 0 else reversed(SETTINGS):
                for group in ("own", "added"):
                    for job in jobs[group]:
                        job.signal(signal.SIGCONT if group == setting.far else signal.SIGSTOP)
                for job in jobs["added"]:
                    job.lower_added(setting.lower_by)
                time.sleep(settle)
                begin = time.monotonic()
                time.sleep(seconds)
                end = time.monotonic()
                far = jobs.get(setting.far, [])
                found[setting].append((sum(job.rate(begin, end) for job in jobs["busy"]), sum(job.rate(begin, end) for job in far)))
    finally:
        for job in everybody:
            job.signal(signal.SIGKILL)
            job.process.wait()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6, help="of a window")
    parser.add_argument("--settle", type=float, default=2)
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-node-cores: to raise a priority again takes root; run this as root")
    WORK.mkdir(parents=True, exist_ok=True)
    rows, lines = [], []
    for busy in (1, 3):
        found = windows(busy, args.rounds, args.seconds, args.settle)
        base = found[OWN]
        for setting, rates in found.items():
            busy_ratio = median(now[0] / then[0] for now, then in zip(rates, base))
            far_ratio = median(now[1] / then[1] for now, then in zip(rates, base))
            spread = max(now[0] / then[0] for now, then in zip(rates, base)) - min(now[0] / then[0] for now, then in zip(rates, base))
            case = f"{busy} busy, {setting.name}"
            lines.append([case, f"{median(rate[0] for rate in rates):.1f}", f"{busy_ratio - 1:+.1%}", f"{spread:.1%}",
                          f"{median(rate[1] for rate in rates):.0f}", f"{far_ratio - 1:+.0%}" if rates[0][1] else "-"])
            if setting.far == "added":
                rows.append(Row(case, "busy jobs are slower by", 100 * (1 - busy_ratio), "%", "at most 1", 1 - busy_ratio <= MOST_SLOWER))
                rows.append(Row(case, "jobs of far storage are faster by", 100 * (far_ratio - 1), "%"))
    header = ["case", "busy, samples/s", "against own workers alone", "spread", "far, samples/s", "against own workers alone"]
    print(markdown(header, lines))
    print(summary(rows))
    print(f"Written to {write('node-cores', rows)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        *amounts, workers, log = sys.argv[2:]
        be_job(*map(float, amounts), int(workers), Path(log))
    else:
        main()
