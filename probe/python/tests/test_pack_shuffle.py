"""A pack whose chunks are read whole: each sample once, the same order again, batches mixed as stated, in memory as stated."""

import doctest
import gc
import importlib
import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from collector import PACKAGE  # noqa: F401  where the package is
from unwarned import unwarned

torch = pytest.importorskip("torch")

from pack_sets import program  # noqa: E402

import stallscope  # noqa: E402

FILES, CLASSES, BATCH = 600, 6, 32


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """By name: one that is shuffled as it is packed, and one in the order of names, so of classes. Chunks have 4 MiB: about ten of each."""
    home = tmp_path_factory.mktemp("packs")
    draw = random.Random(1)
    for number in range(FILES):
        path = home / "set" / f"{number * CLASSES // FILES}" / f"{number:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(4, "little") + draw.randbytes(draw.randrange(30_000, 110_000)))
    for name, options in (("shuffled", []), ("sorted", ["--in-order"])):
        done = subprocess.run([program(), "pack", home / "set", "-o", home / name, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def own_pool(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))


class Numbers(stallscope.PackedDataset):
    """A file's number: what its bytes begin with."""

    def __getitem__(self, index):
        data = super().__getitem__(index)
        assert len(data) >= 30_004
        return int.from_bytes(data[:4], "little")


def shuffle(effect=11, memory="40MiB", **more):
    return stallscope.Shuffle(effect, memory, **more)


def epoch(loader):
    return [batch.tolist() for batch in loader]


def all_of(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("workers, method", [(0, None), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_an_epoch_has_each_sample_once_and_another_order_than_the_last(packs, workers, method):
    dataset = Numbers(packs / "sorted")
    loader = stallscope.DataLoader(
        dataset, batch_size=BATCH, num_workers=workers, multiprocessing_context=method, shuffle=shuffle(), persistent_workers=workers == 3
    )
    one, two = epoch(loader), epoch(loader)
    assert sorted(all_of(one)) == sorted(all_of(two)) == list(range(FILES)) and one != two
    assert len(one) == len(loader) == -(-FILES // BATCH)
    # The same with any number of workers, and in torch's own loader.
    sampler = dataset.shuffled(shuffle(), BATCH)
    plain = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    assert [epoch(plain), epoch(plain)] == [one, two]
    sampler.set_epoch(0)
    assert epoch(plain) == one
    other = stallscope.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle(seed=1))
    assert epoch(other) != one


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_chunks_are_read_whole_and_workers_read_none_themselves(packs, method):
    dataset = Numbers(packs / "shuffled")
    loader = stallscope.DataLoader(dataset, batch_size=BATCH, num_workers=2, multiprocessing_context=method, shuffle=shuffle(2, "64MiB"))
    kept = {path: path.read_bytes() for path in Path(packs / "shuffled").glob("*.chunk")}
    batches = iter(loader)
    got = [next(batches).tolist()]
    # All of the memory is read ahead, which holds the pack; what would be read now would be an error.
    while loader.sampler._orders.read() < len(kept):
        got.append(next(batches).tolist())
    try:
        for path in kept:
            os.truncate(path, 0)
        got += [batch.tolist() for batch in batches]
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    assert sorted(all_of(got)) == list(range(FILES))
    assert loader.sampler._orders.read() == len(kept)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_divide_an_epoch(packs, world):
    dataset = Numbers(packs / "sorted")
    ranks = [dataset.shuffled(shuffle(60), 5, rank=rank, world_size=world) for rank in range(world)]
    drawn = [list(sampler) for sampler in ranks]
    assert sorted(all_of(drawn)) == list(range(FILES)) and [len(sampler) for sampler in ranks] == list(map(len, drawn))
    assert max(map(len, drawn)) - min(map(len, drawn)) <= 1


@pytest.mark.parametrize("workers, then", [(0, 0), (0, 2), (2, 0), (2, 3)])
@pytest.mark.parametrize("batches", [1, 7])
def test_an_epoch_goes_on_with_other_workers(packs, workers, then, batches):
    def loader(workers, memory="40MiB"):
        return stallscope.DataLoader(Numbers(packs / "sorted"), batch_size=BATCH, num_workers=workers, shuffle=shuffle(memory=memory))

    first = loader(0)
    epochs = [epoch(first) for _ in range(3)]
    left = loader(workers)
    list(left)
    under_way = iter(left)
    got = [next(under_way).tolist() for _ in range(batches)]
    state = left.state_dict()
    # More memory makes no other order of an epoch that was begun.
    resumed = loader(then, "64MiB")
    resumed.load_state_dict(state)
    assert resumed.state_dict()["shuffled"] == state["shuffled"]
    got += epoch(resumed)
    assert got == epochs[1] and epoch(resumed) == epochs[2]


def test_an_epoch_goes_on_with_other_ranks_and_batches(packs, monkeypatch):
    def loader(rank, world, batch):
        ranks = lambda *_: type("", (), {"rank": rank, "count": world})  # noqa: E731
        monkeypatch.setattr("stallscope.data.pack.in_loader.Ranks", ranks)
        return stallscope.DataLoader(Numbers(packs / "sorted"), batch_size=batch, shuffle=shuffle(20))

    trained, states = [], []
    for rank in range(2):
        begun = loader(rank, 2, 20)
        batches = iter(begun)
        trained += [next(batches).tolist() for _ in range(4)]
        states.append(begun.state_dict())
    again = []
    for rank in range(3):
        resumed = loader(rank, 3, 8)
        resumed.load_state_dict(states[rank % 2])
        batches = iter(resumed)
        trained += [next(batches).tolist() for _ in range(5)]
        again.append(resumed.state_dict())
    # And once more with as many as these.
    for rank in range(3):
        resumed = loader(rank, 3, 8)
        resumed.load_state_dict(again[rank])
        trained += epoch(resumed)
        assert resumed.state_dict()["epoch"] == 1
        following = epoch(resumed)
        assert len(all_of(following)) == FILES // 3
    assert sorted(all_of(trained)) == list(range(FILES))


def test_a_samplers_own_position_goes_on(packs):
    dataset = Numbers(packs / "sorted")
    sampler = dataset.shuffled(shuffle(), BATCH)
    whole = [list(sampler) for _ in range(3)]
    sampler = dataset.shuffled(shuffle(), BATCH)
    list(sampler)
    begun = iter(sampler)
    got = [next(begun) for _ in range(3 * BATCH)]
    other = dataset.shuffled(shuffle(), 10)
    other.load_state_dict(sampler.state_dict(batches=3))
    assert len(other) == FILES - 3 * BATCH
    assert got + list(other) == whole[1]
    other = dataset.shuffled(shuffle(), BATCH)
    other.load_state_dict(sampler.state_dict(batches=3))
    assert got + list(other) == whole[1] and list(other) == whole[2]
    with pytest.raises(ValueError, match="is of 5 samples"):
        other.load_state_dict({"epoch": 0, "samples": 5, "at": None})


@pytest.mark.parametrize("workers, batch", [(0, 16), (2, 16), (2, 50), (0, BATCH)])
def test_an_epoch_whose_last_batches_are_made_ahead_goes_on_with_other_batches(packs, workers, batch):
    """Workers have asked the sampler for all there is, and training has batches of it to come."""

    def loader(size, workers):
        return stallscope.DataLoader(Numbers(packs / "sorted"), batch_size=size, num_workers=workers, shuffle=shuffle(20))

    first = loader(BATCH, 2)
    batches = iter(first)
    got = all_of(next(batches).tolist() for _ in range(FILES // BATCH - 1))
    resumed = loader(batch, workers)
    resumed.load_state_dict(first.state_dict())
    got += all_of(epoch(resumed))
    assert sorted(got) == list(range(FILES))
    assert sorted(all_of(epoch(resumed))) == list(range(FILES))


def test_workers_let_go_of_earlier_loaders_that_they_were_forked_with(packs):
    """Whose threads that read are the trainer's. Of so many, some of the stacks that they had are unmapped in the worker."""
    earlier = [stallscope.DataLoader(Numbers(packs / "sorted"), batch_size=BATCH, shuffle=shuffle()) for _ in range(20)]
    for one in earlier:
        next(iter(one))
    loader = stallscope.DataLoader(
        Numbers(packs / "sorted"), batch_size=BATCH, num_workers=1, shuffle=shuffle(), worker_init_fn=lambda _: (earlier.clear(), gc.collect())
    )
    assert sorted(all_of(epoch(loader))) == list(range(FILES))


def test_a_samplers_position_is_that_of_the_batches_that_were_trained(packs):
    dataset = Numbers(packs / "sorted")
    sampler = dataset.shuffled(shuffle(), BATCH)
    whole = [list(sampler) for _ in range(2)]
    sampler = dataset.shuffled(shuffle(), BATCH)
    # As where workers make all of an epoch ahead.
    list(sampler)
    resumed = dataset.shuffled(shuffle(), BATCH)
    resumed.load_state_dict(sampler.state_dict(batches=5))
    assert list(resumed) == whole[0][5 * BATCH :] and list(resumed) == whole[1]
    for batches in (FILES // BATCH + 1, 0, None):
        resumed.load_state_dict(sampler.state_dict(batches=batches))
        assert list(resumed) == whole[1]


def test_ranks_agree_that_an_epoch_is_over(packs):
    """A rank whose last batch is whole is not asked for more before the loop asks for another."""
    dataset = Numbers(packs / "sorted")
    states = []
    for rank in range(2):
        sampler = dataset.shuffled(shuffle(20), FILES // 2 - rank, rank=rank, world_size=2)
        samples = iter(sampler)
        assert len([next(samples) for _ in range(len(sampler))]) == FILES // 2
        if rank:
            assert next(samples, None) is None
        states.append(sampler.state_dict(batches=1 + rank))
    assert states[0] == states[1]


def test_batches_of_sorted_classes_are_mixed_as_predicted(packs):
    dataset = Numbers(packs / "sorted")
    chunks = len(list(Path(packs / "sorted").glob("*.chunk")))
    for effect in (12, 6, 3):
        sampler = dataset.shuffled(shuffle(effect, "64MiB"), BATCH)
        assert 1 <= sampler.predicted <= effect and sampler.chunks <= chunks
        measured = []
        for number in range(30):
            sampler.set_epoch(number)
            order = list(sampler)
            batches = [Counter(index * CLASSES // FILES for index in order[at : at + BATCH]) for at in range(0, FILES - BATCH, BATCH)]
            part = 1 / CLASSES
            variance = sum((one[c] - BATCH * part) ** 2 for one in batches for c in range(CLASSES)) / len(batches)
            measured.append(variance / (BATCH * (1 - part)))
            assert sampler.measured == pytest.approx(measured[-1])
        assert sum(measured) / 30 == pytest.approx(sampler.predicted, rel=0.1)
    # Shuffled as it was packed, chunk by chunk is as a full shuffle.
    sampler = Numbers(packs / "shuffled").shuffled(shuffle(1.3), BATCH)
    assert sampler.chunks == 1 and sampler.predicted < 1.3


def test_what_was_predicted_and_measured_is_printed_once(packs, capfd):
    loader = stallscope.DataLoader(Numbers(packs / "sorted"), batch_size=BATCH, shuffle=shuffle(4, "64MiB"))
    epoch(loader)
    epoch(loader)
    (line,) = capfd.readouterr().err.splitlines()
    loader.sampler.set_epoch(0)
    assert line.startswith(f"stallscope: shuffle: samples of {loader.sampler.chunks} chunks at a time (")
    assert f"design effect {loader.sampler.predicted:.2f} predicted" in line and line.endswith("measured over 18 batches")


def test_what_no_memory_is_enough_for_is_refused_with_the_way_out(packs):
    dataset = Numbers(packs / "sorted")
    with pytest.raises(ValueError, match=r"design effect of at most 1.5 for batches of 32 samples takes .* memory= is 20 MiB") as refused:
        dataset.shuffled(shuffle(1.5, "20MiB"), BATCH)
    sentence = str(refused.value)
    assert "without --in-order" in sentence
    more = sentence.split("give memory='")[1].split("'")[0]
    assert dataset.shuffled(shuffle(1.5, more), BATCH).predicted <= 1.5
    effect = float(sentence.split("max_design_effect=")[1].split(",")[0])
    assert dataset.shuffled(shuffle(effect, "20MiB"), BATCH).predicted <= effect
    # What the workers' batches take counts.
    with pytest.raises(ValueError, match="memory="):
        stallscope.DataLoader(dataset, batch_size=100, num_workers=8, shuffle=shuffle(200, "20MiB"))
    with pytest.raises(ValueError, match="give memory='"):
        dataset.shuffled(shuffle(500, "1MiB"), BATCH)


@pytest.mark.parametrize(
    "arguments, why",
    [
        ({"max_design_effect": 0.9}, "at least 1"), ({"max_design_effect": "2"}, "at least 1"), ({"max_design_effect": float("nan")}, "at least 1"),
        ({"memory": 0}, "give some"), ({"memory": "lots"}, "memory='lots'"), ({"memory": "99999GiB"}, "give less"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(arguments, why):
    with pytest.raises(ValueError, match=why):
        stallscope.Shuffle(**arguments)


def test_a_loader_refuses_what_does_not_go_together(packs):
    dataset = Numbers(packs / "sorted")
    for data, more, why in (
        (range(10), {}, "a range has none"),
        (dataset, {"sampler": [1, 2]}, "leave out sampler="),
        (dataset, {"sampling": "importance"}, "draws by itself"),
    ):
        with pytest.raises(ValueError, match=why):
            stallscope.DataLoader(data, shuffle=shuffle(), **more)
    with pytest.raises(ValueError, match="has 3 labels, here are 600"):
        stallscope.DataLoader(dataset, shuffle=shuffle(labels=[1, 2, 3]))
    with pytest.raises(ValueError, match="of one class"):
        stallscope.DataLoader(dataset, shuffle=shuffle(labels=[1] * FILES))
    # In the order of names, every second one mixes in each chunk.
    assert dataset.shuffled(shuffle(1.2, labels=["odd", "even"] * (FILES // 2)), BATCH).chunks == 1
    with pytest.warns(RuntimeWarning, match="the first 5 ranks have a batch of one sample more"):
        dataset.shuffled(shuffle(60), 5, rank=0, world_size=7)


def test_ranks_that_would_wait_for_each_other_are_warned_of(packs, monkeypatch):
    def loader(world, batch, rank=0, **more):
        monkeypatch.setattr("stallscope.data.pack.in_loader.Ranks", lambda *_: type("", (), {"rank": rank, "count": world}))
        return stallscope.DataLoader(Numbers(packs / "sorted"), batch_size=batch, shuffle=shuffle(60), **more)

    # 600 over 7 ranks: five have 86 samples, two 85.
    with pytest.warns(RuntimeWarning, match="with drop_last=True the first 5 ranks have a batch more"):
        lengths = [len(loader(7, 43, rank, drop_last=True)) for rank in (0, 6)]
    assert lengths == [2, 1]
    with unwarned():
        assert len(loader(7, 43)) == len(loader(7, 43, 6)) == 2
        assert len(loader(7, 40, drop_last=True)) == 2
    # The process group comes after the loader: each rank would have all samples.
    made = loader(1, 32)
    loader(2, 32)
    with pytest.raises(RuntimeError, match="made for 1 rank and the process group has 2"):
        iter(made)


def test_a_damaged_chunk_is_an_error_of_its_samples_alone(packs):
    dataset = Numbers(packs / "shuffled")
    chunk = sorted(Path(packs / "shuffled").glob("*.chunk"))[3]
    content = chunk.read_bytes()
    try:
        chunk.write_bytes(content[:64] + bytes(byte ^ 255 for byte in content[64:]))
        good, bad = [], []
        for index in dataset.shuffled(shuffle(), BATCH):
            try:
                good.append(dataset[index])
            except stallscope.PackError as error:
                assert chunk.name in str(error)
                bad.append(index)
    finally:
        chunk.write_bytes(content)
    assert len(good) + len(bad) == FILES and 0 < len(bad) < FILES / 4
    assert len(set(good)) == len(good)


def test_two_iterations_and_one_that_is_left_disturb_none(packs):
    dataset = Numbers(packs / "sorted")
    loader = stallscope.DataLoader(dataset, batch_size=BATCH, num_workers=1, shuffle=shuffle(4, "64MiB"))
    one = iter(loader)
    next(one)
    both = list(zip(iter(loader), iter(loader)))
    for side in zip(*both):
        assert sorted(all_of(batch.tolist() for batch in side)) == list(range(FILES))
    assert sorted(all_of(epoch(loader))) == list(range(FILES))


def test_with_a_cache_the_samples_are_the_same(packs, own_pool):
    dataset = stallscope.PackedDataset(packs / "sorted")
    firsts = lambda batch: [int.from_bytes(data[:4], "little") for data in batch]  # noqa: E731
    plain = stallscope.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle(), collate_fn=firsts)
    cached = stallscope.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle(), collate_fn=firsts, cache="16MiB")
    assert [list(cached) for _ in range(3)] == [list(plain) for _ in range(3)]
    assert cached.cache_figures()["hits"]


def test_what_a_cache_has_makes_place_for_what_is_read_next(packs, own_pool):
    dataset = stallscope.PackedDataset(packs / "shuffled")
    # So large that the sampler knows of hardly any batch that it is used.
    loader = stallscope.DataLoader(dataset, batch_size=150, shuffle=shuffle(2, "20MiB"), collate_fn=len, cache="64MiB")
    chunks = len(list(Path(packs / "shuffled").glob("*.chunk")))
    for epochs in (1, 2):
        assert sum(loader) == FILES
        patience = time.monotonic() + 60
        while loader.sampler._orders.read() < chunks * epochs:
            assert time.monotonic() < patience, f"{loader.sampler._orders.read()} of {chunks * epochs} were read"
            time.sleep(0.01)
    assert loader.cache_figures()["hits"] == FILES


def test_batches_that_are_prefetched_are_not_taken_for_used(packs):
    def late(**more):
        return stallscope.DataLoader(Numbers(packs / "shuffled"), batch_size=4, shuffle=shuffle(4), **more).sampler._late

    assert late(num_workers=3, prefetch_factor=40) >= 3 * 40 + late()
    assert late(num_workers=3, prefetch_factor=2) == late(num_workers=3)


@pytest.mark.parametrize("module", ["shuffle", "shuffled"])
def test_the_examples_are_true(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("en/hello.txt", "hello"), ("fr/bonjour.txt", "bonjour")):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    done = subprocess.run([program(), "pack", "texts", "-o", "texts.pack"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failed, tried = doctest.testmod(importlib.import_module(f"stallscope.data.pack.{module}"))
    assert tried and not failed
