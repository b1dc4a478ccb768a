"""A data set is tried in a process of its own, which was forked: locks stay there as other threads had them, and nothing of it is left."""

import mmap
import multiprocessing
import os
import resource
import socket
import ssl
import sys
import threading
import time

import numpy
import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope.data.cache import sandbox, split  # noqa: E402

# Of another size than what is read of it.
MADE_UP = "/sys/kernel/uevent_seqnum"


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def __getitem__(self, index):
        with self.lock:
            return index


class Slow:
    """Sleeps, and waits for what comes again and again."""

    def __getitem__(self, index):
        time.sleep(1.5)
        event = threading.Event()
        for _ in range(30):
            event.wait(0.1)
        return index


def first(dataset):
    return {"sample": dataset[0]}


def shows_locks():
    """Whether the kernel says here what a thread waits for."""
    lock = threading.Lock()
    with lock:
        thread = threading.Thread(target=lock.acquire, daemon=True)
        thread.start()
        for _ in range(500):
            with open(f"/proc/self/task/{thread.native_id}/wchan") as file:
                if file.read().startswith("futex"):
                    return True
            time.sleep(0.01)
    return False


def test_a_lock_that_is_held_for_good_ends_it(monkeypatch):
    if not os.path.exists("/proc/self/wchan") or not shows_locks():
        pytest.skip("SKIPPED: the kernel does not say here what a thread waits for")
    monkeypatch.setattr(sandbox, "_STUCK_S", 1.0)
    dataset = Locked()
    with dataset.lock:
        assert "waited on trial for a lock" in sandbox.tried(first, dataset, "fork")["why"]
    assert sandbox.tried(first, dataset, "fork") == {"sample": 0}


def test_a_sample_that_sleeps_or_is_woken_does_not(monkeypatch):
    monkeypatch.setattr(sandbox, "_STUCK_S", 1.0)
    assert sandbox.tried(first, Slow(), "fork") == {"sample": 0}


class Files:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return len(file.read())


@pytest.mark.skipif(not os.path.exists(MADE_UP), reason=f"SKIPPED: there is no {MADE_UP}")
def test_a_file_that_is_made_up_as_it_is_read_is_read_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("first", "last"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / "first"), MADE_UP, str(tmp_path / "last")]
    loader = stallscope.DataLoader(Files(paths), cache="1MiB", batch_size=None)
    plain = [Files(paths)[index] for index in range(3)]
    assert [list(loader) for _ in range(3)] == [plain] * 3
    assert loader.cache_figures()["hits"] == 2 * 2
    with pytest.warns(RuntimeWarning, match="has not as many bytes as its size says"):
        list(stallscope.DataLoader(Files(paths[:2]), cache="1MiB", batch_size=None))


class Connected(Files):
    """Asks another end, which counts what it is asked, for a part of each sample."""

    def __init__(self, paths, connection):
        super().__init__(paths)
        self.connection = connection

    def __getitem__(self, index):
        self.connection.sendall(b"x")
        return super().__getitem__(index)


def test_nothing_is_sent_on_trial_over_a_connection_of_the_job(tmp_path):
    for name in ("first", "last"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / "first"), str(tmp_path / "last")]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(split.NoCut, match=r"it holds a connection \(socket\)"):
            split.of(Connected(paths, ours), None, 1 << 20, of_files=True)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        # What the script asks for itself may be fetched over one.
        assert split.of(Connected(paths, ours), None, 1 << 20).evidence == paths
    context = ssl.create_default_context()
    with context.wrap_socket(socket.socket(), server_hostname="localhost") as encrypted:
        with pytest.raises(split.NoCut, match="SSLSocket"):
            split.of(Connected(paths, encrypted), None, 1 << 20)


class Asking(Files):
    """Asks over a connection that a library in C has: a number, and nothing else shows."""

    def __init__(self, paths, descriptor):
        super().__init__(paths)
        self.descriptor = descriptor

    def __getitem__(self, index):
        os.write(self.descriptor, b"?")
        return super().__getitem__(index)


def test_nothing_is_sent_on_trial_over_a_connection_that_does_not_show(tmp_path):
    for name in ("first", "last"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / "first"), str(tmp_path / "last")]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            split.of(Asking(paths, ours.fileno()), None, 1 << 20, of_files=True)
            theirs.setblocking(False)
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            # The job's own is as it was.
            assert Asking(paths, ours.fileno())[0] == len("first") and theirs.recv(1) == b"?"


class Rude(Files):
    """What it does to its process."""

    def __init__(self, paths, does):
        super().__init__(paths)
        self.does = does

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is None:
            DEEDS[self.does]()
        return super().__getitem__(index)


DEEDS = {
    "gradients": lambda: torch.set_grad_enabled(False),
    "folder": lambda: os.chdir("/"),
    "environment": lambda: os.environ.update(LEFT="behind"),
    "ends": lambda: os._exit(3),
    "exits": sys.exit,
    "threads": lambda: torch.set_num_threads(1),
    "sets a default": lambda: torch.set_default_dtype(torch.float64),
}


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("does", DEEDS)
def test_nothing_that_a_sample_does_to_its_process_is_done_to_the_job(start_method, does, tmp_path):
    def state():
        modes = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()
        return modes, os.getcwd(), dict(os.environ), torch.get_rng_state().tolist()

    for name in ("first", "last"):
        (tmp_path / name).write_text(name)
    before = state()
    try:
        outcome = sandbox.tried(first, Rude([str(tmp_path / "first"), str(tmp_path / "last")], does), start_method)
    except SystemExit:
        outcome = "ended the job"
    after = state()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    os.chdir(before[1])
    os.environ.pop("LEFT", None)
    assert after == before
    assert outcome == ({"why": "the process that tried it died"} if does in ("ends", "exits") else {"sample": len("first")})


class Counting:
    """Counts in memory that processes share; `memory` can be pickled where it is None."""

    def __init__(self, memory):
        self.memory = memory

    def __getitem__(self, index):
        self.memory[0] += 1
        return int(self.memory[0])


def anonymous(size):
    return numpy.frombuffer(mmap.mmap(-1, size), dtype=numpy.int64)


def of_a_file(path):
    return numpy.memmap(path, dtype=numpy.int64, mode="w+", shape=(1000,))


@pytest.mark.parametrize(
    "memory",
    [
        lambda path: torch.zeros(1000, dtype=torch.int64).share_memory_(), lambda path: multiprocessing.Array("q", 1000),
        lambda path: anonymous(8000), of_a_file,
    ],
    ids=["tensor", "array", "anonymous", "file"],
)  # fmt: skip
def test_samples_on_trial_write_to_no_memory_that_the_job_shares(memory, tmp_path):
    memory = memory(tmp_path / "file")
    memory[0] = 41
    # Each finds what is there, and what it writes is its own.
    assert [sandbox.tried(first, Counting(memory), "fork") for _ in range(2)] == [{"sample": 42}] * 2
    assert memory[0] == 41


def test_a_data_set_is_refused_whose_samples_write_to_memory_of_which_there_is_no_copy():
    memory = anonymous(1 << 30)
    memory[0] = 41
    assert "write to memory that processes share" in sandbox.tried(first, Counting(memory), "fork")["why"]
    assert memory[0] == 41
    # It may be read.
    assert sandbox.tried(lambda memory: {"sample": int(memory[0])}, memory, "fork") == {"sample": 41}


def test_a_lock_that_is_taken_on_trial_is_not_the_jobs():
    dataset = Locked()
    dataset.lock = multiprocessing.Lock()
    sandbox.tried(lambda dataset: {"taken": dataset.lock.acquire()}, dataset, "fork")
    assert dataset.lock.acquire(block=False)


def test_a_data_set_is_tried_where_there_are_more_files_than_select_can_number(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2000:
        pytest.skip("SKIPPED: no more than 2,000 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert sandbox.tried(first, [7, 8], "fork") == {"sample": 7}
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Managed(Files):
    """Counts its samples in another process."""

    def __init__(self, paths, counts):
        super().__init__(paths)
        self.counts = counts

    def __getitem__(self, index):
        self.counts["made"] = self.counts.get("made", 0) + 1
        return super().__getitem__(index)


def test_nothing_is_counted_on_trial_in_a_managers_process(tmp_path):
    for name in ("first", "last"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / "first"), str(tmp_path / "last")]
    with multiprocessing.Manager() as manager:
        counts = manager.dict()
        with pytest.raises(split.NoCut, match=r"it holds what a manager's process has \(DictProxy\)"):
            split.of(Managed(paths, counts), None, 1 << 20, of_files=True)
        assert counts.copy() == {}
