"""Others' formats for `make bench-pack`: each written from the same files in the same shuffled order, and read by its own loader.

Shards have about 8 MiB, as a pack's chunks. What a loader shuffles with is given the memory that `stallscope.Shuffle` has, over all of its workers; FFCV's
takes a batch from as many pages as it has samples, for which pages of 2 MiB, the smallest, take 128 MiB. Run by the Python of an environment of its own (`prepared`), as what they ask for is not the project's.
"""

import importlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import decode
from contenders import BenchFailed
from table import ROOT

HERE = Path(__file__).parent
ENVIRONMENT = ROOT / "target" / "bench" / "pack-peers"
REQUIREMENTS = ROOT / "scripts" / "requirements-pack.txt"
SHARD_BYTES = 8 << 20
# The writers', so that every loader has its samples as well mixed as a pack has by default.
SEED = 7

# One of them asks for an older numpy than torch's kin have here, and for clients of stores that are not used: installed without what they ask for.
RELEASES = ["webdataset==1.0.2", "litdata==0.2.76", "mosaicml-streaming==0.13.0"]
WAYS = {"webdataset": "WebDataset", "litdata": "LitData", "mosaic": "MosaicML Streaming", "ffcv": "FFCV"}
FFCV_PAGE_BYTES = 2 << 20


class PeerMissing(Exception):
    pass


def python(way: str) -> Path:
    """Of the environment with FFCV, or with all others, which is made where it is missing. Raises PeerMissing."""
    if way == "ffcv":
        try:
            # It is compiled, and asks for releases of its own.
            return decode.python_with(way)
        except BenchFailed as error:
            raise PeerMissing(str(error)) from error
    stamp, own = ENVIRONMENT / ".requirements", ENVIRONMENT / "bin" / "python"
    wanted = "\n".join([*RELEASES, REQUIREMENTS.read_text()])
    if stamp.exists() and stamp.read_text() == wanted:
        return own
    names = ", ".join(name for other, name in WAYS.items() if other != "ffcv")
    print(f"putting {names} into {ENVIRONMENT.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    # torch is the project's own.
    own_packages = next(ENVIRONMENT.glob("lib/python*/site-packages"))
    torchs = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    (own_packages / "torch.pth").write_text(f"{torchs}\n")
    limits = ROOT / "scripts" / "requirements.txt"
    install = [str(own), "-m", "pip", "install", "--quiet"]
    for what in (["--no-deps", *RELEASES], ["--requirement", str(REQUIREMENTS), "--constraint", str(limits)]):
        done = subprocess.run([*install, *what], capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerMissing(f"{names} cannot be had: {done.stderr.strip()[-400:]}")
    stamp.write_text(wanted)
    return own


def convert(way: str, folder: Path) -> float:
    """Writes the shards of a way from `folder`/files; how long that took, s. Raises PeerMissing."""
    began_s = time.monotonic()
    done = subprocess.run([str(python(way)), str(HERE / "pack_peers.py"), "write", way, str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        raise PeerMissing(f"{WAYS[way]} could not write its shards: {done.stderr.strip()[-800:]}")
    return time.monotonic() - began_s


def samples(folder: Path):
    """Class, name and path of each file, in the order in which they are written."""
    paths = sorted((folder / "files").rglob("*.bin"))
    random.Random(SEED).shuffle(paths)
    for path in paths:
        yield int(path.parent.name), path.stem, path


def write(way: str, folder: Path):
    shards = folder / way
    if way == "webdataset":
        import webdataset

        shards.mkdir()
        with webdataset.ShardWriter(f"{shards}/%05d.tar", maxsize=SHARD_BYTES, verbose=0) as sink:
            for label, name, path in samples(folder):
                sink.write({"__key__": name, "bin": path.read_bytes(), "cls": str(label)})
    elif way == "litdata":
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(shards), chunk_bytes=SHARD_BYTES)
        for number, (label, _, path) in enumerate(samples(folder)):
            writer[number] = {"data": path.read_bytes(), "label": label}
        writer.done()
        writer.merge()
    elif way == "ffcv":
        import numpy
        from ffcv.fields import BytesField, IntField
        from ffcv.writer import DatasetWriter

        pairs = [(numpy.frombuffer(path.read_bytes(), numpy.uint8), label) for label, _, path in samples(folder)]
        fields = {"data": BytesField(), "label": IntField()}
        DatasetWriter(str(shards), fields, page_size=FFCV_PAGE_BYTES, num_workers=1).from_indexed_dataset(pairs)
    else:
        from streaming import MDSWriter

        with MDSWriter(out=str(shards), columns={"data": "bytes", "label": "int"}, size_limit=SHARD_BYTES) as out:
            for label, _, path in samples(folder):
                out.write({"data": path.read_bytes(), "label": label})


def imported(way: str):
    """Nothing is to be imported, or cleaned up after the run before, within the measured time."""
    module = importlib.import_module({"mosaic": "streaming", "ffcv": "ffcv.loader"}.get(way, way))
    if way == "mosaic":
        module.base.util.clean_stale_shared_memory()


def loader(way: str, folder: Path, batch: int, workers: int, buffer_samples: int, sizes):
    """An epoch's batches of (bytes, class), through `sizes`."""
    import torch

    shards = folder / way
    if way == "webdataset":
        import webdataset

        urls = sorted(map(str, shards.glob("*.tar")))
        data = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        data = data.shuffle(buffer_samples // max(workers, 1)).map(_of_webdataset)
        return torch.utils.data.DataLoader(data, batch_size=batch, num_workers=workers, collate_fn=sizes)
    if way == "litdata":
        import litdata

        data = litdata.StreamingDataset(str(shards), shuffle=True, seed=0)
        return litdata.StreamingDataLoader(
            data, batch_size=batch, num_workers=workers, collate_fn=_Pairs(sizes), shuffle=True
        )
    if way == "ffcv":
        from ffcv.fields.decoders import BytesDecoder, IntDecoder
        from ffcv.loader import Loader, OrderOption

        # Pages that are read ahead of their batches, which is how it reads what does not fit into memory.
        pipelines = {"data": [BytesDecoder()], "label": [IntDecoder()]}
        order = {"order": OrderOption.QUASI_RANDOM, "os_cache": False, "seed": 0}
        batches = Loader(str(shards), batch, num_workers=max(workers, 1), drop_last=False, pipelines=pipelines, **order)
        return ((data, labels.ravel().tolist()) for data, labels in batches)
    import streaming

    data = streaming.StreamingDataset(
        local=str(shards), shuffle=True, batch_size=batch, num_canonical_nodes=1, shuffle_block_size=buffer_samples
    )
    return torch.utils.data.DataLoader(data, batch_size=batch, num_workers=workers, collate_fn=_Pairs(sizes))


def _of_webdataset(sample):
    return sample["bin"], int(sample["cls"])


class _Pairs:
    """Collates samples that are dictionaries."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __call__(self, batch):
        return self.sizes([(sample["data"], sample["label"]) for sample in batch])


if __name__ == "__main__":
    assert sys.argv[1] == "write", "bench/pack.py calls this"
    os.umask(0o022)
    write(sys.argv[2], Path(sys.argv[3]))
