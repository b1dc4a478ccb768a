"""A pack in object storage is the pack in a folder, whatever the store does; or a sentence, in time."""

import functools
import itertools
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from collector import PACKAGE  # noqa: F401  where the package is
from conftest import has

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("numpy")

import numpy  # noqa: E402
from object_stores import Proxy, Server, name_the_store, uploaded  # noqa: E402
from pack_sets import as_array, damage, fill, packed, program, random_crop  # noqa: E402

import stallscope  # noqa: E402

FILE_BYTES = 200_000


@pytest.fixture(scope="module")
def server():
    if not has(os.sys.executable, "moto"):
        pytest.skip("SKIPPED: no moto; `scripts/setup.sh test` gets it")
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pack of three chunks, of files that do not compress."""
    source, draw = tmp_path_factory.mktemp("in_store") / "set", random.Random(1)
    for number in range(60):
        file = source / ("cat", "dog", "eel")[number % 3] / f"{number:02}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(draw.randbytes(FILE_BYTES - number))
    pack = packed(source)
    assert len(list(Path(pack).glob("*.chunk"))) == 3
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


def object_of(url, name):
    return f"{url.removeprefix('s3://')}/{name}"


def everything(dataset):
    return [(dataset.name(index), dataset.label(index), dataset[index]) for index in range(len(dataset))]


def refused(url, words):
    with pytest.raises(stallscope.PackError) as raised:
        stallscope.PackedDataset(url)
    sentence = str(raised.value)
    assert words in sentence and url in sentence and "secret" not in sentence, sentence
    return sentence


@pytest.mark.parametrize("workers, method", [(0, None), (2, "fork"), (2, "spawn")])
def test_names_labels_order_and_bytes_are_those_of_the_folder(url, folder, workers, method):
    there, here = stallscope.PackedDataset(url), stallscope.PackedDataset(folder)
    assert everything(there) == everything(here)
    assert there.index("cat/03.bin") == here.index("cat/03.bin")
    orders = [None, here.in_chunk_order(), torch.randperm(len(here)).tolist()]
    assert there.in_chunk_order() == orders[1]
    for order in orders:
        # Read before workers are forked, and after.
        of_each = [
            list(
                torch.utils.data.DataLoader(
                    dataset, batch_size=8, num_workers=workers, multiprocessing_context=method, sampler=order, collate_fn=list
                )
            )
            for dataset in (there, here)
        ]
        assert of_each[0] == of_each[1] and len(of_each[0]) == 8
        assert there[5] == here[5]


@pytest.mark.parametrize("workers, method", [(0, None), (2, "fork"), (2, "spawn")])
def test_a_shuffle_reads_the_same_samples(url, folder, workers, method):
    epochs = []
    for path in (url, folder):
        loader = stallscope.DataLoader(
            stallscope.PackedDataset(path),
            batch_size=8,
            num_workers=workers,
            multiprocessing_context=method,
            shuffle=stallscope.Shuffle(memory="64MiB"),
            collate_fn=list,
        )
        epochs.append([list(loader), list(loader)])
    assert epochs[0] == epochs[1]
    assert sorted(itertools.chain(*epochs[0][0])) == sorted(itertools.chain(*epochs[0][1]))


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_and_their_crops_are_those_of_the_folder(server, proxy, tmp_path, workers):
    pack = packed(fill(tmp_path / "pictures"))
    url = uploaded(server, pack)
    there, here = (stallscope.PackedImageFolder(path, transform=random_crop) for path in (url, pack))
    assert there.classes == here.classes and there.targets == here.targets
    kinds = [
        (torch.utils.data.DataLoader, there, here),
        # One that seeds before each sample.
        (stallscope.DataLoader, there, here),
        (functools.partial(stallscope.DataLoader, cache="1MiB"), there, here),
        (torch.utils.data.DataLoader, *(stallscope.PackedImages(path, size=8) for path in (url, pack))),
    ]
    for loader, *datasets in kinds:
        of_each = []
        for dataset in datasets:
            torch.manual_seed(3)
            random.seed(3)
            loaded = loader(dataset, batch_size=4, num_workers=workers, shuffle=True)
            of_each.append([(pictures.tolist(), targets.tolist()) for pictures, targets in loaded])
        assert of_each[0] == of_each[1] and len(of_each[0]) == 3

    # Whose samples may be something else than those of its class.
    class Other(stallscope.PackedImageFolder):
        def __getitem__(self, index):
            return index

    assert [list(batch) for batch in torch.utils.data.DataLoader(Other(url), batch_size=2)][0] == [0, 1]
    assert numpy.array_equal(
        as_array(stallscope.PackedImageFolder(url)[0][0]), as_array(stallscope.PackedImageFolder(pack)[0][0])
    )


def test_a_batch_of_samples_near_each_other_is_one_request(proxy, url, folder):
    dataset = stallscope.PackedDataset(url)
    assert [path.rpartition("/")[2] for path, _ in proxy.requests] == ["snapshot", "deleted"]
    del proxy.requests[:]
    order = dataset.in_chunk_order()
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=16, sampler=order, collate_fn=list)))
    here = stallscope.PackedDataset(folder)
    assert batch == [here[index] for index in order[:16]]
    assert len(proxy.requests) == 1
    assert not hasattr(here, "__getitems__") and hasattr(dataset, "__getitems__")
    assert dataset.__getitems__([3, -1, 3]) == [here[3], here[-1], here[3]]
    with pytest.raises(IndexError):
        dataset.__getitems__([60])


@pytest.mark.parametrize(
    "fault",
    [{"kind": "answer"}, {"kind": "answer", "status": 429}, {"kind": "answer", "status": 500, "code": "InternalError"}, {"kind": "cut"}, {"kind": "reset"}],
    ids=lambda fault: f"{fault['kind']}-{fault.get('status', '')}",
)  # fmt: skip
def test_what_passes_is_tried_again(proxy, url, folder, fault):
    for of in ("/snapshot", "/deleted", ".chunk"):
        proxy.add(of=of, times=2, **fault)
    there, here = stallscope.PackedDataset(url), stallscope.PackedDataset(folder)
    assert there[7] == here[7]
    proxy.add(of=".chunk", times=5, **fault)
    order = torch.randperm(60).tolist()
    assert there.__getitems__(order) == [here[index] for index in order]
    # That there is nothing of a name is known without the whole sentence.
    assert all(fault.times == 0 for fault in proxy.faults if fault.of != "/deleted")


def test_a_request_that_takes_long_is_sent_once_more(proxy, url, folder):
    there, here = stallscope.PackedDataset(url), stallscope.PackedDataset(folder)
    for index in range(25):
        there[index]
    del proxy.requests[:]
    # This one is never answered.
    proxy.add("late", of=".chunk")
    assert there[30] == here[30]
    assert len(proxy.requests) == 2 and len(set(proxy.requests)) == 1, proxy.requests


def test_a_read_ends_in_time(proxy, url, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_STORE_TIMEOUT", "1.5")
    dataset = stallscope.PackedDataset(url)
    proxy.add("answer", of=".chunk", times=1000)
    with pytest.raises(
        stallscope.PackError, match=r"\.chunk: no whole answer within 1.5 s \(at last: 503 SlowDown\); look at the network"
    ):
        dataset[0]
    with pytest.raises(stallscope.PackError, match="no whole answer within 1.5 s"):
        list(torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=list))
    proxy.faults[-1].times = 0
    proxy.add("late", times=1000)
    refused(url, "no whole answer within 1.5 s")
    monkeypatch.setenv("STALLSCOPE_STORE_TIMEOUT", "soon")
    with pytest.raises(stallscope.PackError, match="STALLSCOPE_STORE_TIMEOUT=soon has to be a number of seconds"):
        stallscope.PackedDataset(url)


def test_a_signal_ends_the_wait(proxy, url):
    dataset = stallscope.PackedDataset(url)
    proxy.add("late", of=".chunk", times=1000)
    # Ignored where a shell began the tests in its background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            dataset[0]
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_credentials_that_are_wrong_or_missing_are_named(proxy, url, monkeypatch):
    for status, code in ((403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (400, "ExpiredToken")):
        proxy.add("answer", status=status, code=code)
        refused(url, f"does not accept the credentials ({code}); look at AWS_ACCESS_KEY_ID")
    proxy.add("answer", status=403, code="AccessDenied")
    refused(url, "allow them to read and list")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Nothing listens there.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    refused(url, "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert len(stallscope.PackedDataset(url)) == 60


def test_a_bucket_a_pack_or_a_chunk_that_is_not_there_is_named(server, proxy, url):
    refused("s3://no-such-bucket/some.pack", "there is no bucket no-such-bucket; look at its name")
    refused(url.replace("some.pack", "other.pack"), "is no pack: there is no")
    dataset = stallscope.PackedDataset(url)
    gone = {path.rpartition("/")[2] for path, _ in requests_of(proxy, dataset, 0)}.pop()
    server.delete(object_of(url, gone))
    with pytest.raises(stallscope.PackError, match=f"cannot read {url}/{gone}: there is no such object"):
        dataset[0]
    for wrong, words in (("s3://", "URL"), (f"{url}?versionId=1", "query"), (f"{url}//a", "names no pack")):
        with pytest.raises(stallscope.PackError, match=words):
            stallscope.PackedDataset(wrong)


def requests_of(proxy, dataset, index):
    del proxy.requests[:]
    dataset[index]
    return list(proxy.requests)


def test_an_object_that_is_replaced_while_it_is_read_is_no_sample(server, proxy, url, folder, tmp_path):
    dataset = stallscope.PackedDataset(url)
    name = {path.rpartition("/")[2] for path, _ in requests_of(proxy, dataset, 0)}.pop()
    whole = Path(folder, name).read_bytes()
    server.put(object_of(url, name), bytes(len(whole)))
    with pytest.raises(stallscope.PackError, match=f"{name}: it was replaced since it was read first"):
        dataset[0]
    # Of who did not read it before.
    with pytest.raises(stallscope.PackError, match="does not hold what was packed"):
        stallscope.PackedDataset(url)[0]
    server.put(object_of(url, name), whole[: len(whole) // 2])
    with pytest.raises(stallscope.PackError, match="it is cut"):
        for index in range(60):
            stallscope.PackedDataset(url)[index]


def test_a_pack_that_was_changed_in_the_store_has_to_be_opened_anew(server, proxy, tmp_path, folder):
    pack = shutil.copytree(folder, tmp_path / "some.pack")
    url = uploaded(server, pack)
    opened, pickled = stallscope.PackedDataset(url), pickle.dumps(stallscope.PackedDataset(url))
    before = {file.name for file in pack.glob("*.chunk")}
    for verb in (["delete", pack, "eel"], ["purge", "--live", "100", pack]):
        done = subprocess.run([program(), "pack", *verb], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    server.upload(pack, *url.removeprefix("s3://").split("/", 1))
    for gone in before - {file.name for file in pack.glob("*.chunk")}:
        server.delete(object_of(url, gone))
    with pytest.raises(stallscope.PackError, match="is in another state than when it was opened.*open it anew"):
        everything(opened)
    with pytest.raises(stallscope.PackError, match="in another state than where it was opened first"):
        pickle.loads(pickled)
    anew = stallscope.PackedDataset(url)
    assert everything(anew) == everything(stallscope.PackedDataset(pack)) and len(anew) == 40


def test_a_list_of_what_was_deleted_that_lags_behind_is_warned_of(server, proxy, tmp_path, folder):
    pack = shutil.copytree(folder, tmp_path / "some.pack")
    url = uploaded(server, pack)
    assert subprocess.run([program(), "pack", "delete", pack, "cat/03.bin"]).returncode == 0
    server.put(object_of(url, "deleted"), Path(pack, "deleted").read_bytes())
    with pytest.warns(RuntimeWarning, match="has other deletions than the pack: its upload goes on"):
        assert len(stallscope.PackedDataset(url)) == 60
    server.put(object_of(url, "snapshot"), Path(pack, "snapshot").read_bytes())
    assert everything(stallscope.PackedDataset(url)) == everything(stallscope.PackedDataset(pack))


def test_damage_in_the_store_is_an_error_and_on_the_way_is_none(server, proxy, tmp_path, url, folder):
    proxy.add("flipped", of=".chunk")
    here = stallscope.PackedDataset(folder)
    assert stallscope.PackedDataset(url)[0] == here[0]
    proxy.add("flipped", of=".chunk")
    assert stallscope.PackedDataset(url).__getitems__([1, 2]) == [here[1], here[2]]
    source = Path(str(folder).removesuffix(".pack"))
    pack = shutil.copytree(folder, tmp_path / "set.pack")
    shutil.copytree(source, tmp_path / "set")
    damage(pack, "dog/04.bin")
    damaged = stallscope.PackedDataset(uploaded(server, pack))
    for read in (lambda: damaged[damaged.index("dog/04.bin")], lambda: damaged.__getitems__(range(60))):
        with pytest.raises(stallscope.PackError, match="04.bin does not hold what was packed"):
            read()


def test_a_pickle_has_the_url_and_no_secret(url):
    pickled = pickle.dumps(stallscope.PackedDataset(url))
    assert url.encode() in pickled and b"secret" not in pickled and len(pickled) < 500
    assert pickle.loads(pickled)[0] == stallscope.PackedDataset(url)[0]


def test_any_http_server_with_ranges_will_do(server, proxy, url, folder):
    plain = f"http://127.0.0.1:{proxy.port}/{url.removeprefix('s3://')}"
    assert everything(stallscope.PackedDataset(plain)) == everything(stallscope.PackedDataset(folder))
    proxy.add("whole", of="/snapshot")
    refused(plain, "gives no ranges of bytes; use one that does")
    refused(f"{plain}-not", "is no pack: there is no")


def _child(dataset, connection):
    connection.send([dataset[index] for index in range(0, 60, 7)])
    # Threads of the parent are not here to be waited for.
    os._exit(0)


def test_a_process_that_is_forked_while_threads_read_has_connections_of_its_own(url, folder):
    there, here = stallscope.PackedDataset(url), stallscope.PackedDataset(folder)
    wrong, is_over = [], threading.Event()

    def read():
        while not is_over.is_set():
            index = random.randrange(60)
            if there[index] != here[index]:
                wrong.append(index)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(there, theirs))
        child.start()
        assert ours.poll(60)
        assert ours.recv() == [here[index] for index in range(0, 60, 7)]
        child.join()
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_store_sends_nobody_elsewhere(url, server, proxy, monkeypatch, status):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token")
    elsewhere = Proxy(server.port)
    try:
        location = f"http://127.0.0.1:{elsewhere.port}/{object_of(url, 'snapshot')}"
        proxy.add("answer", of="/snapshot", times=10, status=status, code="Moved", headers={"Location": location})
        refused(url, "sends elsewhere")
        assert elsewhere.requests == []
    finally:
        elsewhere.close()


def test_headers_without_end_are_not_taken(url, proxy, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_STORE_TIMEOUT", "1")
    proxy.add("answer", of="/snapshot", times=1000, status=206, headers={"X-Long": "x" * (4 << 20)})
    refused(url, "no whole answer within 1 s")


def test_what_is_on_this_machine_is_asked_through_no_proxy(url, folder, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        # Nobody listens there.
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("STALLSCOPE_STORE_TIMEOUT", "5")
    assert everything(stallscope.PackedDataset(url)) == everything(stallscope.PackedDataset(folder))
