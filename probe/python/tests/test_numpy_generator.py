"""A generator that the script has put in the place of numpy's own: it goes on after a resume, and samples are seeded with it."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy")

import stallscope  # noqa: E402


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, numpy.random.rand()


@pytest.fixture(params=["PCG64", "Philox", "SFC64"])
def another(request):
    if not hasattr(numpy.random, "set_bit_generator"):
        pytest.skip("SKIPPED: this numpy has no other generator in the place of its own")
    own = numpy.random.get_bit_generator()
    yield lambda: numpy.random.set_bit_generator(getattr(numpy.random, request.param)(5))
    numpy.random.set_bit_generator(own)


def trained(folder, stop):
    """What a job gets until this step, None to its end; `folder`: None for torch alone."""
    loader, got = torch.utils.data.DataLoader(Noisy(), batch_size=2), []
    checkpointer = folder and stallscope.Checkpointer(folder, loader=loader, signals=())
    start = checkpointer.restore() if folder else None
    for _ in range(start.epoch if start else 0, 2):
        for indices, drawn in loader:
            got.append((indices.tolist(), drawn.tolist(), numpy.random.rand()))
            if checkpointer:
                checkpointer.step()
            if stop == len(got):
                checkpointer.save(wait=True)
                checkpointer.close()
                return got
    return got


def test_it_goes_on_where_it_was(tmp_path, another):
    another()
    whole = trained(None, None)
    another()
    before = trained(tmp_path, 3)
    another()
    assert before + trained(tmp_path, None) == whole


def test_samples_are_seeded_and_training_gets_it_back(another):
    another()
    loader = stallscope.DataLoader(Noisy(), batch_size=4)
    torch.manual_seed(1)
    first, after = [drawn.tolist() for _, drawn in loader], numpy.random.rand()
    another()
    assert numpy.random.rand() == after
    torch.manual_seed(1)
    again = stallscope.DataLoader(Noisy(), batch_size=4)
    assert [drawn.tolist() for _, drawn in again] == first and len(set(sum(first, []))) == 8
