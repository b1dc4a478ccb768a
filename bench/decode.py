"""`make bench-decode`: pictures a second of Pillow, Pillow-SIMD, torchvision's own decoder, FFCV and `stallscope.PackedImages`.

The same JPEG files, about 15 KB and 100 KB each (log-normal), cropped at random to 224 x 224 as bytes, in batches of 64, on one CPU and on two. All is in
memory. The ways take turns, round by round; a factor is the median over rounds of one way's rate over that of Pillow in the same round. Ways of others that
cannot be had are named, and it fails; `--without NAME` goes on without one.
"""

import argparse
import os
import shutil
import subprocess
import sys
from statistics import median

from contenders import BenchFailed, Job
from images import keep_in_memory
from photos import make_photos
from table import ROOT, Row, machine, markdown, summary, write

WORK = ROOT / "target" / "bench" / "decode"
PROGRAM = ROOT / "target" / "release" / "stallscope"
JOB = ROOT / "bench" / "decode_job.py"
# Name, pictures, bytes of one on average.
SETS = [("15 KB", 2000, 15_000), ("100 KB", 600, 100_000)]
WAYS = {
    "pillow": "ImageFolder (Pillow)",
    "pillow-simd": "ImageFolder (Pillow-SIMD)",
    "torchvision": "torchvision.io.decode_jpeg",
    "ffcv": "FFCV",
    "ours": "PackedImages, threads",
    "ours-workers": "PackedImages, workers",
    "ours-scaled": "PackedImages, threads, scaled",
}
# What has to be installed beside torch, in an environment of its own: names for pip.
BESIDE = {"pillow-simd": ["pillow-simd==9.5.0.post2"], "ffcv": ["ffcv==1.0.2"]}
# FFCV's factor over Pillow where it was measured first, for a run without it.
FFCV_ON_TWO_CPUS = 2.8


def python_with(name):
    """A Python with these packages and .venv's; BenchFailed with where pip's words are."""
    folder, log = WORK / name, WORK / f"{name}.log"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    print(f"bench-decode: putting {' '.join(BESIDE[name])} into {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Behind its own packages, so that a Pillow of its own is found first.
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "beside.pth").write_text(f"{own}\n")
    with log.open("w") as out:
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", *BESIDE[name]]
        if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode != 0:
            raise BenchFailed(f"{WAYS[name]} cannot be installed ({log} says why); `--without {name}` measures the others")
    done.touch()
    return python


def prepared(number, pythons):
    """The folder of a data set: files, their pack, and FFCV's file."""
    name, count, mean_bytes = SETS[number]
    folder = WORK / f"set-{mean_bytes}"
    make_photos(folder / "files", count, mean_bytes)
    # A pack that is there is brought up to date.
    done = subprocess.run([PROGRAM, "pack", folder / "files", "-o", folder / "pack"], capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchFailed(f"the pictures could not be packed: {done.stderr.strip()}")
    if "ffcv" in pythons and not (folder / "set.beton").exists():
        done = subprocess.run([pythons["ffcv"], JOB, "write", folder], capture_output=True, text=True)
        if done.returncode != 0:
            (folder / "set.beton").unlink(missing_ok=True)
            raise BenchFailed(f"FFCV could not write its file: {done.stderr.strip().splitlines()[-1:]}")
    for pattern in ("*.jpg", "*.chunk", "*.beton"):
        keep_in_memory(folder, pattern)
    return folder


def measured(folder, cpus, pythons, rounds):
    """Rates by way, one for each round, in pictures a second."""
    ways = [way for way in WAYS if way in pythons and (cpus > 1 or way != "ours-workers")]
    jobs = {}
    try:
        for way in ways:
            jobs[way] = Job([str(pythons[way]), str(JOB), way, str(folder), str(cpus)])
            # The first epoch starts workers and fills caches.
            jobs[way].epoch()
        rates = {way: [] for way in ways}
        for number in range(rounds):
            at = number % len(ways)
            for way in ways[at:] + ways[:at]:
                outcome = jobs[way].epoch()
                if outcome["read_bytes"]:
                    raise BenchFailed(f"{WAYS[way]} read {outcome['read_bytes']} bytes from the disk in round {number + 1}; try again")
                rates[way].append(outcome["samples"] / outcome["epoch_s"])
                print(f"{folder.name}, {cpus} CPUs, round {number + 1}, {WAYS[way]}: {rates[way][-1]:.0f}/s", flush=True)
        return rates
    finally:
        for job in jobs.values():
            job.close()


def factors(rates, way):
    return [own / pillow for own, pillow in zip(rates[way], rates["pillow"])]


def bar(rates, cpus, mean_bytes):
    """FFCV's factor in this run; without it, where it is known, that of another one."""
    if "ffcv" in rates:
        return median(factors(rates, "ffcv"))
    return FFCV_ON_TWO_CPUS if (cpus, mean_bytes) == (2, 15_000) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without", action="append", default=[], choices=sorted(BESIDE))
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    rows, body = [], []
    try:
        if not PROGRAM.exists():
            raise BenchFailed("there is no target/release/stallscope: `make build`")
        pythons = {way: python_with(way) if way in BESIDE else sys.executable for way in WAYS if way not in args.without}
        for number, (name, _, mean_bytes) in enumerate(SETS):
            folder = prepared(number, pythons)
            for cpus in (1, 2):
                if cpus > len(os.sched_getaffinity(0)):
                    raise BenchFailed(f"{cpus} CPUs are measured, and this process may use {len(os.sched_getaffinity(0))}")
                rates = measured(folder, cpus, pythons, args.rounds)
                least = bar(rates, cpus, mean_bytes)
                for way, own in rates.items():
                    all_of = factors(rates, way)
                    case = f"{name}, {cpus} CPU{'s' if cpus > 1 else ''}: {WAYS[way]}"
                    barred = (f"at least {least:.2f}, as FFCV's", median(all_of) >= least) if way in ("ours", "ours-workers") and least else ()
                    rows += [Row(case, "rate", median(own), "pictures/s"), Row(case, "of Pillow", median(all_of), "times", *barred)]
                    body.append([case, f"{median(own):,.0f}", f"{median(all_of):.2f}", f"{min(all_of):.2f} to {max(all_of):.2f}"])
    except (BenchFailed, OSError, subprocess.CalledProcessError) as error:
        print(f"bench-decode: {error}", file=sys.stderr)
        return 1
    print(markdown(["way", "pictures/s", "of Pillow", "rounds"], body))
    for way in args.without:
        print(f"Without {WAYS[way]}" + (f": its factor is that of another run, {FFCV_ON_TWO_CPUS}, on two CPUs and 15 KB." if way == "ffcv" else "."))
    print(f"On {machine()}.")
    print(summary(rows))
    print(write("decode", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
