"""State that is DTensors: each rank saves its part, and any number of ranks restores each its own, to the bit what torch has."""

import json
import sys
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
pytest.importorskip("torch.distributed.tensor", reason="SKIPPED: this torch has no DTensor")

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.checkpoint.reading import Reading, shards  # noqa: E402

JOB = Path(__file__).with_name("dtensor_job.py")


def lives(folder, *cases):
    """For each job what its ranks printed, by rank."""
    done = run_warm([sys.executable, JOB, folder, json.dumps(cases)], PYTHONPATH=str(PACKAGE))
    lines = iter(done.out.splitlines())
    outcome = []
    for case in cases:
        of_ranks = [json.loads(next(lines)) for _ in range(0 if case.get("torn") else case["ranks"])]
        outcome.append(sorted(of_ranks, key=lambda facts: facts["rank"]))
    assert next(lines, None) is None, done.err
    return outcome


def fsdp(*mesh, **more):
    return {"ranks": torch.Size(mesh).numel(), "mesh": mesh, "kind": "fsdp", **more}


def placed(kind, *mesh, **more):
    return {**fsdp(*mesh), "kind": kind, **more}


PLAIN = {"ranks": 1, "kind": "plain"}
# The first saves, each of the others goes on from what the one before saved. No number of ranks divides the sizes.
CHAINS = {
    "more, fewer and one": [fsdp(2), fsdp(4), fsdp(2), fsdp(3), PLAIN, fsdp(2)],
    "the same": [fsdp(2, sharded=True), fsdp(2, sharded=True), fsdp(2), fsdp(2, before=2)],
    "frozen": [fsdp(2, frozen=True), fsdp(3, frozen=True)],
    "replicas": [fsdp(2, 2), fsdp(4), fsdp(2, 2, before=1), fsdp(2)],
    "columns": [placed("columns", 2), placed("columns", 4), placed("columns", 3)],
    "both": [placed("mixed", 2, 2), fsdp(4), placed("mixed", 2, 2), placed("columns", 2)],
    "twice the same dimension": [placed("twice", 2, 2), placed("columns", 3), placed("same", 2)],
    "tied, and ranks without a row": [fsdp(4, tied=True), fsdp(2, tied=True), fsdp(4, tied=True)],
    "an average in the dict": [fsdp(2, average=True), fsdp(3, average=True), fsdp(2, average=True)],
    "as one object": [fsdp(2, app=True), fsdp(4, app=True), {**PLAIN, "app": True}],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_job_goes_on_with_another_number_of_ranks(tmp_path, chain):
    outcome = lives(tmp_path, *({**case, "train": 2, "save": True} for case in CHAINS[chain]))
    assert [ranks[0]["start"] for ranks in outcome] == [None] + [f"step-{step:09}" for step in range(1, len(outcome))]
    for before, after in zip(outcome, outcome[1:]):
        # Digests are of full_tensor()s, the same on each rank.
        assert {facts["restored"] for facts in after} == {before[0]["trained"]} != {after[0]["before"]}
        assert len({facts["trained"] for facts in after}) == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_it_restores_what_torch_restores(tmp_path, ranks):
    saved, ours, theirs = lives(
        tmp_path, fsdp(3, train=3, save=True), fsdp(ranks, train=2), fsdp(ranks, train=2, by="dcp")
    )
    assert ours[0]["start"] == "step-000000001" and theirs[0]["start"] == "dcp"
    assert {facts["restored"] for facts in ours + theirs} == {saved[0]["trained"]}
    assert len({facts["trained"] for facts in ours + theirs}) == 1


def test_each_rank_reads_what_it_needs(tmp_path):
    saved, restored = lives(tmp_path, fsdp(2, width=5000, train=1, save=True), fsdp(4, width=5000))
    assert {facts["restored"] for facts in restored} == {saved[0]["trained"]}
    sizes = [one.stat().st_size for one in tmp_path.glob("step-*/shard-*.safetensors")]
    assert len(sizes) == 2 and max(sizes) < 1.05 * min(sizes), "each rank its own half"
    # A quarter, and the chunks of 4 MiB that begin or end in it. The first rank verified all of it before.
    assert all(facts["read"] < sum(sizes) / 2 for facts in restored[1:]), (sizes, restored)


def test_a_checkpoint_is_of_all_ranks_or_none(tmp_path):
    saved, _, after = lives(tmp_path, fsdp(2, train=1, save=True), fsdp(2, train=1, torn=True), fsdp(4))
    assert {facts["start"] for facts in after} == {"step-000000001"}
    assert {facts["restored"] for facts in after} == {saved[0]["trained"]}


def test_what_one_rank_refuses_changes_nothing_on_any(tmp_path):
    _, odd, refused = lives(
        tmp_path, fsdp(2, train=1, save=True, last=-1), fsdp(2, odd=1), fsdp(2, before=2, last=1)
    )
    assert all("the ranks have DTensors of different names, shapes or placements" in facts["refused"] for facts in odd), odd
    assert "last: Last does not take the state from the checkpoint: not this one" in refused[1]["refused"]
    assert refused[0]["refused"] == f"rank 1: {refused[1]['refused']}"
    assert all(facts["after"] == facts["before"] for facts in refused)


def test_tensors_on_meshes_of_some_of_the_ranks_are_refused_before_anything_is_saved(tmp_path):
    (outcome,) = lives(tmp_path, placed("half", 2, 2, train=1, save=True))
    assert all("model/0.weight is a DTensor of a mesh of 2 of the job's 4 ranks" in facts["refused"] for facts in outcome), outcome


@pytest.fixture
def mesh(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


def test_placements_that_are_not_saved_are_refused_when_the_checkpointer_is_made(tmp_path, mesh):
    from torch.distributed.tensor import DTensor, Partial, placement_types

    model = torch.nn.Linear(4, 4)
    for odd in (Partial(), placement_types._StridedShard(0, split_factor=2)):
        weight = DTensor.from_local(torch.rand(4, 4), mesh, [odd], run_check=False)
        with pytest.raises(CheckpointError, match=rf"held/w is a DTensor placed as {type(odd).__name__}, and checkpoints hold those placed as Shard"):
            Checkpointer(tmp_path / "kept", held=Holder(weight))
    model.weight = torch.nn.Parameter(DTensor.from_local(model.weight.detach(), mesh, [placement_types._StridedShard(0, split_factor=2)]))
    with pytest.raises(CheckpointError, match="optimizer: parameter 0 is a DTensor placed as _StridedShard"):
        Checkpointer(tmp_path / "kept", optimizer=torch.optim.Adam(model.parameters()))


class Holder:
    def __init__(self, weight):
        self.weight = weight

    def state_dict(self):
        return {"w": self.weight}

    def load_state_dict(self, state):
        self.weight = state["w"]


WRONG = {
    "a gap": {"shape": [8, 3]},
    "outside": {"offset": [1, 0]},
    "other sizes than its tensor": {"shape": [5, 3], "sizes": [5, 3]},
    "another type than its tensor": {"dtype": "F64"},
    "an unknown type": {"dtype": "F4"},
    "not saved": {"saved": False},
    "no numbers": {"offset": ["0", None]},
    "a fraction": {"sizes": [6, 3.0]},
    "fewer dimensions": {"shape": [18]},
    "a placement along no dimension": {"dims": [2]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_parts_that_are_not_the_whole_are_refused_before_anything_is_set(tmp_path, mesh, wrong):
    from torch.distributed.tensor import Shard, distribute_tensor

    model = torch.nn.Linear(3, 6, bias=False)
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    with Checkpointer(tmp_path / "kept", model=model) as checkpointer:
        take_apart = checkpointer._job.take_apart

        def other(*given):
            encoded, tensors = take_apart(*given)
            encoded["shards"]["model/weight"].update(WRONG[wrong])
            return encoded, tensors

        checkpointer._job.take_apart = other
        checkpointer.save(wait=True)
        with torch.no_grad():
            model.weight.fill_(7)
        with pytest.raises(CheckpointError, match="does not say where all of model/weight is: another program made it"):
            checkpointer.restore()
    assert (model.weight.full_tensor() == 7).all()


def test_a_tensor_comes_back_placed_as_it_is_here(tmp_path, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole = torch.rand(6, 3)
    held = Holder(distribute_tensor(whole, mesh, [Shard(0)]))
    with Checkpointer(tmp_path / "kept", held=held) as checkpointer:
        checkpointer.save(wait=True)
        for placement in (Shard(1), Replicate()):
            held.weight = distribute_tensor(torch.zeros(6, 3), mesh, [placement])
            checkpointer.restore()
            assert torch.equal(held.weight.full_tensor(), whole) and held.weight.placements == (placement,)
        held.weight = torch.zeros(6, 3)
        checkpointer.restore()
        assert type(held.weight) is torch.Tensor and torch.equal(held.weight, whole)


def test_a_model_that_is_sharded_behind_the_checkpointers_back_is_refused(tmp_path, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    held = Holder(torch.rand(6, 3))
    with Checkpointer(tmp_path / "kept", held=held) as checkpointer:
        held.weight = distribute_tensor(held.weight, mesh, [Shard(0)])
        with pytest.raises(CheckpointError, match=r"held/w has become a DTensor since the Checkpointer was made: make it after fully_shard\(\)"):
            checkpointer.save(wait=True)


def read_from(shape, *parts):
    """Where a tensor of that shape is read from, whose parts (offset and sizes, one of each rank) a checkpoint describes so."""

    class Reader:
        name, world = "step-1", len(parts)

        def tensors(self, rank):
            return [("w", "F32", list(parts[rank][1]))]

    def described(rank):
        offset, sizes = parts[rank]
        shard = {"dtype": "F32", "shape": list(shape), "offset": list(offset), "sizes": list(sizes), "dims": [0, None], "saved": True}
        return {"shards": {"w": shard}}

    reading = Reading(Reader())
    reading.encoded = described
    return [tuple(piece.box) for piece in reading.pieces(shards(reading, 0)["w"])]


OVER = {
    "a part over another, and a gap as large": ((6, 3), ((0, 0), (4, 3)), ((2, 0), (2, 3))),
    "the same twice": ((6, 3), ((0, 0), (3, 3)), ((0, 0), (3, 3))),
    "over each other along both dimensions": ((4, 4), ((0, 0), (2, 4)), ((1, 0), (1, 4)), ((3, 0), (1, 4))),
    "beyond the end": ((6, 3), ((0, 0), (3, 3)), ((4, 0), (3, 3))),
    "of other dimensions": ((4, 4), ((0, 0), (2, 4)), ((2, 0, 0), (2, 4, 1))),
    "turned": ((4, 4), ((0, 0), (4, 2)), ((0, 2), (2, 2)), ((1, 2), (2, 2))),
}


@pytest.mark.parametrize("over", OVER)
def test_parts_that_lie_over_each_other_are_not_the_whole(over):
    with pytest.raises(CheckpointError, match="does not say where all of w is: another program made it"):
        read_from(*OVER[over])


def test_parts_are_cells_of_a_grid():
    for shape, *parts in [
        ((6, 3), ((0, 0), (6, 3))),
        ((7, 3), ((0, 0), (3, 3)), ((3, 0), (3, 3)), ((6, 0), (1, 3))),
        ((5, 3), ((0, 0), (3, 2)), ((0, 2), (3, 1)), ((3, 0), (2, 2)), ((3, 2), (2, 1))),
    ]:
        assert read_from(shape, *parts) == parts
