"""A data set is tried in a process that was forked, where locks stay as other threads had them."""

import os
import socket
import ssl
import threading
import time

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
