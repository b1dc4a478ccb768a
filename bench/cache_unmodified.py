"""`make bench-cache-unmodified`: an unmodified job with memory for half of its files, with the page cache, `run --cache` and `attach --cache`.

The job is `bench/unmodified_job.py` on ext4 whose reads are limited to 40 MB/s (needs root and cgroups). Each way has a memory cgroup of
the same limit for all that it starts, the cache and what holds files among it: what the processes need by themselves at most, measured once
with each way, and half of the data set. The page cache's runs are under `run --no-kernel`, as those of `run --cache`; `attach` comes to a
job that runs by itself, from a group beside the job's below the one with the limit. The ways take turns; reads are the device's. The first two epochs are not counted: `attach` sees in the second
that files are read again, and brings them in. The optimum is what no policy can go below where each epoch reads each file once:
1 - memory / data. Fails where losses differ. `--opened-by cv2` has C code read the files, which `run --cache` does not see. About fifteen minutes.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

from table import ROOT, Row, markdown, summary, write

sys.path.insert(0, str(ROOT / "truth"))
from storage import SlowStorage, StorageError, forget  # noqa: E402

WORK = ROOT / "target" / "bench" / "cache-unmodified"
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
JOB = ROOT / "bench" / "unmodified_job.py"
FILES, CLASSES, SIDE = 6000, 8, 340
READ_BYTES_S = 40 << 20
# Of the half: for the pages of files under way, and what the processes need more in another run.
UNDER_WAY_BYTES = 16 << 20
PAGE_CACHE, CACHE, ATTACH = "page cache", "run --cache", "attach --cache"
# Epochs that are not counted.
WARM_UP = 2
# Of the optimum's, for device reads.
BAR = 1.05


class BenchFailed(Exception):
    pass


class Group:
    """A memory cgroup for one run; a context manager."""

    def __init__(self, limit_bytes=None):
        v1 = Path("/sys/fs/cgroup/memory")
        self.is_v1 = v1.is_dir()
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        # A group of our own below the one that this process is in.
        own = next(line.split(":", 2)[2] for line in lines if (":memory:" in line if self.is_v1 else line.startswith("0::")))
        self.folder = (v1 if self.is_v1 else Path("/sys/fs/cgroup")) / own.lstrip("/") / f"bench-{os.getpid()}"
        self.limit_bytes = limit_bytes

    def __enter__(self):
        self.folder.mkdir()
        self.within = [self.folder / name for name in ("job", "beside")]
        if not self.is_v1:
            (self.folder / "cgroup.subtree_control").write_text("+memory")
        for folder in self.within:
            folder.mkdir()
        if self.limit_bytes:
            (self.folder / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(self.limit_bytes))
        return self

    def job(self):
        """Called in the process that is to be a member, with all that it starts."""
        (self.within[0] / "cgroup.procs").write_text(str(os.getpid()))

    def beside(self):
        (self.within[1] / "cgroup.procs").write_text(str(os.getpid()))

    def own_bytes(self):
        """Memory that is no file's."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        if self.is_v1:
            return int(stat["total_rss"]) + int((self.folder / "memory.kmem.usage_in_bytes").read_text())
        return int(stat["anon"]) + int(stat["kernel"])

    def __exit__(self, *raised):
        for folder in (*self.within, self.folder):
            for _ in range(100):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    # The pool outlives its job for a moment.
                    time.sleep(0.1)


def images(folder: Path):
    """Made once, some 100 KB each."""
    done = folder / ".done"
    if done.exists():
        return
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), dtype=numpy.uint8)).save(path, quality=80)
    done.touch()


def read_bytes(storage: SlowStorage) -> int:
    device = Path(storage.devices()[0]).name
    return int(Path(f"/sys/block/{device}/stat").read_text().split()[2]) * 512


def run(storage: SlowStorage, folder: Path, way: str, opened_by: str, cache_bytes: int, limit_bytes: int | None, epochs: int):
    """One run: losses, and of each epoch seconds and bytes read; the most memory that the processes had of their own."""
    forget(folder)
    recording = WORK / "recording.stall"
    recording.unlink(missing_ok=True)
    cache = ["--cache", cache_bytes]
    command = [sys.executable, JOB, folder, epochs, opened_by]
    if way != ATTACH:
        command = [STALLSCOPE, "run", "--no-kernel", "--quiet", "-o", recording, *(cache if way == CACHE else []), "--", *command]
    environment = {**os.environ, "STALLSCOPE_RUNTIME_DIR": str(WORK / "run"), "STALLSCOPE_POOL_LINGER_MS": "0"}
    own, over = [0], threading.Event()
    with Group(limit_bytes) as group, (WORK / "attach.log").open("w+") as log:

        def start(words, member, **more):
            return subprocess.Popen([str(word) for word in words], env=environment, preexec_fn=member, **more)

        job = start(command, group.job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        attach = way == ATTACH and start([STALLSCOPE, "attach", job.pid, *cache, "-o", recording], group.beside, stdout=log, stderr=log)

        def watch():
            while not over.wait(0.005):
                own.append(group.own_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        losses, marks = [], []
        for line in job.stdout:
            losses.append(line.strip())
            marks.append((time.monotonic(), read_bytes(storage)))
        error = job.stderr.read()
        over.set()
        watcher.join()
        if job.wait() != 0 or len(losses) != epochs:
            words = error.strip()[-600:] or "it printed nothing"
            raise BenchFailed(f"the job with {way} failed with exit code {job.returncode} at {max(own) >> 20} MiB of its own: {words}")
        if attach and attach.wait() != 0:
            log.seek(0)
            raise BenchFailed(f"attach ended with exit code {attach.returncode}: {log.read().strip()[-600:]}")
    counted = [(later[0] - one[0], later[1] - one[1]) for one, later in zip(marks[WARM_UP - 1 :], marks[WARM_UP:])]
    return losses, counted, max(own)


def measured(ways: list[str], opened_by: str, rounds: int, epochs: int):
    WORK.mkdir(parents=True, exist_ok=True)
    with SlowStorage(WORK / "storage.img", WORK / "storage", 1024) as storage:
        folder = storage.mount / "images"
        images(folder)
        os.sync()
        data_bytes = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
        half = data_bytes // 2
        own_bytes = max(run(storage, folder, way, opened_by, half - UNDER_WAY_BYTES, None, 3)[2] for way in ways)
        print(f"The processes need {own_bytes >> 20} MiB by themselves, the data has {data_bytes >> 20} MiB.", flush=True)
        storage.limit(read_bytes_s=READ_BYTES_S)
        results = {way: [] for way in ways}
        for number in range(rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                done = run(storage, folder, way, opened_by, half - UNDER_WAY_BYTES, own_bytes + half, epochs)
                results[way].append(done)
                seconds, reads = ([one[column] for one in done[1]] for column in (0, 1))
                print(f"round {number + 1}, {way}: {median(seconds):.1f} s and {median(reads) / data_bytes:.0%} of the data an epoch", flush=True)
        if len({tuple(losses) for runs in results.values() for losses, *_ in runs}) != 1:
            raise BenchFailed("losses differ between the ways or rounds")
        storage.limit()
    return data_bytes, own_bytes, results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--opened-by", choices=["PIL", "cv2"], default="PIL")
    args = parser.parse_args()
    ways = [PAGE_CACHE, *([CACHE] if args.opened_by == "PIL" else []), ATTACH]
    try:
        data_bytes, own_bytes, results = measured(ways, args.opened_by, args.rounds, args.epochs)
    except (BenchFailed, StorageError) as error:
        print(f"bench-cache-unmodified: {error}", file=sys.stderr)
        return 1
    optimum = 1 - (data_bytes // 2) / data_bytes
    rows, body = [], []
    for way, runs in results.items():
        epochs_s = [median(seconds for seconds, _ in counted) for _, counted, _ in runs]
        reads = [median(read for _, read in counted) / data_bytes for _, counted, _ in runs]
        ratio = median(reads) / optimum
        bar = (None, None) if way == PAGE_CACHE else (f"at most {BAR}", ratio <= BAR)
        rows += [
            Row(way, "epoch", median(epochs_s), "s"), Row(way, "device reads an epoch", median(reads), "of the data"),
            Row(way, "device reads", ratio, "of the optimum", *bar),
        ]  # fmt: skip
        body.append([way, f"{median(epochs_s):.1f}", f"{min(epochs_s):.1f} to {max(epochs_s):.1f}", f"{median(reads):.0%}", f"{ratio:.2f}"])
    print(markdown(["way", "s an epoch", "rounds", "device reads, of the data", "of the optimum"], body))
    print(f"{data_bytes >> 20} MiB in {FILES} files, {own_bytes >> 20} MiB for the processes and half of the data; losses identical in all runs.")
    print(summary(rows))
    print(write("cache-unmodified" if args.opened_by == "PIL" else f"cache-unmodified-{args.opened_by}", rows))
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
