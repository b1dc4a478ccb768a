"""The pool from Python: processes that fork, spawn, are killed, and the pool killed under them."""

import hashlib
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

STAGED = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[3] / "target")) / "python"
sys.path.insert(0, str(STAGED))
from stallscope import _native, _pool  # noqa: E402

MIB = 1 << 20
LONG_MS = 60_000
# No test waits so long for what does come.
PATIENCE_S = 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_POOL_LINGER_MS", "300")
    yield tmp_path
    # A pool that a test leaves behind goes by itself.
    until(lambda: not pools(tmp_path))


def space(folder, key=b"key", samples=1000, capacity=8 * MIB, policy="minio"):
    return _native.Space(str(folder), _pool.command(), key, samples, capacity, policy)


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def pools(folder):
    """Pids of pools of `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(") ")[2][0]
        except (OSError, IndexError):
            continue
        if os.fsencode(_pool.__file__) in words and os.fsencode(str(folder)) in words and state not in "ZX":
            found.append(int(process.name))
    return found


def bytes_of(sample, tag):
    """What no other sample, and no other tag, has."""
    seed = hashlib.blake2b(struct.pack("<QQ", sample, tag)).digest()
    return (seed * (1 + sample * 37 % 800))[: 64 + sample * 641 % 50_000]


def in_child(work):
    """Runs `work` in a forked child; its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_sample_comes_back_as_bytes_of_ones_own(folder):
    cache = space(folder)
    data = bytes_of(3, 1)
    assert cache.get(3, 1) is None
    assert cache.claim(3, 0) and cache.fill(3, 1, data, 0, 5)
    copy = cache.get(3, 1)
    assert type(copy) is bytearray and copy == data
    assert cache.has(3, 1) and not cache.has(3, 2) and not cache.has(4, 1), "as a copy would be found"
    copy[:] = b"x" * len(copy)
    assert cache.get(3, 1) == data, "a write to a copy changes that copy alone"
    for sample, kind in enumerate([bytes, bytearray, memoryview], 10):
        assert cache.fill(sample, -1, kind(data)) and cache.get(sample, 2**64 - 1) == data
    with pytest.raises(TypeError):
        cache.fill(20, 1, "text")
    with pytest.raises(TypeError):
        cache.fill(20, 1, 17)
    figures = cache.figures()
    assert (figures["kept_samples"], figures["fills"], figures["clients"]) == (4, 4, 1)
    assert figures["capacity_bytes"] == 8 * MIB and figures["kept_bytes"] >= 4 * len(data)
    assert cache.alive


def test_ids_that_no_sample_has_are_misses(folder):
    cache = space(folder)
    for sample in (-1, 1000, 2**32, 2**64, -(2**70), 10**30):
        assert cache.get(sample, 0) is None and not cache.has(sample, 0)
        assert not cache.claim(sample, 0)
        assert not cache.fill(sample, 0, b"x")
        cache.give_up(sample)
    with pytest.raises(TypeError):
        cache.get("3", 0)
    with pytest.raises(TypeError):
        cache.has("3", 0)
    assert cache.figures()["fills"] == 0


def test_wrong_arguments_are_named(folder):
    with pytest.raises(ValueError, match='no policy "best"'):
        space(folder, policy="best")
    with pytest.raises(ValueError, match="samples"):
        space(folder, samples=2**40)
    with pytest.raises(OSError, match="ask for less"):
        space(folder, capacity=2**60)
    with pytest.raises(OSError, match="did not start: .*no-such-program"):
        _native.Space(str(folder / "a"), ["/no-such-program"], b"", 1, 1, "minio")
    script = ["/bin/sh", "-c", "echo cannot go on >&2; exit 3", "sh"]
    with pytest.raises(OSError, match="did not start: cannot go on"):
        _native.Space(str(folder / "b"), script, b"", 1, 1, "minio")
    (folder / "file").write_text("")
    with pytest.raises(ValueError, match="STALLSCOPE_RUNTIME_DIR"):
        space(folder / "file")


def test_forked_and_spawned_workers_use_the_same_samples(folder):
    cache = space(folder)
    cache.fill(1, 1, bytes_of(1, 1))

    def work():
        assert cache.get(1, 1) == bytes_of(1, 1)
        assert cache.claim(2, 0) and cache.fill(2, 1, bytes_of(2, 1))

    assert in_child(work) == 0
    assert cache.get(2, 1) == bytes_of(2, 1)
    code = "import pickle, sys; c = pickle.load(sys.stdin.buffer); assert c.fill(3, 1, bytes(c.get(2, 1))) and c.alive"
    environment = {**os.environ, "PYTHONPATH": str(STAGED)}
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(cache), env=environment, check=True)
    assert cache.get(3, 1) == bytes_of(2, 1)
    until(lambda: cache.figures()["clients"] == 1)
    assert cache.alive and cache.fill(4, 1, b"x")


def test_a_pickle_of_a_space_whose_pool_cannot_be_had_is_a_space_of_misses(folder):
    cache = space(folder)
    again, arguments = cache.__reduce__()
    copy = again(str(folder / "elsewhere"), ["/no-such-program"], *arguments[2:])
    assert copy.get(1, 1) is None and not copy.claim(1, LONG_MS) and not copy.fill(1, 1, b"x")
    copy.used([(1, 2, 3)])
    copy.planned([(1, 2)])
    copy.scored([(1, 2.0)])
    copy.epoch()
    copy.give_up(1)
    assert not copy.resize(5) and not copy.alive and copy.figures()["capacity_bytes"] == 0


def test_a_fork_in_the_midst_of_what_threads_do_hangs_nobody(folder):
    cache = space(folder, capacity=64 * MIB)
    stop = threading.Event()

    def work(number):
        at = number
        while not stop.is_set():
            at += 4
            if cache.claim(at % 900, 5):
                cache.fill(at % 900, 1, bytes_of(at % 900, 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for child in range(20):
            sample = 900 + child

            def use():
                signal.alarm(PATIENCE_S)
                assert cache.claim(sample, LONG_MS) and cache.fill(sample, 1, bytes_of(sample, 1))
                assert cache.get(sample, 1) == bytes_of(sample, 1)

            assert in_child(use) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert cache.alive


def test_who_is_killed_while_it_reads_a_sample_leaves_it_to_others(folder):
    cache = space(folder)
    children = []
    for sample in range(5):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            assert cache.claim(sample, 0)
            os.write(write, b"!")
            signal.pause()
        children.append(pid)
        os.close(write)
        assert os.read(read, 1) == b"!"
        os.close(read)
    # The later children hold copies of nothing that would keep the earlier ones' claims.
    for sample, pid in enumerate(children):
        assert not cache.claim(sample, 10)
        waits = threading.Thread(target=lambda: taken.append(cache.claim(sample, LONG_MS)))
        taken = []
        waits.start()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        waits.join()
        assert taken == [True] and cache.fill(sample, 1, bytes_of(sample, 1))


def test_half_a_fill_is_no_sample(folder):
    """By a client of its own: ours sends its bytes in one go."""
    cache = space(folder)
    rest = struct.pack("=QQB", 1000, 8 * MIB, 1) + b"key"
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(folder / "pool.sock"))
    client.sendall(b"stallpoo" + struct.pack("=II", 2, len(rest)) + rest)
    client.recv(4096)
    client.sendall(struct.pack("=IBxxxIIIIQ", 24, 1, 7, 5, 0, 0, 0))
    assert struct.unpack("=II", client.recv(8)) == (7, 1)
    client.sendall(struct.pack("=IBxxxIIQQQQ", 40, 2, 7, 5, 1, 100_000, 0, 0))
    assert struct.unpack("=II", client.recv(8)) == (7, 3)
    client.sendall(struct.pack("=IBxxxIIQ", 16, 3, 7, 5, 100_000) + b"z" * 60_000)
    assert cache.get(5, 1) is None and not cache.claim(5, 10)
    client.close()
    assert cache.claim(5, LONG_MS) and cache.fill(5, 1, bytes_of(5, 1))
    assert cache.get(5, 1) == bytes_of(5, 1)


def test_a_job_survives_its_pool_and_starts_another(folder):
    cache = space(folder)
    other = space(folder)
    for sample in range(20):
        cache.fill(sample, 1, bytes_of(sample, 1))
    assert cache.resize(4 * MIB)
    assert other.claim(500, 0)
    waited = []
    waits = threading.Thread(target=lambda: waited.append(cache.claim(500, LONG_MS)))
    waits.start()
    (pool,) = pools(folder)
    os.kill(pool, signal.SIGKILL)
    waits.join()
    assert waited == [False], "nobody waits for a pool that is gone"
    assert all(cache.get(sample, 1) == bytes_of(sample, 1) for sample in range(20)), "what was there is right"
    assert not cache.fill(21, 1, b"x") or cache.alive
    until(lambda: cache.fill(30, 1, bytes_of(30, 1)))
    until(lambda: other.alive)
    assert other.get(30, 1) == bytes_of(30, 1)
    assert len(pools(folder)) == 1 and pools(folder) != [pool]
    assert cache.figures()["capacity_bytes"] == 4 * MIB, "the capacity is the one that was in force"


def test_a_pool_that_is_stopped_costs_a_moment_and_no_more(folder):
    cache = space(folder)
    cache.fill(1, 1, bytes_of(1, 1))
    (pool,) = pools(folder)
    os.kill(pool, signal.SIGSTOP)
    try:
        assert not cache.claim(2, 50)
        # By then it is known; the next ones are asked for in vain ever more seldom.
        for sample in range(2, 300):
            assert not cache.claim(sample, LONG_MS) and not cache.fill(sample, 1, b"x")
        assert cache.get(1, 1) == bytes_of(1, 1) and not cache.alive
    finally:
        os.kill(pool, signal.SIGCONT)
    until(lambda: cache.claim(2, 0))


def test_a_signal_ends_waiting(folder):
    cache, other = space(folder), space(folder)
    assert other.claim(1, 0)

    class Rang(Exception):
        pass

    def ring(*_):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Rang):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            cache.claim(1, LONG_MS)
            until(lambda: False)
    finally:
        signal.signal(signal.SIGALRM, before)
    other.give_up(1)
    assert cache.claim(1, LONG_MS), "who waited and was rung up does not hold it"


def test_a_job_that_closes_all_its_files_keeps_its_own_later_ones(folder):
    cache = space(folder)
    cache.fill(1, 1, b"kept")

    def work():
        assert cache.fill(2, 1, b"kept, too")
        os.closerange(3, 4096)
        mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(1200)]
        assert cache.get(1, 1) == b"kept"
        cache.fill(3, 1, b"x")
        cache.claim(4, 0)
        assert all(os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev for fd in mine)

    assert in_child(work) == 0
    assert cache.alive


def test_the_pool_is_no_child_of_the_job_and_goes_after_it(folder):
    cache = space(folder)
    (pool,) = pools(folder)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pool}/status").read_text().splitlines())
    assert int(status["PPid"]) != os.getpid()
    assert os.getsid(pool) == pool
    targets = {os.readlink(fd) for fd in Path(f"/proc/{pool}/fd").iterdir()}
    assert not [target for target in targets if target.startswith("pipe:")], "it keeps nobody's pipe open"
    assert cache.figures()["cgroup"] == memory_cgroup(pool)
    del cache
    until(lambda: not pools(folder))
    assert not (folder / "pool.sock").exists()


def memory_cgroup(pid):
    lines = [line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    named = [group for controllers, group in lines if "memory" in controllers.split(",")]
    return named[0] if named else next(group for controllers, group in lines if not controllers)


def test_many_that_start_at_once_share_one_pool(folder):
    code = """if True:
        import sys
        from stallscope import _native, _pool
        cache = _native.Space(sys.argv[1], _pool.command(), b"key", 100, 1 << 20, "minio")
        first = cache.claim(1, 60_000)
        if first:
            assert cache.fill(1, 1, b"once")
        assert cache.get(1, 1) == b"once"
        print(int(first), flush=True)
        sys.stdin.read()
    """
    environment = {**os.environ, "PYTHONPATH": str(STAGED)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], env=environment, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    assert sorted(job.stdout.readline() for job in jobs) == ["0\n"] * 5 + ["1\n"]
    assert len(pools(folder)) == 1
    for job in jobs:
        job.communicate("")
        assert job.returncode == 0


def read_for_ever(cache, samples, failed):
    at = os.getpid()
    while True:
        at = at * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        sample, tag = (at >> 33) % samples, (at >> 20) % 2
        copy = cache.get(sample, tag)
        if copy is not None and copy != bytes_of(sample, tag):
            failed.value = sample + 1
            os._exit(1)


@pytest.mark.parametrize("policy", ["lru", "min"])
def test_no_reader_ever_gets_anothers_bytes(folder, policy):
    """Readers in processes of their own, some of which are killed, while samples are replaced, evicted and moved."""
    samples = 120
    cache = space(folder, samples=samples, capacity=2 * MIB, policy=policy)
    context = multiprocessing.get_context("fork")
    failed = context.Value("q", 0)
    readers = []
    at = 0
    for turn in range(12):
        while len(readers) < 3:
            readers.append(context.Process(target=read_for_ever, args=(cache, samples, failed), daemon=True))
            readers[-1].start()
        for _ in range(150):
            at += 1
            sample, tag = at * 7919 % samples, at // 400 % 2
            cache.fill(sample, tag, bytes_of(sample, tag), at, at + 1 + sample)
            copy = cache.get(sample, tag)
            assert copy is None or copy == bytes_of(sample, tag)
        assert cache.resize((1 + turn % 4) * MIB // 2)
        assert cache.figures()["kept_bytes"] <= cache.figures()["capacity_bytes"]
        killed = readers.pop(0)
        killed.kill()
        killed.join()
    (pool,) = pools(folder)
    os.kill(pool, signal.SIGKILL)
    for sample in range(samples):
        for tag in range(2):
            copy = cache.get(sample, tag)
            assert copy is None or copy == bytes_of(sample, tag)
    for reader in readers:
        assert reader.is_alive(), f"sample {failed.value - 1} had another's bytes"
        reader.kill()
        reader.join()
    assert not failed.value
    assert cache.figures()["evictions"] > 100
