"""Says whether other programs leave the demo too little of this machine: run it while nothing of the demo's runs.

Prints why the demo's figures are no example, or nothing.
"""

import os
import time

# The training process and its two workers.
NEEDED_CPUS = 3
LOOK_S = 2.0
# Of all CPUs: less than this is what any machine does by itself.
LITTLE = 0.1


def idle_and_all(stat: str) -> tuple[int, int]:
    """Ticks that the CPUs were idle, and all, since the machine started; of /proc/stat."""
    ticks = [int(count) for count in stat.split("\n", 1)[0].split()[1:]]
    # The last two are parts of the first two: a guest's time.
    return ticks[3] + ticks[4], sum(ticks[:8])


def complaint(before: tuple[int, int], after: tuple[int, int], cpus: int) -> str | None:
    idle, total = (late - early for early, late in zip(before, after))
    if total <= 0:
        return None
    taken = 1 - idle / total
    if taken <= LITTLE or cpus * (1 - taken) >= NEEDED_CPUS:
        return None
    return f"other programs take {taken:.0%} of this machine's {cpus} CPUs"


def look() -> tuple[int, int]:
    with open("/proc/stat") as stat:
        return idle_and_all(stat.read())


def main():
    before = look()
    time.sleep(LOOK_S)
    if reason := complaint(before, look(), os.cpu_count()):
        print(reason)


if __name__ == "__main__":
    main()
