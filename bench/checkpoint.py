"""What a checkpoint costs the loop that takes it, beside what else there is, in one process and in turns.

Every contender saves the same state to the same file system from the same loop. *Blocked* is the call itself; *spread* is
what the steps take longer until the save is durable; *total* is from the call until it is durable. The loop's work is
a fixed multiplication, so that a step takes the same at every size of the state.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

from table import ROOT, Row, markdown, summary, write

sys.path.insert(0, str(ROOT / "target" / "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType  # noqa: E402

import stallscope  # noqa: E402

TENSORS = 96
BASE_STEPS, MOST_STEPS = 8, 600
DIRECT_FIO = ["--direct=1", "--rw=write", "--bs=4M", "--iodepth=4", "--ioengine=libaio", "--end_fsync=1"]


class Loop:
    """A training loop whose state has `megabytes` on `device`: parameters and twice as much of the optimiser's."""

    def __init__(self, megabytes, device="cpu"):
        elements = megabytes * 1_000_000 // 4 // TENSORS
        self.model = torch.nn.Module()
        self.moments = {}
        for at in range(TENSORS // 3):
            self.model.register_parameter(f"layer{at}", torch.nn.Parameter(torch.rand(elements, device=device)))
            self.moments[at] = {name: torch.rand(elements, device=device) for name in ("exp_avg", "exp_avg_sq")}
        self.bytes = elements * 4 * (TENSORS // 3) * 3
        # Some milliseconds on either.
        side = 700 if device == "cpu" else 4096
        self.work = torch.rand(side, side, device=device)

    def state_dict(self):
        return {"state": self.moments}

    def load_state_dict(self, state):
        raise NotImplementedError("nobody loads here")

    def flat(self):
        names = dict(self.model.state_dict())
        for at, moments in self.moments.items():
            names.update({f"{name}.{at}": value for name, value in moments.items()})
        return names

    def step(self):
        began = time.perf_counter()
        for _ in range(2):
            torch.mm(self.work, self.work)
        # Something of the state changes, so that nothing may be left out.
        for value in self.flat().values():
            value.detach()[:: 4096].add_(1e-3)
        if self.work.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began


def synced(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class TorchSave:
    name = "torch.save, fsync"

    def __init__(self, loop, folder):
        self.loop, self.folder, self.count = loop, folder, 0

    def save(self):
        self.count += 1
        self.write(self.loop.flat(), self.folder / f"{self.count}")
        if self.count > 2:
            (self.folder / f"{self.count - 2}").unlink()

    def write(self, state, path):
        torch.save(state, path)
        synced(path)

    def done(self):
        return True

    def close(self):
        pass


class Safetensors(TorchSave):
    name = "safetensors, fsync"

    def write(self, state, path):
        save_file({name: value.detach() for name, value in state.items()}, path)
        synced(path)


class CheckFreq(TorchSave):
    """As its code does it, but that it copies: the code's `.cpu()` aliases CPU tensors, and would save torn state."""

    name = "CheckFreq as coded"
    thread = None

    def save(self):
        self.count += 1
        copied = {name: value.detach().clone() for name, value in self.loop.flat().items()}
        self.thread = threading.Thread(target=self.write, args=(copied, self.folder / f"{self.count % 3}"))
        self.thread.start()

    def done(self):
        return not self.thread.is_alive()


class DcpSave(TorchSave):
    name = "DCP save"

    def save(self):
        self.count += 1
        dcp.save(self.loop.flat(), checkpoint_id=self.folder / f"{self.count}")
        shutil.rmtree(self.folder / f"{self.count - 2}", ignore_errors=True)


class DcpAsync(DcpSave):
    name = "DCP async_save, thread"
    kind = AsyncCheckpointerType.THREAD

    def save(self):
        self.count += 1
        target = self.folder / f"{self.count}"
        self.future = dcp.async_save(self.loop.flat(), checkpoint_id=target, async_checkpointer_type=self.kind)

    def done(self):
        if not self.future.done():
            return False
        self.future.result()
        shutil.rmtree(self.folder / f"{self.count - 1}", ignore_errors=True)
        return True


class DcpProcess(DcpAsync):
    name = "DCP async_save, process"
    kind = AsyncCheckpointerType.PROCESS


class Ours(TorchSave):
    name = "stallscope"

    def __init__(self, loop, folder):
        self.loop = loop
        self.checkpointer = stallscope.Checkpointer(folder, model=loop.model, optimizer=loop, every=10**9, keep=1)
        self.checkpointer.step()
        self.bandwidths = []

    def save(self):
        self.checkpointer.step()
        self.checkpointer.save()

    def done(self):
        # Durable, as the others are then; reading back and removing older ones go on behind it.
        saver = self.checkpointer._saver
        if not saver.wait(0.0):
            return False
        for outcome in saver.outcomes():
            assert outcome.error is None, outcome.error
            self.bandwidths.append(outcome.written_bytes / outcome.write_ns * 1e3)
        while saver.working():
            time.sleep(0.01)
        return True

    def alone(self):
        """Saves while the loop stands still, as it does while fio writes; how fast that was written."""
        # What did not change would not be written.
        self.loop.step()
        self.save()
        while not self.done():
            time.sleep(0.01)
        return self.bandwidths.pop()

    def close(self):
        self.checkpointer.close()


CONTENDERS = [Ours, TorchSave, Safetensors, DcpSave, DcpAsync, DcpProcess, CheckFreq]


def measure(loop, contender):
    """(blocked, spread, total) of one save, in ms."""
    base = statistics.median(loop.step() for _ in range(BASE_STEPS))
    began = time.perf_counter()
    contender.save()
    blocked = time.perf_counter() - began
    spread = 0.0
    for _ in range(MOST_STEPS):
        if contender.done():
            break
        spread += loop.step() - base
    else:
        while not contender.done():
            time.sleep(0.01)
    return blocked * 1e3, spread * 1e3, (time.perf_counter() - began) * 1e3


def limits(folder, megabytes):
    """What the machine can at best: a copy into memory that is there, and fio's writes past the page cache, in MB/s."""
    source, target = torch.rand(megabytes * 250_000), torch.zeros(megabytes * 250_000)
    copies = []
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        copies.append(time.perf_counter() - began)
    if shutil.which("fio") is None:
        sys.exit("checkpoint: fio is not there, and it is what writing is compared with; install it")
    command = ["fio", "--name=limit", f"--filename={folder}/fio", f"--size={megabytes}M", "--output-format=json", *DIRECT_FIO]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (folder / "fio").unlink()
    return megabytes / min(copies), figures["jobs"][0]["write"]["bw_bytes"] / 1e6


def free_mb(folder):
    """Of the file system, whether or not the folder is there already."""
    return shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free / 1e6


def reader(folder):
    """A neighbour that reads 1 GiB over and over, past the page cache."""
    path = folder / "read"
    if not path.exists():
        subprocess.run(["dd", "if=/dev/urandom", f"of={path}", "bs=4M", "count=256", "status=none"], check=True)
    # Not longer than this process, however that ends.
    alive = f"kill -0 {os.getpid()} 2>/dev/null"
    loop = f"while {alive}; do dd if={path} of=/dev/null bs=1M iflag=direct status=none; done"
    return subprocess.Popen(["sh", "-c", loop], start_new_session=True)


def stop(neighbour):
    os.killpg(neighbour.pid, signal.SIGTERM)
    neighbour.wait()


def compare(megabytes, rounds, folder, beside):
    """Medians by contender; how fast ours writes beside the loop and while that stands still; the limits."""
    loop = Loop(megabytes)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "limits").mkdir(parents=True)
    contenders = []
    for kind in CONTENDERS:
        (folder / kind.name).mkdir()
        contenders.append(kind(loop, folder / kind.name))
    neighbour = reader(folder) if beside else None
    measured = {contender.name: [] for contender in contenders}
    bounds, alone = [], []
    try:
        # The first makes memory, threads and processes; it is not counted.
        for number in range(rounds + 1):
            bounds.append(limits(folder / "limits", megabytes))
            for contender in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                figures = measure(loop, contender)
                if number:
                    measured[contender.name].append(figures)
            alone.append(contenders[0].alone())
    finally:
        if neighbour is not None:
            stop(neighbour)
        for contender in contenders:
            contender.close()
    medians = {name: [statistics.median(column) for column in zip(*figures)] for name, figures in measured.items()}
    bandwidths = [statistics.median(figures[1:]) for figures in (contenders[0].bandwidths, alone)]
    memory, disk = (statistics.median(column) for column in zip(*bounds))
    shutil.rmtree(folder)
    return medians, bandwidths, memory, disk


def rows(case, megabytes, medians, bandwidths, memory, disk, beside):
    ours = medians["stallscope"]
    found = []
    for name, (blocked, spread, total) in medians.items():
        found += [
            Row(f"{case}, {name}", "blocked", blocked, "ms"),
            Row(f"{case}, {name}", "spread", spread, "ms"),
            Row(f"{case}, {name}", "total", total, "ms"),
        ]
    found += [Row(case, "memcpy", memory, "MB/s"), Row(case, "fio O_DIRECT", disk, "MB/s")]
    for when, bandwidth in zip(("beside the loop", "the loop standing still"), bandwidths):
        share = bandwidth / disk * 100
        bar = {} if beside or megabytes < 200 else {"bar": ">= 90%", "holds": share >= 90}
        found.append(Row(case, f"written, of fio's, {when}", share, "%", **bar))
    if beside:
        return found
    eighth = ours[0] <= medians["torch.save, fsync"][0] / 8
    if megabytes != 200:
        # The bars on the stall are for this size.
        return found
    asynchronous = min(medians[name][0] for name in ("DCP async_save, thread", "DCP async_save, process"))
    return found + [
        Row(case, "blocked", ours[0], "ms", "<= 1/8 of torch.save and fsync", eighth),
        Row(case, "blocked", ours[0], "ms", f"<= DCP's async_save ({asynchronous:.1f})", ours[0] <= asynchronous),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="50,200,1000,4000", help="of the state, in MB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "bench" / "checkpoints")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29577"))
    dist.init_process_group("gloo", rank=0, world_size=1)
    found, body = [], []
    for megabytes in map(int, arguments.sizes.split(",")):
        # Few rounds of what takes long.
        rounds = arguments.rounds if megabytes <= 1000 else 2
        # Each contender keeps one or two, and the next is written beside them.
        needs_mb, here_mb = 2.5 * len(CONTENDERS) * megabytes, free_mb(arguments.folder)
        if needs_mb > here_mb:
            print(f"NOT MEASURED, {megabytes} MB: needs {needs_mb / 1e3:.0f} GB of disk, {here_mb / 1e3:.0f} are free")
            continue
        for beside in (False, True):
            case = f"{megabytes} MB, {'a reader beside it' if beside else 'quiet'}"
            medians, bandwidths, memory, disk = compare(megabytes, rounds, arguments.folder, beside)
            found += rows(case, megabytes, medians, bandwidths, memory, disk, beside)
            for name, (blocked, spread, total) in medians.items():
                figures = [f"{blocked:.1f}", f"{spread:.0f}", f"{total:.0f}", f"{megabytes / total * 1e3:.0f}"]
                body.append([f"{case}: {name}", *figures])
            body.append([f"{case}: limit, memcpy", f"{megabytes / memory * 1e3:.1f}", "", "", f"{memory:.0f}"])
            body.append([f"{case}: limit, fio O_DIRECT", "", "", f"{megabytes / disk * 1e3:.0f}", f"{disk:.0f}"])
            for when, bandwidth in zip(("", ", the loop standing still"), bandwidths):
                body.append([f"{case}: stallscope's writing{when}", "", "", "", f"{bandwidth:.0f}"])
            print(f"{case}: done", file=sys.stderr, flush=True)
    print(markdown(["one save (medians)", "blocked ms", "spread ms", "total ms", "MB/s"], body))
    print()
    print(summary(found))
    write("checkpoint", found)


if __name__ == "__main__":
    main()
