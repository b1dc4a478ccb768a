"""What the package costs each start of a Python of its environment, where torch is not imported.

usage: python bench_start.py [PAIRS]

Starts in pairs, one with the .pth and one without, in an order that changes from pair to pair; and what the import alone takes, by
Python's own clock.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

START = Path(__file__).parent / "start"
# Timed within the process: what the file in site-packages has Python do.
INSIDE = "import time; began = time.perf_counter_ns(); import _stallscope_start; print(time.perf_counter_ns() - began)"


def environment(folder):
    """A Python with the start of the package, without its .pth."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "_stallscope_start.py").write_bytes((START / "_stallscope_start.py").read_bytes())
    return folder / "bin" / "python", packages / "stallscope.pth"


def started_ms(python, env):
    began = time.perf_counter()
    subprocess.run([python, "-c", "pass"], env=env, check=True)
    return (time.perf_counter() - began) * 1000


def measure(python, pth, env, pairs):
    def with_it():
        pth.write_bytes((START / "stallscope.pth").read_bytes())
        return started_ms(python, env)

    def without():
        pth.unlink(missing_ok=True)
        return started_ms(python, env)

    differences, plain = [], []
    for pair in range(pairs):
        if pair % 2:
            slow, fast = with_it(), without()
        else:
            fast, slow = without(), with_it()
        differences.append(slow - fast)
        plain.append(fast)
    differences.sort()
    # Order statistics of the median, of 95%.
    reach = int(0.98 * len(differences) ** 0.5)
    middle = len(differences) // 2
    low, high = differences[max(middle - reach, 0)], differences[min(middle + reach, len(differences) - 1)]
    pth.unlink(missing_ok=True)
    inside = [int(subprocess.run([python, "-c", INSIDE], env=env, capture_output=True, check=True).stdout) for _ in range(pairs)]
    return statistics.median(differences), low, high, statistics.median(plain), statistics.median(inside) / 1e6


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        python, pth = environment(folder)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STALLSCOPE_"))}
        env["STALLSCOPE_KERNEL_SOCKET"] = str(folder / "kernel.sock")
        for what in "without a service on the node", "with one":
            cost, low, high, plain, inside = measure(python, pth, env, pairs)
            print(f"{what}: {cost:+.2f} ms ({low:+.2f} to {high:+.2f}) on starts of {plain:.1f} ms; the import alone {inside:.3f} ms")
            (folder / "node.sock").touch()


if __name__ == "__main__":
    main()
