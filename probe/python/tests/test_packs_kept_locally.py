"""Chunks of a pack in object storage that are kept on a local disk: the same samples, and each chunk is asked for once."""

import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from collector import PACKAGE
from conftest import has

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("numpy")

from object_stores import Proxy, Server, name_the_store, uploaded  # noqa: E402
from pack_sets import fill, packed, program, random_crop  # noqa: E402

import stallscope  # noqa: E402

CHUNKS, IN_EACH = 6, 8
FILES = CHUNKS * IN_EACH
FILE_BYTES = 525_000


@pytest.fixture(scope="module")
def server():
    if not has(sys.executable, "moto"):
        pytest.skip("SKIPPED: no moto; `scripts/setup.sh test` gets it")
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pack of six chunks of eight files that do not compress."""
    source, draw = tmp_path_factory.mktemp("kept") / "set", random.Random(1)
    for number in range(FILES):
        file = source / ("cat", "dog", "eel")[number % 3] / f"{number:02}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(draw.randbytes(FILE_BYTES - number))
    pack = packed(source)
    assert len(list(Path(pack).glob("*.chunk"))) == CHUNKS
    return pack


@pytest.fixture
def proxy(server, tmp_path, monkeypatch):
    proxy = Proxy(server.port)
    name_the_store(monkeypatch, proxy.port)
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    yield proxy
    proxy.close()


@pytest.fixture
def url(server, proxy, folder):
    return uploaded(server, folder)


@pytest.fixture
def local(tmp_path):
    return tmp_path / "scratch" / "kept"


@pytest.fixture(scope="module")
def here(folder):
    dataset = stallscope.PackedDataset(folder)
    return [dataset[index] for index in range(FILES)]


def asked(proxy):
    """Chunks that were asked for since this was called last, each request once."""
    requests = [path.rpartition("/")[2] for path, _ in proxy.requests]
    del proxy.requests[:]
    return [name for name in requests if name.endswith(".chunk")]


def kept(local):
    return sorted(local.glob("*.chunk"))


def epoch(dataset, order=None, **given):
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=order, collate_fn=list, **given)
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("workers, method", [(0, None), (2, "fork"), (2, "spawn")])
def test_each_chunk_is_asked_for_once(proxy, url, local, here, workers, method):
    dataset = stallscope.PackedDataset(url, local=local, local_limit="1GiB")
    loading = {"num_workers": workers, "multiprocessing_context": method}
    order = torch.randperm(FILES).tolist()
    assert epoch(dataset, order, **loading) == [here[index] for index in order]
    first = asked(proxy)
    assert set(first) == {path.name.partition("-")[2] for path in kept(local)} and len(kept(local)) == CHUNKS
    if workers == 0:
        assert len(first) == CHUNKS
    # Another epoch, order and process; and samples one by one.
    assert epoch(dataset, **loading) == here
    assert stallscope.PackedDataset(url, local=str(local))[FILES - 1] == here[-1]
    assert [dataset[index] for index in (3, 40)] == [here[3], here[40]]
    assert asked(proxy) == []
    assert oct(local.stat().st_mode)[-3:] == "700" and oct(kept(local)[0].stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize("workers, method", [(0, None), (2, "fork"), (2, "spawn")])
def test_a_shuffle_reads_from_there(proxy, url, local, folder, workers, method):
    epochs = []
    for path, given in ((url, {"local": local}), (folder, {})):
        loader = stallscope.DataLoader(
            stallscope.PackedDataset(path, **given),
            batch_size=8,
            num_workers=workers,
            multiprocessing_context=method,
            shuffle=stallscope.Shuffle(memory="64MiB"),
            collate_fn=list,
        )
        epochs.append([list(loader)])
        if given:
            assert len(asked(proxy)) == CHUNKS
        epochs[-1].append(list(loader))
        assert asked(proxy) == []
    assert epochs[0] == epochs[1]


def _child(dataset, connection):
    connection.send([dataset[index] for index in range(0, FILES, 5)])
    # Threads of the parent are not here to be waited for.
    os._exit(0)


def test_a_process_that_is_forked_while_threads_read_waits_for_none_of_them(url, local, here):
    wrong, is_over = [], threading.Event()

    def read(dataset):
        while not is_over.is_set():
            index = random.randrange(FILES)
            if dataset[index] != here[index]:
                wrong.append(index)

    context = multiprocessing.get_context("fork")
    for turn in range(5):
        # All chunks are fetched anew.
        shutil.rmtree(local, ignore_errors=True)
        dataset = stallscope.PackedDataset(url, local=local)
        is_over.clear()
        threads = [threading.Thread(target=read, args=(dataset,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(dataset, theirs))
        child.start()
        assert ours.poll(60)
        assert ours.recv() == [here[index] for index in range(0, FILES, 5)]
        child.join()
        is_over.set()
        for thread in threads:
            thread.join()
    assert wrong == [] and list(local.glob("*.tmp")) == []


def test_what_a_killed_process_was_at_is_fetched_by_the_next(proxy, url, local, here):
    proxy.add("late", of=".chunk", times=100)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    killed = subprocess.Popen([sys.executable, "-c", OTHER, url, local, "17"], env=environment)
    while not list(local.glob("*.tmp")):
        assert killed.poll() is None
        time.sleep(0.01)
    dataset = stallscope.PackedDataset(url, local=local)
    killed.kill()
    killed.wait()
    proxy.faults[-1].times = 0
    assert dataset[17] == here[17] and len(kept(local)) == 1
    assert list(local.glob("*.tmp")) == []


OTHER = """
import sys
import stallscope
dataset = stallscope.PackedDataset(sys.argv[1], local=sys.argv[2])
sys.stdout.buffer.write(dataset[int(sys.argv[3])])
"""


def test_another_process_reads_them_there(proxy, url, local, here):
    assert epoch(stallscope.PackedDataset(url, local=local)) == here
    asked(proxy)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", OTHER, url, local, "17"], capture_output=True, env=environment)
    assert done.stdout == here[17], done.stderr
    assert asked(proxy) == []


def test_with_half_of_the_space_half_is_asked_for(proxy, url, local, folder, here):
    size = max(chunk.stat().st_size for chunk in Path(folder).glob("*.chunk"))
    dataset = stallscope.PackedDataset(url, local=local, local_limit=3 * size)
    order = dataset.in_chunk_order()
    for _ in range(3):
        assert epoch(dataset, order) == [here[index] for index in order]
        assert len(kept(local)) == 3 and sum(path.stat().st_size for path in kept(local)) <= 3 * size
        requests = asked(proxy)
    assert len(requests) == len(set(requests)) == 3
    assert epoch(stallscope.PackedDataset(url, local=local), order) == [here[index] for index in order]
    assert len(kept(local)) == CHUNKS


def test_a_damaged_chunk_is_fetched_anew(proxy, url, local, here):
    dataset = stallscope.PackedDataset(url, local=local)
    assert epoch(dataset) == here
    asked(proxy)
    for read in (lambda: [dataset[index] for index in range(FILES)], lambda: dataset.__getitems__(range(FILES))):
        flipped, cut, emptied = (path.read_bytes() for path in kept(local)[:3])
        paths = kept(local)[:3]
        before = (flipped, cut, emptied)
        paths[0].write_bytes(flipped[:1_000_000] + bytes([flipped[1_000_000] ^ 1]) + flipped[1_000_001:])
        paths[1].write_bytes(cut[: len(cut) // 2])
        paths[2].write_bytes(bytes(len(emptied)))
        assert read() == here
        # Beside the chunk of the byte that was flipped, which is given up after the second time.
        assert set(asked(proxy)) == {path.name.partition("-")[2] for path in paths}
        assert [path.read_bytes() for path in paths[1:2]] == [before[1]]
        assert not paths[0].exists() or paths[0].read_bytes() == before[0]


def test_what_is_flipped_on_the_way_is_fetched_once_more(proxy, url, local, here):
    proxy.add("flipped", of=".chunk")
    assert epoch(stallscope.PackedDataset(url, local=local)) == here
    assert len(asked(proxy)) == CHUNKS + 1
    assert epoch(stallscope.PackedDataset(url, local=local)) == here and asked(proxy) == []


def test_a_folder_that_is_removed_costs_no_sample(proxy, url, local, here, capfd):
    dataset = stallscope.PackedDataset(url, local=local)
    for index in range(FILES):
        if index == FILES // 2:
            shutil.rmtree(local)
        assert dataset[index] == here[index]
    assert epoch(dataset, num_workers=2) == here
    assert not local.exists()
    # In each process at most once.
    err = capfd.readouterr().err
    assert 1 <= err.count("takes no more chunks for now, and what is not there is read from object storage: ") <= 3, err


def test_pictures_are_those_of_the_folder(server, proxy, tmp_path, local):
    pack = packed(fill(tmp_path / "pictures"))
    url = uploaded(server, pack)
    given = {"local": local, "local_limit": "16MiB"}
    for make in (
        lambda path, **given: stallscope.PackedImageFolder(path, random_crop, **given),
        lambda path, **given: stallscope.PackedImages(path, size=8, **given),
    ):
        of_each = []
        for dataset in (make(url, **given), make(url, **given), make(pack)):
            torch.manual_seed(3)
            random.seed(3)
            loaded = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=1, shuffle=True)
            of_each.append([(pictures.tolist(), targets.tolist()) for pictures, targets in loaded])
        assert of_each[0] == of_each[1] == of_each[2]
    assert len(asked(proxy)) == len(list(Path(pack).glob("*.chunk")))


def test_a_changed_pack_fetches_what_is_new(server, proxy, tmp_path, folder, local):
    pack = shutil.copytree(folder, tmp_path / "some.pack")
    url = uploaded(server, pack)
    assert len(epoch(stallscope.PackedDataset(url, local=local))) == FILES
    more = tmp_path / "more" / "cat"
    more.mkdir(parents=True)
    (more / "new.bin").write_bytes(b"new")
    done = subprocess.run([program(), "pack", "append", pack, more.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server.upload(pack, *url.removeprefix("s3://").split("/", 1))
    asked(proxy)
    anew = stallscope.PackedDataset(url, local=local)
    assert epoch(anew) == epoch(stallscope.PackedDataset(pack)) and len(anew) == FILES + 1
    assert len(asked(proxy)) == 1
    assert len(kept(local)) == CHUNKS + 1


def test_a_pickle_has_folder_and_limit(proxy, url, local, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(stallscope.PackedDataset(url, local="scratch/kept", local_limit="1GiB"))
    assert os.fsencode(local) in pickled and b"secret" not in pickled
    monkeypatch.chdir("/")
    assert pickle.loads(pickled)[0] == here[0]
    assert len(kept(local)) == 1


def test_what_cannot_be_is_one_sentence(proxy, url, local, folder, tmp_path):
    with pytest.raises(stallscope.PackError, match=f"{folder} is no pack in object storage, .*: leave out local="):
        stallscope.PackedDataset(folder, local=local)
    for limit, words in (("much", "give bytes, or a string"), (0, "give some"), (-1, "give some"), (True, "whole number"), (1.5, "whole number")):
        with pytest.raises(ValueError, match=f"local_limit={limit!r}: .*{words}"):
            stallscope.PackedImageFolder(url, local=local, local_limit=limit)
    with pytest.raises(ValueError, match="local_limit='1GiB' is how much of a folder local="):
        stallscope.PackedImages(url, 8, local_limit="1GiB")
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path in (file, file / "in it"):
        with pytest.raises(stallscope.PackError, match=f"cannot keep chunks in {path}: Not a directory"):
            stallscope.PackedDataset(url, local=path)
    local.mkdir(parents=True)
    local.chmod(0o1777)
    with pytest.raises(stallscope.PackError, match="other users may write to it"):
        stallscope.PackedDataset(url, local=local)


RANK = """
import json, os, sys
import stallscope
url, local, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dataset = stallscope.PackedDataset(url, local=local, local_limit=int(sys.argv[4]))
print(json.dumps([sum(dataset[index]) for index in range(rank, len(dataset), 3)]))
"""


def test_ranks_share_the_space(proxy, url, local, folder, here):
    size = max(chunk.stat().st_size for chunk in Path(folder).glob("*.chunk"))
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, url, local, str(rank), str(4 * size)], stdout=subprocess.PIPE, env=environment)
        for rank in range(3)
    ]
    for rank, process in enumerate(ranks):
        out, _ = process.communicate()
        assert json.loads(out) == [sum(here[index]) for index in range(rank, FILES, 3)]
    assert 1 <= len(kept(local)) <= 4 and list(local.glob("*.tmp")) == []
