"""Whatever happens to us, the job goes on and gives the same."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from collector import PACKAGE, Collector, environment, run, run_plain, run_warm, start
from conftest import JOB

SCENARIOS = ["map-0", "map-2"]

# A collector in a process of its own that says what it got, to be killed.
COLLECTOR = """
import os, sys, time
sys.path.insert(0, {tests!r})
import collector
socket = collector.Collector()
os.rename(socket.path, {path!r})
while True:
    if socket.serve_once() or any(p.events for p in socket.processes):
        waits = [wait.batch for p in socket.processes for wait in p.of("Wait")]
        outcome = [f["fact"] for p in socket.processes for f in p.facts]
        with open({report!r} + ".new", "w") as file:
            print(waits, outcome, sum(p.lane.dropped for p in socket.processes if p.lane), file=file)
        os.rename({report!r} + ".new", {report!r})
"""

PACED = """
import os, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
seen = []
for (batch,) in DataLoader(TensorDataset(torch.arange(40)), batch_size=1):
    seen.append(int(batch))
    time.sleep(0.1)
    while len(seen) == 10 and not os.path.exists(sys.argv[1]):
        # However long a busy machine takes to start another collector.
        time.sleep(0.01)
print(seen == list(range(40)))
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script and gives its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture(scope="module")
def expected(python):
    return run_warm([python, JOB, *SCENARIOS]).out


def test_without_a_collector(python, expected, tmp_path):
    env = environment(tmp_path / "nobody-listens")
    done = subprocess.run([python, JOB, *SCENARIOS], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_without_a_socket_nothing_is_imported(script):
    probe = script("import sys; print([name for name in sys.modules if 'stallscope' in name])")
    env = environment(None, PYTHONPATH=str(PACKAGE / "stallscope" / "_inject"))
    done = subprocess.run([sys.executable, probe], env=env, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_without_torch_nothing_native_is_loaded_and_the_path_stays(script):
    probe = script("import sys; print('stallscope._native' in sys.modules, sys.path[1:])")
    done = run([sys.executable, probe])
    plain = run_plain([sys.executable, probe])
    assert (done.out, done.collector.processes) == (plain.out, [])


def test_a_full_lane_drops_and_counts(python, expected):
    done = run([python, JOB, *SCENARIOS], drain=False, STALLSCOPE_LANE_RECORDS="8")
    assert (done.code, done.out) == (0, expected)
    for process in done.collector.processes:
        assert len(process.events) == 8 and process.lane.dropped > 0


def test_a_collector_that_hangs_up(python, expected, tmp_path):
    collector = Collector()
    job = start([python, str(JOB), *SCENARIOS], environment(collector.path))
    while job.poll() is None:
        collector.listener.settimeout(0.1)
        try:
            collector.listener.accept()[0].close()
        except TimeoutError:
            pass
    out, err = job.communicate()
    assert (job.returncode, out, err) == (0, expected, "")


def test_a_collector_killed_and_started_again(python, script, tmp_path):
    path, reports = tmp_path / "socket", [tmp_path / "first", tmp_path / "second"]
    train = script(PACED)

    def collect(report):
        text = COLLECTOR.format(tests=str(JOB.parent), path=str(path), report=str(report))
        process = subprocess.Popen([sys.executable, "-c", text])
        wait_for(lambda: path.exists())
        return process

    def wait_for(condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    first = collect(reports[0])
    again = tmp_path / "again"
    job = start([python, str(train), str(again)], environment(path))
    wait_for(lambda: reports[0].exists() and len(json.loads(reports[0].read_text().split("]")[0] + "]")) > 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    path.unlink()
    second = collect(reports[1])
    again.touch()
    out, err = job.communicate()
    assert (job.returncode, out.strip(), err) == (0, "True", "")
    wait_for(lambda: "39]" in reports[1].read_text() if reports[1].exists() else False)
    second.kill()
    second.wait()
    before, after = (json.loads(report.read_text().split("]")[0] + "]") for report in reports)
    assert sorted(set(before + after)) == list(range(40)), "the lane was resumed, nothing lost"
    assert after[0] <= before[-1] + 1
    assert "'kind', 'loader'" in reports[1].read_text(), "facts are outcome again"
    assert reports[1].read_text().split()[-1] == "0"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_isolated_interpreters_run_unmeasured(script, flag):
    train = script("print('trained')")
    done = run([sys.executable, flag, train])
    assert (done.code, done.out, done.err, done.collector.processes) == (0, "trained\n", "", [])


def interpreters() -> list:
    """Every Python that can be found, as old as it may be."""
    managed = (Path.home() / ".pyenv" / "versions").glob("*/bin/python")
    found = [sys.executable, *map(str, managed), *filter(None, map(shutil.which, ["python2", "python2.7", "python3.6"]))]
    return [each for each in found if subprocess.run([each, "-c", ""], capture_output=True).returncode == 0]


def test_every_python_runs_the_sitecustomize_that_ours_stands_before(script, tmp_path):
    script("import os; os.environ['SITE'] = __name__", "sitecustomize.py")
    probe = script("import os, sys; print(os.environ['SITE'] + ' ' + sys.modules['sitecustomize'].__file__[:-1])", "probe.py")
    path = os.pathsep.join([str(PACKAGE / "stallscope" / "_inject"), str(tmp_path)])
    for each in interpreters():
        done = run([each, "-B", probe], PYTHONPATH=path)
        assert done.out.split() == ["sitecustomize", str(tmp_path / "sitecustomize.p")], (each, done.err)


def test_a_second_sitecustomize_is_run(script, tmp_path):
    script("import os; os.environ['SITE'] = __name__ + ' ' + __file__", "sitecustomize.py")
    probe = tmp_path / "job" / "probe.py"
    probe.parent.mkdir()
    probe.write_text("import os, sys; print(os.environ['SITE'], sys.modules['sitecustomize'].__file__)")
    path = os.pathsep.join([str(PACKAGE / "stallscope" / "_inject"), str(tmp_path)])
    done = run([sys.executable, probe], PYTHONPATH=path)
    theirs = str(tmp_path / "sitecustomize.py")
    assert done.out.split() == ["sitecustomize", theirs, theirs], done.err


def test_a_missing_native_module_is_no_harm(python, expected, tmp_path):
    broken = tmp_path / "stallscope"
    shutil.copytree(PACKAGE / "stallscope", broken, ignore=shutil.ignore_patterns("*.so"))
    collector = Collector()
    env = environment(collector.path, PYTHONPATH=str(broken / "_inject"), STALLSCOPE_DEBUG="")
    done = subprocess.run([python, JOB, *SCENARIOS], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_an_unknown_torch_is_reported_and_left_alone(script, tmp_path):
    shapes = {
        "torch/__init__.py": "__version__ = '9.0'\ndef is_grad_enabled(): return True\n",
        "torch/utils/__init__.py": "",
        "torch/utils/data/__init__.py": "",
        "torch/utils/data/dataloader.py": "class DataLoader:\n    def __iter__(self):\n        return iter([1, 2])\n",
        "torch/serialization.py": "def keep(x): pass\n",
    }
    for name, text in shapes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    train = script("""
        import torch.serialization
        from torch.utils.data.dataloader import DataLoader
        print(list(DataLoader()))
    """)
    done = run([sys.executable, train])
    assert (done.code, done.out) == (0, "[1, 2]\n")
    (process,) = done.collector.processes
    outcome = [fact["what"] for fact in process.facts_of("unavailable")]
    assert any("dataloader could not be hooked" in what and "_BaseDataLoaderIter" in what for what in outcome), outcome
    assert any("serialization could not be hooked" in what and "save" in what for what in outcome), outcome
    assert process.greeting["torch"] == "9.0"


def test_a_partly_unknown_torch_is_measured_as_far_as_possible(python, script):
    train = script("""
        import sys
        from importlib.machinery import PathFinder

        class Newer:
            def find_spec(self, name, path=None, target=None):
                if name == "torch.utils.data._utils.fetch":
                    spec = PathFinder.find_spec(name, path)
                    run = spec.loader.exec_module
                    def exec_module(module):
                        run(module)
                        fetch = module._MapDatasetFetcher.fetch
                        module._MapDatasetFetcher.fetch = lambda self, index, hint=None: fetch(self, index)
                    spec.loader.exec_module = exec_module
                    return spec
        sys.meta_path.insert(0, Newer())
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        print(sum(int(batch.sum()) for (batch,) in DataLoader(TensorDataset(torch.arange(8)), batch_size=2)))
    """)
    done = run([python, train])
    assert (done.code, done.out) == (0, "28\n"), done.err
    trainer = done.collector.trainer()
    assert len(trainer.of("Wait")) == 4 and trainer.of("Sample") == []
    assert any("single samples" in fact["what"] for fact in trainer.facts_of("unavailable"))


def test_a_job_that_closes_all_files(python, script, tmp_path):
    train = script(f"""
        import os, torch
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
        total = sum(int(batch.sum()) for (batch,) in loader)
        os.closerange(3, 4096)
        files = [open({str(tmp_path)!r} + f"/{{n}}", "w+b") for n in range(1000)]
        total += sum(int(batch.sum()) for (batch,) in loader)
        DataLoader(TensorDataset(torch.arange(8)), batch_size=4).__iter__()
        print(total, sum(os.fstat(file.fileno()).st_size for file in files))
    """)
    done = run([python, train])
    assert (done.code, done.out, done.err) == (0, "56 0\n", "")


def test_a_forked_child_has_a_lane_of_its_own(python, script):
    train = script("""
        import os, torch
        from torch.utils.data import DataLoader, TensorDataset
        def iterate(count):
            return sum(1 for _ in DataLoader(TensorDataset(torch.arange(count)), batch_size=1))
        iterate(3)
        child = os.fork()
        count = iterate(5 if child == 0 else 4)
        if child == 0:
            os._exit(count)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count)
    """)
    done = run([python, train])
    assert (done.code, done.out, done.err) == (0, "5 4\n", "")
    one, other = done.collector.processes
    parent, child = (one, other) if other.greeting["ppid"] == one.pid else (other, one)
    assert child.greeting["ppid"] == parent.pid
    assert len(parent.of("Wait")) == 7 and len(child.of("Wait")) == 5
    assert len(child.of("Batch")) == 5 and len(parent.of("IterEnd")) == 2
    assert child.kind == parent.kind == "trainer" and [fact["loader"] for fact in child.facts_of("loader")] == [0]


def test_an_alarm_inside_next_reaches_the_job(python, script):
    train = script("""
        import signal, time, torch
        from torch.utils.data import DataLoader, Dataset
        class Late(Exception): pass
        def late(*_): raise Late
        class Slow(Dataset):
            def __len__(self): return 4
            def __getitem__(self, index):
                time.sleep(4 if index == 2 else 0)
                return index
        signal.signal(signal.SIGALRM, late)
        loader = DataLoader(Slow(), num_workers=1)
        for attempt in range(2):
            got = []
            try:
                for batch in loader:
                    got.append(int(batch))
                    if got == [0, 1]:
                        signal.alarm(1)
            except Late:
                print(got)
    """)
    done = run([python, train])
    assert (done.code, done.out) == (0, "[0, 1]\n[0, 1]\n"), done.err
    assert ["failed" in wait.flags for wait in done.collector.trainer().of("Wait")] == [False, False, True] * 2


def test_data_sets_and_loaders_can_still_be_pickled(python, script):
    train = script("""
        import copy, pickle, torch
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.arange(4)), num_workers=0)
        plain = set(vars(loader))
        list(loader)
        again = pickle.loads(pickle.dumps(loader))
        copy.deepcopy(loader)
        print(len(list(again)), set(vars(loader)) == plain, type(loader.dataset).__name__)
    """)
    done = run([python, train])
    assert (done.code, done.out, done.err) == (0, "4 True TensorDataset\n", "")


def test_iterators_are_freed_as_soon_as_without_us(python, script):
    train = script("""
        import gc, weakref, torch
        from torch.utils.data import DataLoader, IterableDataset, TensorDataset
        gc.disable()
        class Stream(IterableDataset):
            def __iter__(self): return iter(range(4))
        for dataset in (TensorDataset(torch.arange(4)), Stream()):
            for workers in (0, 1):
                iterator = iter(DataLoader(dataset, num_workers=workers))
                next(iterator)
                gone = weakref.ref(iterator)
                del iterator
                print(gone() is None)
    """)
    done, plain = run([python, train]), run_plain([python, train])
    assert (done.code, done.out, done.err) == (0, plain.out, plain.err)
