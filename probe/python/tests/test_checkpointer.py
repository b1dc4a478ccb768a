"""A job that is killed and started again computes what the one that was not killed computes, bit for bit."""

import json
import os
import random
import re
import signal
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, WarmJob, environment, run

JOB = Path(__file__).with_name("resume_job.py")
# Each takes a start of the job; `make chaos-checkpoint` has more.
RESUMES = int(os.environ.get("STALLSCOPE_RESUMES", "3"))


class Outcome:
    """What a run of the job printed."""

    def __init__(self, code, out, err):
        lines = [json.loads(line) for line in out.splitlines()]
        self.code, self.err = code, err
        self.start = next((line["start"] for line in lines if "start" in line), None)
        self.steps = {line["step"]: line["did"] for line in lines if "step" in line}
        self.end = next((line["end"] for line in lines if "end" in line), None)
        self.lines = lines


def train(python, folder, kill_after=None, **case):
    """Runs the job; `kill_after`: SIGKILLs it behind that many steps."""
    with tempfile.TemporaryDirectory() as outcome:
        out, err = (os.path.join(outcome, name) for name in ("out", "err"))
        os.mkfifo(out)
        job = WarmJob([python, JOB, folder, json.dumps(case)], environment(None, PYTHONPATH=str(PACKAGE)), out, err)
        lines = []
        with open(out) as printed:
            for line in printed:
                lines.append(line)
                kill_after = kill_after - 1 if kill_after and '"did"' in line else kill_after
                if kill_after == 0:
                    kill_after = None
                    job.kill()
        code = job.wait()
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        return Outcome(code, "".join(lines), Path(err).read_text())


@lru_cache(None)
def whole(python, **case):
    """The job that nobody disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(python, folder, **case)
    assert outcome.code == 0 and len(outcome.steps) == 40, outcome.err
    return outcome


def checkpoints(folder):
    return sorted(entry for entry in os.listdir(folder) if entry.startswith("step-"))


def assert_goes_on(whole, outcome):
    """Every step it made, and how it ended, is what the other one made."""
    assert outcome.steps and outcome.end is not None, outcome.err
    for step, did in outcome.steps.items():
        assert did == whole.steps[step], f"step {step}"
    assert outcome.end == whole.end


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_random_steps_and_resumed_bit_for_bit(python, tmp_path, workers):
    # Augmentation by workers is theirs, unless it belongs to the sample.
    case = {"workers": workers, "ours": bool(workers)}
    reference = whole(python, **case)
    moments = random.Random(workers)
    made = set()
    # Where a disk is so slow that each kill comes before the first commit, kills alone would never let it end.
    # The first comes behind the save of step 5, so that there is something to go on from.
    kills = [moments.randrange(6, 12), *(moments.randrange(3, 12) for _ in range(RESUMES - 1))]
    for kill_after in [*kills, None]:
        outcome = train(python, tmp_path, kill_after, pause_s=0.002, events={"5": ["save"]}, **case)
        for step, did in outcome.steps.items():
            assert did == reference.steps[step], f"step {step} of a run from {outcome.start}"
        made |= set(outcome.steps)
        if outcome.end is not None:
            break
        assert outcome.code == -signal.SIGKILL, outcome.err
    assert outcome.start is not None
    assert outcome.end == reference.end and made == set(range(1, 41))


def test_resumed_with_another_number_of_workers(python, tmp_path):
    reference = whole(python, ours=True)
    assert train(python, tmp_path, kill_after=17, ours=True, workers=2, events={"16": ["save"]}).code == -signal.SIGKILL
    outcome = train(python, tmp_path, ours=True, workers=1)
    assert outcome.start["step"] >= 15
    assert_goes_on(reference, outcome)


def test_what_training_does_after_the_copy_is_not_in_the_checkpoint(python, tmp_path):
    reference = whole(python)
    spoilt = train(python, tmp_path, options={"every": 1000}, events={"13": ["save, and go on", "exit"]})
    # The save is of the state after 12 steps by step()'s count, and after 13 trained ones.
    assert spoilt.code == 0, spoilt.err
    outcome = train(python, tmp_path)
    assert outcome.steps[14] == reference.steps[14]
    assert outcome.end == reference.end


def test_an_exit_finishes_what_is_being_written(python, tmp_path):
    outcome = train(python, tmp_path, options={"every": 1000}, events={"8": ["save, and go on", "exit"]})
    assert outcome.code == 0, outcome.err
    assert checkpoints(tmp_path) == ["step-000000007"]
    assert train(python, tmp_path).start["step"] == 7


def test_an_exit_of_a_real_process_does_too(python, tmp_path):
    env = environment(None, PYTHONPATH=str(PACKAGE))
    case = json.dumps({"events": {"8": ["save, and go on", "exit"]}, "options": {"every": 1000}})
    assert subprocess.run([python, JOB, tmp_path, case], env=env, capture_output=True).returncode == 0
    assert checkpoints(tmp_path) == ["step-000000007"]


def test_a_hard_exit_in_the_midst_of_it_leaves_the_one_before(python, tmp_path):
    reference = whole(python)
    for _ in range(2):
        # The first one for certain: on a slow machine memory for the others may not be ready before the exit.
        events = {"3": ["save"], **{str(n): ["exit, hard"] for n in (9, 18)}}
        outcome = train(python, tmp_path, options={"every": 1}, events=events)
        assert outcome.code == 7, outcome.err
    outcome = train(python, tmp_path)
    assert outcome.start is not None and outcome.start["passed"] == []
    assert_goes_on(reference, outcome)


@pytest.mark.parametrize("harm", ["flip", "cut", "missing"])
def test_a_damaged_newest_falls_back_to_the_one_before(python, tmp_path, harm):
    events = {"10": ["save"], "20": ["save"], "21": ["exit"]}
    assert train(python, tmp_path, options={"every": 1000}, events=events).code == 0
    names = checkpoints(tmp_path)
    newest = tmp_path / names[-1]
    largest = max((path for path in newest.iterdir()), key=lambda path: path.stat().st_size)
    if harm == "flip":
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 1
        largest.write_bytes(data)
    elif harm == "cut":
        os.truncate(largest, largest.stat().st_size // 2)
    else:
        largest.unlink()
    outcome = train(python, tmp_path, options={"every": 1000})
    assert outcome.start["step"] == 9 and outcome.start["passed"][0][0] == names[-1]
    assert f"the checkpoint {names[-1]} was passed over" in outcome.err
    assert (tmp_path / "quarantine" / names[-1]).exists()
    assert_goes_on(whole(python), outcome)
    if harm == "flip":
        # As many newer ones as are kept have been read back.
        saves = {str(step): ["save"] for step in (12, 13, 14)} | {"15": ["exit"]}
        assert train(python, tmp_path, options={"every": 1000}, events=saves).code == 0
        assert not (tmp_path / "quarantine" / names[-1]).exists()


def test_another_model_is_refused_with_one_sentence(python, tmp_path):
    assert train(python, tmp_path, events={"10": ["save", "exit"]}).code == 0
    outcome = train(python, tmp_path, width=24)
    assert outcome.code == 1
    # The rule may have saved that step as well.
    assert re.search(
        r"has checkpoints of another job: model/0\.weight is \[16, 8\] in step-000000009(\.2)? and \[24, 8\] here; name another "
        r"folder, or move them away, or take what fits of them with strict=False$",
        outcome.err.splitlines()[-1],
    ), outcome.err


def test_a_full_disk_stops_no_training(python, tmp_path):
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", tmp_path]).returncode:
        pytest.skip("SKIPPED: a small file system cannot be mounted here")
    try:
        (tmp_path / "filler").write_bytes(b"x" * (230 << 10))
        outcome = train(python, tmp_path, settles=True)
        assert outcome.code == 0 and len(outcome.steps) == 40, outcome.err
        line = r"^stallscope: No checkpoint of step \d+: .*No space left on device.* \((\d+) saves have failed; and none before\)$"
        failed = re.findall(line, outcome.err, re.M)
        # The first is a warning, and each that follows has a line.
        assert outcome.err.count("No space left on device") == 1 + len(failed), outcome.err
        assert failed and [int(nth) for nth in failed] == list(range(2, 2 + len(failed))), outcome.err
        os.unlink(tmp_path / "filler")
        (tmp_path / "small").write_bytes(b"")
        assert train(python, tmp_path).start is None
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_sigterm_takes_a_last_checkpoint_and_ends_the_job(python, tmp_path):
    outcome = train(python, tmp_path, options={"every": 1000}, events={"14": ["term"]})
    assert outcome.code == -signal.SIGTERM
    assert "stallscope: SIGTERM came: step-000000014 is the last checkpoint" in outcome.err
    outcome = train(python, tmp_path)
    assert outcome.start["step"] == 14
    assert_goes_on(whole(python), outcome)


def test_sigterm_reaches_the_handler_that_was_there(python, tmp_path):
    outcome = train(python, tmp_path, options={"every": 1000}, events={"5": ["term"]}, handler=True)
    assert outcome.code == 9 and {"handler": "called"} in outcome.lines
    assert checkpoints(tmp_path) == ["step-000000005"]


def test_sigterm_says_that_it_could_not(python, tmp_path):
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path]).returncode:
        pytest.skip("SKIPPED: a small file system cannot be mounted here")
    try:
        outcome = train(python, tmp_path, options={"every": 1000}, events={"5": ["term"]})
        assert outcome.code == -signal.SIGTERM
        assert "SIGTERM came, and step 5 could not be saved: and none before" in outcome.err
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_forked_child_inherits_nothing(python, tmp_path):
    outcome = train(python, tmp_path, events={"7": ["fork"], "20": ["save", "fork"]})
    assert outcome.code == 0 and outcome.lines.count({"child": 5}) == 2, outcome.err
    assert len(outcome.steps) == 40


def test_two_jobs_do_not_save_into_one_folder(python, tmp_path):
    env = environment(None, PYTHONPATH=str(PACKAGE))
    script = """
import sys, torch, stallscope
first = stallscope.Checkpointer(sys.argv[1], model=torch.nn.Linear(1, 1))
try:
    stallscope.Checkpointer(sys.argv[1], model=torch.nn.Linear(1, 1))
except stallscope.CheckpointError as error:
    print(error)
"""
    command = [python, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "give this job a folder of its own" in done.stdout, done.stderr


def test_saves_reach_the_ledger(python, tmp_path):
    case = {"events": {"5": ["save"], "10": ["save"], "12": ["exit"]}, "options": {"keep": 10}}
    done = run([python, JOB, tmp_path, json.dumps(case)])
    assert done.code == 0, done.err
    (process,) = [process for process in done.collector.processes if process.events]
    saves = process.of("Checkpoint")
    assert {save.saver for save in saves} == {"stallscope"}
    copies = [save for save in saves if (save.stage, save.caller) == ("snapshot", "main_thread")]
    written = [save for save in saves if (save.stage, save.caller) == ("persist", "thread")]
    awaited = [save for save in saves if (save.stage, save.caller) == ("persist", "main_thread")]
    # Two that were asked for, and one every third step as far as the disk allows.
    assert len(copies) == len(written) == len(checkpoints(tmp_path)) and len(awaited) == 2
    assert all(save.began_ns <= save.time_ns and save.bytes > 1000 for save in copies)
    rule = process.of("CheckpointRule")[-1]
    # The budget of 2% is dearer than a day without failures lets saves be. The first save has been written by the second.
    assert 0 < rule.cost_ns <= rule.interval_ns / 49 and 0 < rule.persist_ns and rule.mtbf_ns >= 3600 * 10**9


def test_saves_that_fail_are_each_reported_and_counted(python, tmp_path):
    folder = tmp_path / "ckpts"
    case = {"events": {"10": ["save", "turn the folder into a file"], "30": ["exit"]}, "options": {"every": 5}, "settles": True}
    done = run([python, JOB, folder, json.dumps(case)])
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 31, "training went on"
    failed = {int(step) for step in re.findall(r"No checkpoint of step (\d+): ", done.err)}
    assert len(failed) >= 2, done.err
    (process,) = [process for process in done.collector.processes if process.events]
    assert process.of("CheckpointCost")[-1].failed == len(failed)
